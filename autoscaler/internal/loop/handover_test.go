package loop

import (
	"context"
	"io"
	"log/slog"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

// second starts another process around the same cluster, which finds what the first has written.
func second(t *testing.T, w *world) (*world, func()) {
	found := *w.Spec(hello)
	last := w.lastOrder()
	found.Found = &revision.State{Desired: last.Status.Desired, Zero: zero.State{Active: last.Status.Active, ActiveReason: last.Status.ActiveReason,
		Initialized: last.Status.Initialized, Proxied: last.Status.Proxied, ActiveSince: time.Now().Truncate(time.Second)},
		Learned: last.Status.Learned}
	next := &world{specs: map[Key]*Spec{hello: &found}, counts: map[Key]revision.Counts{hello: w.Count(hello)}, scrape: func() revision.Scrape { return revision.Scrape{} }, answer: zero.ProbedActivator}
	next.engine = New(Options{Shards: 2, Source: next, Pods: next, Actor: next, Scraper: next, Prober: next, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { next.engine.Run(ctx); close(done) }()
	return next, func() { cancel(); <-done }
}

func TestAPlannedHandOverDecidesOnAtOnce(t *testing.T) {
	s := spec()
	s.Scraped = false
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		// A long load of 50, for which 8 pods are right.
		for range 90 {
			w.report(t, "activator", 50, 0)
			w.ready(hello, max(w.lastOrder().Replicas, 1))
			time.Sleep(time.Second)
		}
		if got := w.lastOrder().Replicas; got != 8 {
			t.Fatalf("%d pods before the change, want 8", got)
		}
		// Its load ends, and halfway through the window the process has to go.
		for range 30 {
			w.report(t, "activator", 7, 0)
			time.Sleep(time.Second)
		}
		before := w.lastOrder()
		w.mutex.Lock()
		delete(w.specs, hello) // no longer this process's
		w.specs[Key{}] = s
		w.mutex.Unlock()
		w.engine.Changed(hello)
		synctest.Wait()
		w.mutex.Lock()
		w.specs[hello] = s
		w.mutex.Unlock()

		next, stop := second(t, w)
		defer stop()
		next.engine.Changed(hello)
		time.Sleep(1200 * time.Millisecond)
		handed := w.engine.Export(func(k Key) bool { return k == hello })
		if len(handed) != 1 || handed[hello].Formula.Desired != before.Decision.Desired {
			t.Fatalf("handed over %+v", handed)
		}
		if again := w.engine.Export(func(Key) bool { return true }); len(again) != 0 {
			t.Fatalf("handed over twice: %+v", again)
		}
		next.engine.Import(handed, 0)
		synctest.Wait()
		history, _ := next.engine.History(hello)
		last := history[len(history)-1].Decision
		if last.Desired < before.Decision.Desired || last.Observation.Stable < 20 {
			t.Errorf("right after the change: %d pods at an average of %v, before it %d", last.Desired, last.Observation.Stable, before.Decision.Desired)
		}
		// It goes on down as the first would have: the load ended 32 s ago, so by its window's end
		// in 30 s it is at one pod.
		for range 62 {
			next.report(t, "activator", 7, 0)
			next.ready(hello, next.lastOrder().Replicas)
			time.Sleep(time.Second)
		}
		if got := next.lastOrder().Replicas; got > 2 {
			t.Errorf("%d pods a window after the load ended: %s", got, next.lastOrder().Reason())
		}
	})
}

// Nine requests are outstanding on a pod that works on one at a time. What was learned of it is not
// lost with the process.
func TestALearnedTargetIsHandedOver(t *testing.T) {
	s := spec()
	s.Adaptive = true
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		work := func(w *world) func() revision.Scrape {
			return func() revision.Scrape {
				return revision.Scrape{Report: decide.Report{Concurrency: 9}, BusySeconds: 9, Completed: 100 * math.Min(9, float64(w.counts[hello].Ready))}
			}
		}
		w.mutex.Lock()
		w.scrape = work(w)
		w.mutex.Unlock()
		for range 300 {
			w.ready(hello, max(w.lastOrder().Status.Desired, 1))
			time.Sleep(time.Second)
		}
		before := w.lastOrder()
		if before.Decision.Target >= 2 || before.Status.Desired < 9 {
			t.Fatalf("learned a target of %v: %s", before.Decision.Target, before.Reason())
		}
		w.mutex.Lock()
		delete(w.specs, hello)
		w.mutex.Unlock()
		w.engine.Changed(hello)
		synctest.Wait()
		handed := w.engine.Export(func(Key) bool { return true })
		w.mutex.Lock()
		w.specs[hello] = s
		w.mutex.Unlock()

		next, stop := second(t, w)
		defer stop()
		next.mutex.Lock()
		next.scrape = work(next)
		next.specs[hello].Found.Learned = decide.Learned{} // as if it had not been written yet
		next.mutex.Unlock()
		next.engine.Changed(hello)
		synctest.Wait()
		next.engine.Import(handed, 0)
		for range 120 {
			time.Sleep(time.Second)
			history, _ := next.engine.History(hello)
			last := history[len(history)-1]
			if last.Step.Want < before.Status.Desired || last.Decision.Target != before.Decision.Target {
				t.Fatalf("%d pods at a target of %v, before the change %d at %v: %s", last.Step.Want, last.Decision.Target,
					before.Status.Desired, before.Decision.Target, last.Reason())
			}
		}
	})
}

