package loop

import (
	"math"
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// An activator that is cut off from the autoscaler still sends requests to the pods. A load that is
// little above what five pods are for shows two seconds that count as none.
func TestAnActivatorThatIsCutOffLowersNothing(t *testing.T) {
	const load = 35.9
	for _, c := range []struct {
		behaviour string
		// scraped counts what did not come through an activator, first what came through the one
		// that falls silent, second through one that does not.
		scraped, first, second float64
		// presses says that the silent one gets through when it reports out of turn.
		presses bool
		// unheard says that this process has never heard of the silent one.
		unheard bool
		metric  decide.Metric
	}{
		{"all requests pass through it", 0, load, 0, false, false, decide.Concurrency},
		{"all requests pass through it, by requests per second", 0, load, 0, false, false, decide.RequestsPerSecond},
		{"half of them do", load / 2, load / 2, 0, false, false, decide.Concurrency},
		{"another activator has the other half", 0, load / 2, load / 2, false, false, decide.Concurrency},
		{"another activator has a third, pods are reached directly by another", load / 3, load / 3, load / 3, false, false, decide.Concurrency},
		{"reports out of turn arrive", 0, load, 0, true, false, decide.Concurrency},
		{"it was silent before this process began", 0, load, 0, false, true, decide.Concurrency},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			s := spec()
			s.Found = &revision.State{Desired: 6, Zero: zero.State{Active: zero.Yes, Initialized: true}}
			s.Formula.Metric = c.metric
			play(t, s, revision.Counts{Ready: 6}, func(t *testing.T, w *world) {
				scraped, first, second := c.scraped, c.first, c.second
				w.mutex.Lock()
				w.scrape = func() revision.Scrape {
					return revision.Scrape{Report: decide.Report{Concurrency: scraped, RequestsPerSecond: scraped,
						ProxiedConcurrency: first + second, ProxiedRequests: first + second}}
				}
				w.mutex.Unlock()
				run := func(seconds int, heard bool) {
					for i := range seconds {
						if heard {
							w.report(t, "first", first, 0)
						} else if c.presses && i%5 == 0 {
							w.engine.Report([]Sample{{Key: hello, Arrived: time.Now(), Sample: revision.Sample{Reporter: "first", Report: decide.Report{Concurrency: first, RequestsPerSecond: first},
								OutOfTurn: true, Timestamp: time.Now().UnixMilli()}}})
						}
						time.Sleep(310 * time.Millisecond)
						if c.second > 0 {
							w.report(t, "second", second, 0)
						}
						time.Sleep(690 * time.Millisecond)
					}
				}
				constant := func(when string) {
					t.Helper()
					if got := w.written(); slices.ContainsFunc(got, func(n int32) bool { return n != 6 }) {
						t.Fatalf("%s: a constant load for six pods asked for %v", when, got)
					}
					if active := w.lastOrder().Status.Active; active != zero.Yes {
						t.Fatalf("%s: Active is %v", when, active)
					}
				}
				if !c.unheard {
					run(100, true)
					constant("before")
				}
				run(200, false)
				constant("cut off")
				run(3, true)
				constant("just back")
				run(1, false) // one report is lost
				run(1, true)
				run(3, false) // it is silent for little longer than a late report takes
				run(100, true)
				constant("back")
				// What is seen to have ended is not held, whoever is silent.
				run(10, false)
				w.mutex.Lock()
				scraped, first, second = scraped/5, first/5, second/5
				w.mutex.Unlock()
				run(150, false)
				if got := w.written(); len(got) == 0 || got[len(got)-1] != 3 {
					t.Errorf("minutes after the load fell to what two pods are for, of which one step takes half: %v", got)
				}
				w.ready(hello, 1)
				w.mutex.Lock()
				scraped, first, second = 0, 0, 0
				w.mutex.Unlock()
				run(200, false)
				if got := w.written(); got[len(got)-1] != 0 {
					t.Errorf("minutes after the last request: %v", got)
				}
			})
		})
	}
}

