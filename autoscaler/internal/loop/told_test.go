package loop

import (
	"math"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

// A revision whose four pods tell how many of their requests wait. The pods have no requests of
// their own.
func TestWhatPodsTellWrongHoldsTheScaleAndIsCounted(t *testing.T) {
	for behaviour, c := range map[string]struct {
		tells   []float64 // each pod; nil: nothing
		want    int32     // after a minute
		counted bool
		why     string
	}{
		"no number":        {[]float64{math.NaN(), math.NaN(), math.NaN(), math.NaN()}, 4, true, "fewer than half of the pods tell waiting"},
		"negative":         {[]float64{-1, -1, -1, -1}, 4, true, "fewer than half of the pods tell waiting"},
		"infinite":         {[]float64{math.Inf(1), math.Inf(1), math.Inf(1), 0}, 4, true, "fewer than half of the pods tell waiting"},
		"nothing any more": {nil, 4, false, "fewer than half of the pods tell waiting"},
		"one that lies asks for what one pod may": {[]float64{1e300, 0, 0, 0}, 1000, true, "1 pod told more than one pod may ask for"},
		"zero": {[]float64{0, 0, 0, 0}, 2, false, "max-scale-down-rate keeps 2 pods of 4 ready"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			s := spec()
			s.Formula.Others = []decide.Other{{Name: "waiting", Metric: decide.Told, Target: 5}}
			s.Found = &revision.State{Desired: 4}
			play(t, s, revision.Counts{Ready: 4}, func(t *testing.T, w *world) {
				tells := []float64{5, 5, 5, 5}
				w.mutex.Lock()
				w.scrape = func() revision.Scrape { // called under the mutex
					sample := make([]wire.Stat, 4)
					for i := range tells {
						sample[i].Told.Known, sample[i].Told.Values[0] = 1, tells[i]
					}
					return revision.Extrapolate(sample, 4)
				}
				w.mutex.Unlock()
				time.Sleep(2 * time.Minute)
				if got := w.lastOrder().Status.Desired; got != 4 {
					t.Fatalf("20 that wait asked for %d pods, want 4", got)
				}
				w.mutex.Lock()
				tells = c.tells
				w.mutex.Unlock()
				time.Sleep(70 * time.Second)
				history, _ := w.engine.History(hello)
				last := history[len(history)-1]
				if last.Step.Want != c.want || !strings.Contains(last.Reason(), c.why) {
					t.Errorf("%d pods: %s; want %d: ...%s...", last.Step.Want, last.Reason(), c.want, c.why)
				}
				counted := w.engine.Refused()[WrongMetric]
				if (counted > 0) != c.counted {
					t.Errorf("%d values were counted", counted)
				}
			})
		})
	}
}
