package loop

import (
	"math"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
)

// A constant load whose noise goes to and fro over what one pod is for flips the compatible
// decision, and leaves one by a learned target alone. The pods complete as much together however
// many they are, so that the lesson tells nothing.
func TestNoiseDoesNotMoveAScaleWhoseTargetIsLearned(t *testing.T) {
	const lesson, lasts = 300, 1500
	for _, adaptive := range []bool{false, true} {
		s := spec()
		s.Adaptive = adaptive
		began := time.Time{}
		play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
			w.mutex.Lock()
			w.scrape = func() revision.Scrape {
				if began.IsZero() {
					began = time.Now()
				}
				load := 7 * (1 + 0.1*math.Sin(2*math.Pi*time.Since(began).Seconds()/240))
				return revision.Scrape{Report: decide.Report{Concurrency: load}, BusySeconds: load, Completed: 100}
			}
			w.mutex.Unlock()
			early, held := 0, false
			for second := range lasts {
				w.ready(hello, max(w.lastOrder().Status.Desired, 1))
				time.Sleep(time.Second)
				history, _ := w.engine.History(hello)
				last := history[len(history)-1]
				if second == lesson {
					early = len(w.written())
				}
				if last.Rule() == decide.RuleHysteresis.String() && strings.Contains(last.Reason(), "noise") {
					held = true
				}
			}
			if late := len(w.written()) - early; adaptive && late > 0 || !adaptive && late < 5 || held != adaptive {
				t.Errorf("a target that is learned: %v; %d late changes, hysteresis was the reason: %v; %v", adaptive, late, held, w.written())
			}
		})
	}
}