// A process that dies tells nobody anything, but what it learned stands in the status since the
// lesson ended. What stands there and makes no sense is refused: the configured target holds then,
// as for a revision of which nothing was learned.
func TestALearnedTargetOutlivesACrash(t *testing.T) {
	s := spec()
	s.Adaptive = true
	work := func(w *world) func() revision.Scrape {
		return func() revision.Scrape {
			return revision.Scrape{Report: decide.Report{Concurrency: 9}, BusySeconds: 9, Completed: 100 * math.Min(9, float64(w.counts[hello].Ready))}
		}
	}
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		w.mutex.Lock()
		w.scrape = work(w)
		w.mutex.Unlock()
		for range 300 {
			w.ready(hello, max(w.lastOrder().Status.Desired, 1))
			time.Sleep(time.Second)
		}
		before := w.lastOrder()
		if before.Decision.Target >= 2 || before.Status.Desired < 9 || before.Status.Learned.Throughput < 80 {
			t.Fatalf("learned a target of %v, %+v: %s", before.Decision.Target, before.Status.Learned, before.Reason())
		}
		var told []decide.Learned
		for _, o := range w.orders {
			if n := len(told); o.Status.Learned != (decide.Learned{}) && (n == 0 || told[n-1] != o.Status.Learned) {
				told = append(told, o.Status.Learned)
			}
		}
		if len(told) != 1 {
			t.Errorf("one lesson was told as %+v", told)
		}

		next, stop := second(t, w)
		defer stop()
		next.mutex.Lock()
		next.scrape = work(next)
		next.mutex.Unlock()
		next.engine.Changed(hello)
		for range 300 {
			time.Sleep(time.Second)
			history, _ := next.engine.History(hello)
			last := history[len(history)-1]
			if last.Step.Want != before.Status.Desired || math.Abs(last.Decision.Target-before.Decision.Target) > 1e-9 {
				t.Fatalf("%d pods at a target of %v, before the crash %d at %v: %s", last.Step.Want, last.Decision.Target,
					before.Status.Desired, before.Decision.Target, last.Reason())
			}
		}
		if n := next.engine.Refused()[InvalidState]; n != 0 {
			t.Errorf("%d memories refused", n)
		}

		for behaviour, learned := range map[string]decide.Learned{
			"no number":      {Concurrency: math.NaN(), Throughput: 100, At: time.Now().Unix()},
			"no concurrency": {Throughput: 100, At: time.Now().Unix()},
			"of the future":  {Concurrency: 1, Throughput: 100, At: time.Now().Add(time.Hour).Unix()},
			"of last year":   {Concurrency: 1, Throughput: 100, At: time.Now().Add(-365 * 24 * time.Hour).Unix()},
		} {
			hostile, stop := second(t, w)
			hostile.mutex.Lock()
			hostile.specs[hello].Found.Learned = learned
			hostile.mutex.Unlock()
			hostile.engine.Changed(hello)
			synctest.Wait()
			history, _ := hostile.engine.History(hello)
			if last := history[len(history)-1].Decision; last.Target != s.Formula.Target {
				t.Errorf("%s: a target of %v", behaviour, last.Target)
			}
			if n := hostile.engine.Refused()[InvalidState]; n != 1 {
				t.Errorf("%s: counted %d times as refused", behaviour, n)
			}
			hostile.engine.Changed(hello)
			synctest.Wait()
			if n := hostile.engine.Refused()[InvalidState]; n != 1 {
				t.Errorf("%s: counted again with the next news", behaviour)
			}
			if scales := hostile.written(); len(scales) > 0 && slices.Min(scales) < before.Status.Desired {
				t.Errorf("%s: scaled to %v from %d", behaviour, scales, before.Status.Desired)
			}
			stop()
		}
	})
}

