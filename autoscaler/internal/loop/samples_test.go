package loop

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

func TestSamplesThatDoNotCount(t *testing.T) {
	play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
		send := func(s Sample) {
			w.engine.Report([]Sample{s})
			synctest.Wait()
		}
		one := func(timestamp int64, concurrency float64) Sample {
			return Sample{Key: hello, Sample: revision.Sample{Reporter: "activator-1", Timestamp: timestamp, Report: decide.Report{Concurrency: concurrency}}}
		}
		send(one(1_000_000, 0))
		time.Sleep(time.Second)
		send(one(1_000_000, 0)) // the same report again
		send(one(999_500, 500)) // overtaken by a later one
		send(one(1_001_000, math.NaN()))
		send(one(1_001_001, -3))
		send(one(1_001_002, math.Inf(1)))
		send(Sample{Key: Key{Namespace: "default", Name: "unheard-of"}, Sample: revision.Sample{Reporter: "activator-1", Report: decide.Report{Concurrency: 3}}})
		// Activators report whatever they hold requests of, also what another class scales.
		send(Sample{Key: Key{Namespace: "default", Name: "by-cpu"}, Sample: revision.Sample{Reporter: "activator-1", Report: decide.Report{Concurrency: 3}}})
		expectWritten(t, w)
		got := w.engine.Refused()
		for refusal, want := range map[revision.Refusal]int64{revision.Duplicate: 1, revision.Late: 1, revision.Invalid: 3, UnknownKey: 1, revision.Crowded: 0} {
			if got[refusal] != want {
				t.Errorf("%s: %d, want %d", refusal, got[refusal], want)
			}
		}
		time.Sleep(time.Second)
		send(one(1_000_000-2*time.Minute.Milliseconds(), 7)) // its clock was set back by minutes
		expectWritten(t, w, 1)
	})
}

// A report out of turn may overtake the regular one that was sent before it; what that one says is
// missing nowhere else. An activator's clock is set while it carries a constant load: that is
// neither an end of the load nor more of it.
func TestAClockThatJumpsChangesNoScale(t *testing.T) {
	for name, jump := range map[string]time.Duration{"back by a second": -time.Second, "back by seconds": -5 * time.Second,
		"back by half a minute": -30 * time.Second, "back by hours": -3 * time.Hour, "ahead by half a minute": 30 * time.Second, "ahead by years": 50_000 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			s := spec()
			s.Found = &revision.State{Desired: 3, Zero: zero.State{Active: zero.Yes, Initialized: true}}
			s.Formula.StableWindow, s.PanicWindow = 6*time.Second, time.Second // a gap would show soon
			s.Scraped = false
			play(t, s, revision.Counts{Ready: 3}, func(t *testing.T, w *world) {
				clock := time.Duration(0)
				second := func() {
					w.engine.Report([]Sample{{Key: hello, Arrived: time.Now(), Sample: revision.Sample{Reporter: "activator-1", Timestamp: time.Now().Add(clock).UnixMilli(),
						Report: decide.Report{Concurrency: 20}}}})
					time.Sleep(time.Second)
					synctest.Wait()
				}
				for range 30 {
					second()
				}
				clock = jump
				for range 60 {
					second()
				}
				for _, n := range w.written() {
					if n != 3 {
						t.Errorf("a load for 3 pods asked for %v: %s", w.written(), w.lastOrder().Reason())
						break
					}
				}
				if late := w.engine.Refused()[revision.Late]; late > 2 {
					t.Errorf("%d reports were refused as late, want the first at most", late)
				}
				history, _ := w.engine.History(hello)
				if o := history[len(history)-1].Decision.Observation; o.Stable != 20 {
					t.Errorf("a minute later the average is %v, want 20", o.Stable)
				}
			})
		})
	}
}

func TestARegularReportThatWasOvertakenStillCounts(t *testing.T) {
	play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
		began := time.Now().UnixMilli()
		send := func(after int64, outOfTurn bool, concurrency, queued float64) {
			w.engine.Report([]Sample{{Key: hello, Arrived: time.Now(), Sample: revision.Sample{Reporter: "activator-1", Timestamp: began + after, OutOfTurn: outOfTurn,
				Report: decide.Report{Concurrency: concurrency, Queued: queued}}}})
			synctest.Wait()
		}
		send(0, false, 7, 0)
		time.Sleep(1010 * time.Millisecond)
		send(1005, true, 14, 3)
		send(1000, false, 7, 0) // overtaken
		history, _ := w.engine.History(hello)
		if o := history[len(history)-1].Decision.Observation; o.Stable != 7 || o.Queued != 3 || o.Burst != 14 {
			t.Errorf("average %v, %v waiting, %v now: the average needs both regular reports, the moment the newest one", o.Stable, o.Queued, o.Burst)
		}
		if refused := w.engine.Refused(); refused[revision.Late] != 0 || refused[revision.Duplicate] != 0 {
			t.Errorf("refused: %v", refused)
		}
		// Once more the same, and one from before it: those were counted.
		send(1000, false, 7, 0)
		send(500, false, 7, 0)
		send(900, true, 100, 50)
		if refused := w.engine.Refused(); refused[revision.Late] != 3 {
			t.Errorf("refused: %v, want 3 late ones", refused)
		}
	})
}

func TestAQueueThatNobodyTellsOfAnyMoreIsNone(t *testing.T) {
	play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
		w.report(t, "activator-1", 0, 5)
		time.Sleep(2100 * time.Millisecond) // a tick, and no report
		history, _ := w.engine.History(hello)
		if o := history[len(history)-1].Decision.Observation; o.Queued != 0 {
			t.Errorf("%v requests wait, two seconds after the last word of them", o.Queued)
		}
	})
}

func TestAReporterOutOfTurnIsNotCountedTwice(t *testing.T) {
	play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
		s := *atZero()
		s.Formula.PanicThreshold = 1000 // the windows alone
		w.mutex.Lock()
		w.specs[hello] = &s
		w.mutex.Unlock()
		w.engine.Changed(hello)
		synctest.Wait()
		for range 10 {
			for range 5 { // growing edges within one second
				w.report(t, "activator-1", 7, 0)
				time.Sleep(time.Millisecond)
			}
			time.Sleep(995 * time.Millisecond)
		}
		if o := w.lastOrder(); o.Replicas != 1 {
			t.Errorf("7 concurrent requests at a target of 7 asked for %d pods: %s", o.Replicas, o.Reason())
		}
	})
}

// A report of a burst's moment raises at once, and leaves the average to the regular report.
func TestAReportThatSaysItIsOutOfTurnDoesNotEnterTheWindows(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		threshold float64
		most      int32
	}{
		{"the windows alone", 1000, 1},
		{"with the burst test", 2, 10},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
				s := *atZero()
				s.Formula.PanicThreshold = c.threshold
				w.mutex.Lock()
				w.specs[hello] = &s
				w.mutex.Unlock()
				w.engine.Changed(hello)
				synctest.Wait()
				for range 5 {
					w.report(t, "activator-1", 7, 0)
					time.Sleep(800 * time.Millisecond)
					err := w.engine.Report([]Sample{{Key: hello, Arrived: time.Now(), Sample: revision.Sample{Reporter: "activator-1", Report: decide.Report{Concurrency: 70}, OutOfTurn: true,
						Timestamp: time.Now().UnixMilli()}}})
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(200 * time.Millisecond)
				}
				if got := slices.Max(w.written()); got != c.most {
					t.Errorf("7 concurrent requests and moments of 70 at a target of 7 asked for %d pods, want %d", got, c.most)
				}
			})
		})
	}
}
