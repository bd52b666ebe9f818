package loop

import (
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// While a scrape is under way nothing is known of the seconds that pass; they are not seconds
// without load. A load that is a trifle above what five pods are for shows each second that counts
// as less.
func TestASlowScrapeLowersNothing(t *testing.T) {
	for _, c := range []struct {
		behaviour string
		// activator is the share of the load that goes through an activator.
		load, activator float64
		// takes and fails say how the nth scrape goes.
		takes func(n int) time.Duration
		fails func(n int) bool
	}{
		{"most take four seconds and succeed", 35.2, 0,
			func(n int) time.Duration { return time.Duration(min(n%10, 1)) * 4 * time.Second }, func(n int) bool { return false }},
		{"all take four seconds and succeed", 35.2, 0,
			func(n int) time.Duration { return 4 * time.Second }, func(n int) bool { return false }},
		{"all take a bit more than their period", 35.2, 0,
			func(n int) time.Duration { return 1200 * time.Millisecond }, func(n int) bool { return false }},
		{"all take a bit more than the freshness time", 35.2, 0,
			func(n int) time.Duration { return 2700 * time.Millisecond }, func(n int) bool { return false }},
		{"most take four seconds and fail", 35.2, 0,
			func(n int) time.Duration { return time.Duration(min(n%10, 1)) * 4 * time.Second }, func(n int) bool { return n%10 > 0 }},
		{"a window of failures, then one that succeeds, and so on", 35.2, 0,
			func(n int) time.Duration { return time.Duration(min(n%20, 1)) * 3 * time.Second }, func(n int) bool { return n%20 > 0 }},
		{"most take four seconds while an activator reports in time", 36, 20,
			func(n int) time.Duration { return time.Duration(min(n%10, 1)) * 4 * time.Second }, func(n int) bool { return false }},
		{"most take four seconds and fail while an activator reports in time", 36, 20,
			func(n int) time.Duration { return time.Duration(min(n%10, 1)) * 4 * time.Second }, func(n int) bool { return n%10 > 0 }},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			s := spec()
			s.Found = &revision.State{Desired: 6, Zero: zero.State{Active: zero.Yes, Initialized: true}}
			play(t, s, revision.Counts{Ready: 6}, func(t *testing.T, w *world) {
				load := c.load - c.activator
				w.mutex.Lock()
				w.takes = func() time.Duration { return c.takes(w.scrapes) }
				w.scrape = func() revision.Scrape {
					return revision.Scrape{Failed: c.fails(w.scrapes), Report: decide.Report{Concurrency: load}}
				}
				w.mutex.Unlock()
				second := func(activator float64) {
					if c.activator > 0 {
						w.report(t, "activator", activator, 0)
					}
					time.Sleep(time.Second)
				}
				for range 300 {
					second(c.activator)
				}
				if got := w.written(); slices.ContainsFunc(got, func(n int32) bool { return n != 6 }) {
					t.Fatalf("a constant load for six pods asked for %v", got)
				}
				// What is known to have ended is not held for ever.
				w.mutex.Lock()
				load = 7
				w.mutex.Unlock()
				for range 240 {
					second(0)
				}
				if got := w.written(); len(got) == 0 || got[len(got)-1] > 3 {
					t.Errorf("minutes after the load fell to what one pod is for: %v", got)
				}
			})
		})
	}
}

// A panic window of one second is not emptied by the wait for that second's scrape.
func TestAPanicWindowOfOneSecondKnowsWhatActivatorsSay(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 20, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	s.Formula.StableWindow, s.PanicWindow = 6*time.Second, time.Second
	play(t, s, revision.Counts{Ready: 20}, func(t *testing.T, w *world) {
		w.mutex.Lock()
		w.scrape = func() revision.Scrape { return revision.Scrape{Report: decide.Report{Concurrency: 20}} }
		w.mutex.Unlock()
		for range 30 {
			w.report(t, "activator", 100, 0)
			history, _ := w.engine.History(hello)
			if o := history[len(history)-1].Decision.Observation; o.Panic < 100 {
				t.Fatalf("100 requests at an activator, and a panic average of %v", o.Panic)
			}
			time.Sleep(time.Second)
		}
	})
}