// Who takes over from a process that died knows only what stands in the status, and keeps that
// until it has seen a window.
func TestAfterACrashNothingIsLoweredAndMoreIsDecidedWithinSeconds(t *testing.T) {
	s := spec()
	s.Scraped = false
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		for range 70 {
			w.report(t, "activator", 50, 0)
			w.ready(hello, max(w.lastOrder().Replicas, 1))
			time.Sleep(time.Second)
		}
		next, stop := second(t, w)
		defer stop()
		next.engine.Changed(hello)
		synctest.Wait()
		began := time.Now()
		for time.Since(began) < 50*time.Second {
			load := 50.0
			if time.Since(began) > 3*time.Second {
				load = 150
			}
			next.report(t, "activator", load, 0)
			if order := next.lastOrder(); order.Replicas >= 0 && order.Scale {
				if order.Replicas < 8 {
					t.Fatalf("after %s: %d pods of 8: %s", time.Since(began), order.Replicas, order.Reason())
				}
				next.ready(hello, order.Replicas)
			}
			if since := time.Since(began); since > 8*time.Second && next.lastOrder().Status.Desired < 16 {
				t.Fatalf("%s after a load of 150 came: %d pods", since-3*time.Second, next.lastOrder().Status.Desired)
			}
			time.Sleep(time.Second)
		}
	})
}

func TestAStateOfAnotherRevisionIsRefused(t *testing.T) {
	play(t, spec(), revision.Counts{Ready: 2}, func(t *testing.T, w *world) {
		other := Key{Namespace: "default", Name: "other"}
		for name, c := range map[string]struct {
			key   Key
			state revision.State
		}{
			"created again under the same name": {hello, revision.State{UID: "2", At: time.Now()}},
			"exported at no time":               {hello, revision.State{UID: "1"}},
			"never heard of":                    {other, revision.State{UID: "1", At: time.Now()}},
			"an invalid lesson":                 {hello, revision.State{UID: "1", At: time.Now(), Adaptive: decide.Adaptive{Phase: 200}}},
			"an invalid load": {hello, revision.State{UID: "1", At: time.Now(),
				Windows: decide.Windows{{First: time.Now().Unix(), Values: []float64{math.NaN()}}}}},
		} {
			before := w.engine.Refused()[InvalidState]
			w.engine.Import(map[Key]revision.State{c.key: c.state}, 0)
			synctest.Wait()
			if w.engine.Refused()[InvalidState] != before+1 {
				t.Errorf("%s: not counted as refused", name)
			}
		}
	})
}

func TestWhatNobodyAsksForIsForgotten(t *testing.T) {
	play(t, spec(), revision.Counts{Ready: 2}, func(t *testing.T, w *world) {
		w.mutex.Lock()
		delete(w.specs, hello)
		w.mutex.Unlock()
		w.engine.Changed(hello)
		synctest.Wait()
		time.Sleep(3 * keepLeft)
		if handed := w.engine.Export(func(Key) bool { return true }); len(handed) != 0 {
			t.Errorf("after %s: %+v", 3*keepLeft, handed)
		}
	})
}