// Requests wait in an activator that is cut off, because its pods take ten at once and more of them
// need a minute and a half to start. The pods that were asked for before are not taken back, those
// that are full ask for more, and what is seen to have ended is not held.
func TestWhatWaitsInASilentActivatorGetsItsPods(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 3, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	play(t, s, revision.Counts{Ready: 3}, func(t *testing.T, w *world) {
		outstanding := 20.0
		w.mutex.Lock()
		w.scrape = func() revision.Scrape {
			return revision.Scrape{Report: decide.Report{ProxiedConcurrency: math.Min(outstanding, 10*float64(w.counts[hello].Ready))}}
		}
		w.mutex.Unlock()
		second := func(heard bool) {
			if heard {
				w.mutex.Lock()
				in := math.Min(outstanding, 10*float64(w.counts[hello].Ready))
				w.mutex.Unlock()
				w.report(t, "first", outstanding, outstanding-in)
			}
			time.Sleep(time.Second)
		}
		change := func(to float64) {
			w.mutex.Lock()
			outstanding = to
			w.mutex.Unlock()
		}
		for range 70 {
			second(true)
		}
		change(100)
		second(true) // its last word: 30 at work, 70 wait
		asked := w.lastOrder().Status.Desired
		if asked < 15 {
			t.Fatalf("%d pods for 100 requests: %s", asked, w.lastOrder().Reason())
		}
		for i := range 90 {
			second(false)
			if got := w.lastOrder().Status.Desired; got < asked {
				t.Fatalf("%d s later %d pods: %s", i+1, got, w.lastOrder().Reason())
			}
		}
		w.ready(hello, asked)
		for range 70 {
			second(false)
		}
		if got := w.lastOrder().Status.Desired; got < 15 {
			t.Fatalf("%d pods when nothing waits any more: %s", got, w.lastOrder().Reason())
		}
		change(400) // of which nobody is told: full pods ask for more until nothing waits
		for range 600 {
			second(false)
			w.ready(hello, w.lastOrder().Status.Desired)
		}
		if got := w.lastOrder().Status.Desired; got < 58 {
			t.Fatalf("%d pods for 400 requests: %s", got, w.lastOrder().Reason())
		}
		change(20)
		for range 400 {
			second(false)
			w.ready(hello, w.lastOrder().Status.Desired)
		}
		if got := w.lastOrder().Status.Desired; got != 3 {
			t.Errorf("%d pods minutes after it ended: %s", got, w.lastOrder().Reason())
		}
	})
}

// An activator that is gone owes a report for ever. Its share passes to another one, whose reports
// then tell all there is.
func TestAnActivatorThatIsGoneIsForgotten(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 6, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	play(t, s, revision.Counts{Ready: 6}, func(t *testing.T, w *world) {
		seen := 35.9
		w.mutex.Lock()
		w.scrape = func() revision.Scrape { return revision.Scrape{Report: decide.Report{ProxiedConcurrency: seen}} }
		w.mutex.Unlock()
		for range 60 {
			w.report(t, "gone", 17.95, 0)
			w.report(t, "other", 17.95, 0)
			time.Sleep(time.Second)
		}
		for i := range 300 {
			w.report(t, "other", 35.9, 0)
			time.Sleep(time.Second)
			if i == 150 {
				w.mutex.Lock()
				seen = 70 // what the pods see is no longer asked for, since all is told
				w.mutex.Unlock()
			}
		}
		if got := w.written(); slices.ContainsFunc(got, func(n int32) bool { return n != 6 }) {
			t.Errorf("a constant load for six pods asked for %v", got)
		}
	})
}

// Where no pod is asked, nobody tells of what a silent activator carries: its seconds are missing,
// for a stable window.
func TestWithoutScrapesASilentActivatorIsMissedForAWindow(t *testing.T) {
	for _, others := range []float64{0, 15} {
		s := spec()
		s.Found = &revision.State{Desired: 6, Zero: zero.State{Active: zero.Yes, Initialized: true}}
		s.Scraped, s.Formula.TargetBurstCapacity = false, -1
		play(t, s, revision.Counts{Ready: 6}, func(t *testing.T, w *world) {
			run := func(seconds int, load float64) {
				for range seconds {
					if !math.IsNaN(load) {
						w.report(t, "first", load-others, 0)
					}
					if others > 0 {
						w.report(t, "second", others, 0)
					}
					time.Sleep(time.Second)
				}
			}
			silent := math.NaN()
			run(100, 35.9)
			for _, seconds := range []int{3, 10, 59} {
				run(seconds, silent)
				run(100, 35.9)
			}
			if got := w.written(); slices.ContainsFunc(got, func(n int32) bool { return n != 6 }) {
				t.Fatalf("with %v at others a constant load for six pods asked for %v", others, got)
			}
			run(58, silent)
			if got := w.written(); slices.ContainsFunc(got, func(n int32) bool { return n != 6 }) || w.lastOrder().Status.Active != zero.Yes {
				t.Fatalf("silent for less than a window: %v, Active %v", got, w.lastOrder().Status.Active)
			}
			run(150, silent)
			if got, want := w.written(), int32(3); len(got) == 0 || got[len(got)-1] != want {
				t.Errorf("silent for minutes with %v at others: %v, want %d, half of the pods", others, got, want)
			}
		})
	}
}
