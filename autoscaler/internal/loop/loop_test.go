package loop

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
)

var hello = Key{Namespace: "default", Name: "hello-00001"}

// world plays everything around the loop: what it knows of the cluster, and what it was ordered to
// do.
type world struct {
	mutex  sync.Mutex
	specs  map[Key]*Spec
	counts map[Key]revision.Counts
	orders []Order
	scrape func() revision.Scrape
	// takes, if set, is how long the next scrape takes.
	takes   func() time.Duration
	answer  zero.Probe
	probes  int
	scrapes int
	engine  *Engine
}

func (w *world) Spec(k Key) *Spec { w.mutex.Lock(); defer w.mutex.Unlock(); return w.specs[k] }
func (w *world) Count(k Key) revision.Counts {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.counts[k]
}
func (w *world) Act(o Order)  { w.mutex.Lock(); defer w.mutex.Unlock(); w.orders = append(w.orders, o) }
func (w *world) scraped() int { w.mutex.Lock(); defer w.mutex.Unlock(); return w.scrapes }
func (w *world) lastOrder() Order {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.orders[len(w.orders)-1]
}
func (w *world) ready(k Key, n int32) {
	w.mutex.Lock()
	w.counts[k] = revision.Counts{Ready: n}
	w.mutex.Unlock()
	w.engine.Changed(k)
}
func (w *world) Scrape(_ Key, _ time.Duration, done func(revision.Scrape)) {
	w.mutex.Lock()
	w.scrapes++
	result, takes := w.scrape(), time.Duration(0)
	if w.takes != nil {
		takes = w.takes()
	}
	w.mutex.Unlock()
	time.AfterFunc(takes, func() { done(result) })
}
func (w *world) Probe(_ Key, _ bool, done func(zero.Probe)) {
	w.mutex.Lock()
	w.probes++
	answer := w.answer
	w.mutex.Unlock()
	go done(answer)
}

// written returns the scales that were ordered, in order, without repetitions.
func (w *world) written() []int32 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var all []int32
	for _, o := range w.orders {
		if o.Scale {
			all = append(all, o.Replicas)
		}
	}
	return slices.Compact(all)
}

func spec() *Spec {
	return &Spec{Target: Target{"apps/v1", "Deployment", "hello-00001-deployment"}, Service: "hello", Found: &revision.State{Desired: -1},
		Config: revision.Config{UID: "1", Generation: 1, BudgetOwner: "default/hello", Rules: &revision.Rules{
			Formula: decide.Config{Total: 10, Target: 7, ContainerConcurrency: 10, TargetBurstCapacity: 211, ActivatorCapacity: 100, MaxScaleUpRate: 1000,
				MaxScaleDownRate: 2, PanicThreshold: 2, StableWindow: 60 * time.Second, Reachable: true},
			Zero: zero.Config{Initial: 1, ScaleToZero: true, StableWindow: 60 * time.Second, Grace: 30 * time.Second,
				ProgressDeadline: 600 * time.Second, PathHold: 60 * time.Second},
			PanicWindow: 6 * time.Second, Scraped: true}}}
}

// atZero is the spec of a revision that was scaled to zero an hour ago.
func atZero() *Spec {
	s := spec()
	s.Found = &revision.State{Desired: 0, Zero: zero.State{Active: zero.No, ActiveReason: zero.NoTraffic, Initialized: true, Proxied: true}}
	return s
}

// play runs a test in a bubble of virtual time around one engine.
func play(t *testing.T, s *Spec, counts revision.Counts, script func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{specs: map[Key]*Spec{hello: s}, counts: map[Key]revision.Counts{hello: counts}, scrape: func() revision.Scrape { return revision.Scrape{} }, answer: zero.ProbedActivator}
		w.engine = New(Options{Shards: 2, Source: w, Pods: w, Actor: w, Scraper: w, Prober: w, Budget: &revision.Budget{},
			Elsewhere: func(k Key) bool { return k.Name == "by-cpu" }, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { w.engine.Run(ctx); close(done) }()
		w.engine.Changed(hello)
		synctest.Wait()
		script(t, w)
		cancel()
		<-done
	})
}

func (w *world) report(t *testing.T, reporter string, concurrency, queued float64) {
	t.Helper()
	err := w.engine.Report([]Sample{{Key: hello, Arrived: time.Now(), Sample: revision.Sample{Reporter: reporter, Report: decide.Report{Concurrency: concurrency, RequestsPerSecond: concurrency, Queued: queued},
		Timestamp: time.Now().UnixMilli()}}})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func expectWritten(t *testing.T, w *world, want ...int32) {
	t.Helper()
	if got := w.written(); !slices.Equal(got, want) {
		t.Fatalf("written %v, want %v; last reason: %s", got, want, w.lastOrder().Reason())
	}
}

func TestAHeldRequestAtZeroIsAnsweredWithAPodAtOnce(t *testing.T) {
	play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
		expectWritten(t, w)
		time.Sleep(time.Hour) // virtual
		began := time.Now()
		w.report(t, "activator-1", 0, 1)
		expectWritten(t, w, 1)
		if o := w.lastOrder(); !o.Urgent || o.Rule() != decide.RuleQueue.String() || o.Since.Sub(began) > 0 {
			t.Errorf("order %+v, decided %s after the request", o, o.Since.Sub(began))
		}
		w.report(t, "activator-1", 0, 30)
		expectWritten(t, w, 1, 5)
	})
}

func TestAQueueBeyondTheThresholdRaisesWithoutATick(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 1, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		w.mutex.Lock()
		w.scrape = func() revision.Scrape { return revision.Scrape{Report: decide.Report{Concurrency: 3}} }
		w.mutex.Unlock()
		time.Sleep(61 * time.Second)
		began := time.Now()
		w.engine.Report([]Sample{{Key: hello, Sample: revision.Sample{Reporter: "hello-pod", Report: decide.Report{Concurrency: 10, Queued: 90, OnePod: true}}}})
		synctest.Wait()
		expectWritten(t, w, 15)
		if o := w.lastOrder(); o.Since.Sub(began) > 0 || !o.Decision.Panicking {
			t.Errorf("decided %s later, panicking %v", o.Since.Sub(began), o.Decision.Panicking)
		}
	})
}

func TestIdleGoesToZeroInTwoSteps(t *testing.T) {
	play(t, spec(), revision.Counts{NotReady: 1, Pending: 1}, func(t *testing.T, w *world) {
		time.Sleep(3 * time.Second)
		w.ready(hello, 1)
		synctest.Wait()
		if s := w.lastOrder().Status; s.Active != zero.Yes || !s.Initialized || !s.Populated || s.Actual != 1 {
			t.Fatalf("with its pod ready: %+v", s)
		}
		time.Sleep(59 * time.Second)
		if got := w.written(); slices.Contains(got, 0) {
			t.Fatalf("zero before a stable window: %v", got)
		}
		w.mutex.Lock()
		w.answer = zero.ProbedOther
		w.mutex.Unlock()
		time.Sleep(30 * time.Second)
		if s := w.lastOrder().Status; s.Active != zero.No || s.Desired != 0 || !s.Proxied {
			t.Fatalf("idle for a stable window: %+v", s)
		}
		if got := w.written(); slices.Contains(got, 0) {
			t.Fatalf("zero while new requests do not reach an activator: %v", got)
		}
		w.mutex.Lock()
		if w.probes < 10 || w.probes > 40 {
			t.Errorf("%d probes in about 27 s, want about one a second", w.probes)
		}
		w.answer = zero.ProbedActivator
		w.mutex.Unlock()
		time.Sleep(4 * time.Second)
		expectWritten(t, w, 1, 0)
		w.ready(hello, 0)
		time.Sleep(time.Minute)
		before := w.scraped()
		time.Sleep(time.Hour)
		if n := w.scraped() - before; n != 0 {
			t.Errorf("%d scrapes of a revision without pods", n)
		}
		expectWritten(t, w, 1, 0)
	})
}

func TestFailedScrapesLowerNothing(t *testing.T) {
	s := spec()
	play(t, s, revision.Counts{}, func(t *testing.T, w *world) {
		load, failed := 35.0, false
		w.mutex.Lock()
		w.scrape = func() revision.Scrape {
			return revision.Scrape{Failed: failed, Report: decide.Report{Concurrency: load}}
		}
		w.mutex.Unlock()
		w.ready(hello, 1)
		time.Sleep(10 * time.Second)
		w.ready(hello, 5)
		time.Sleep(100 * time.Second)
		expectWritten(t, w, 5)
		w.mutex.Lock()
		load, failed = 0, true
		w.mutex.Unlock()
		time.Sleep(time.Hour)
		expectWritten(t, w, 5)
		w.mutex.Lock()
		load, failed = 7, false
		w.mutex.Unlock()
		time.Sleep(2 * time.Minute)
		if got := w.written(); got[len(got)-1] >= 5 {
			t.Errorf("scrapes work again and show less load: %v", got)
		}
	})
}

func TestARestartedAutoscalerKeepsWhatItFinds(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 9, Zero: zero.State{Active: zero.Yes, ActiveSince: time.Now().Add(-24 * time.Hour), Initialized: true}}
	play(t, s, revision.Counts{Ready: 9}, func(t *testing.T, w *world) {
		w.mutex.Lock()
		w.scrape = func() revision.Scrape { return revision.Scrape{Report: decide.Report{Concurrency: 7}} }
		w.mutex.Unlock()
		time.Sleep(59 * time.Second)
		if got := w.written(); len(got) > 0 && slices.Min(got) < 9 {
			t.Errorf("lowered within the first window: %v", got)
		}
		if s := w.lastOrder().Status; s.Desired != 9 || s.Actual != 9 || s.Active != zero.Yes {
			t.Errorf("status after a restart: %+v", s)
		}
		w.mutex.Lock()
		w.scrape = func() revision.Scrape { return revision.Scrape{Report: decide.Report{Concurrency: 210}} }
		w.mutex.Unlock()
		time.Sleep(5 * time.Second)
		if got := w.written(); len(got) == 0 || got[len(got)-1] < 18 {
			t.Errorf("five seconds after the load rose to three times what the pods are for: %v", got)
		}
	})
}

func TestARestartDoesNotWakeOrForgetWhatSleeps(t *testing.T) {
	play(t, atZero(), revision.Counts{}, func(t *testing.T, w *world) {
		time.Sleep(10 * time.Minute)
		expectWritten(t, w)
		if s := w.lastOrder().Status; s.Desired != 0 || s.Active != zero.No || s.ActiveReason != zero.NoTraffic {
			t.Errorf("status: %+v", s)
		}
	})
}

func TestABudgetDelaysButNeverRefusesAWakeUp(t *testing.T) {
	s := atZero()
	s.ScaleUp = revision.Rate{PerSecond: 10, Burst: 20}
	play(t, s, revision.Counts{}, func(t *testing.T, w *world) {
		w.report(t, "activator-1", 0, 700) // asks for 100
		expectWritten(t, w, 20)
		time.Sleep(1500 * time.Millisecond)
		w.report(t, "activator-1", 700, 700)
		if got := w.written(); got[len(got)-1] < 25 || got[len(got)-1] > 40 {
			t.Errorf("after another 1.5 s at 10 pods a second: %v", got)
		}
	})
}

func TestARunawayDoesNotStarveTheWakeUpOfAThousandOthers(t *testing.T) {
	runaway := atZero()
	runaway.BudgetOwner, runaway.ScaleUp = "default/runaway", revision.Rate{PerSecond: 50, Burst: 500}
	play(t, runaway, revision.Counts{}, func(t *testing.T, w *world) {
		const others = 1000
		samples := make([]Sample, 0, others)
		w.mutex.Lock()
		for i := range others {
			key, s := Key{Namespace: "default", Name: fmt.Sprintf("other-%04d", i)}, *atZero()
			s.BudgetOwner, s.ScaleUp = key.String(), runaway.ScaleUp
			w.specs[key] = &s
			samples = append(samples, Sample{Key: key, Arrived: time.Now(), Sample: revision.Sample{Reporter: "activator-1", Report: decide.Report{Queued: 1}}})
		}
		w.mutex.Unlock()
		for _, sample := range samples {
			w.engine.Changed(sample.Key)
		}
		synctest.Wait()
		for range 3 {
			w.report(t, "activator-2", 0, 1e6)
			time.Sleep(time.Second)
		}
		began := time.Now()
		if err := w.engine.Report(samples); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		woken, most := map[Key]bool{}, int32(0)
		w.mutex.Lock()
		for _, o := range w.orders {
			switch {
			case !o.Scale:
			case o.Key == hello:
				most = max(most, o.Replicas)
			case o.Replicas == 1 && o.Urgent && !o.Decision.Time.After(began):
				woken[o.Key] = true
			}
		}
		w.mutex.Unlock()
		if len(woken) != others {
			t.Errorf("%d of %d were woken at once", len(woken), others)
		}
		// The bucket, and what flowed in since the first report.
		if most < 500 || most > 500+50*4 {
			t.Errorf("the runaway was granted %d pods", most)
		}
	})
}

func TestAScaleSomebodyElseWroteIsLookedInto(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 1, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		w.mutex.Lock()
		w.scrape = func() revision.Scrape { return revision.Scrape{Report: decide.Report{Concurrency: 3}} }
		w.mutex.Unlock()
		time.Sleep(5 * time.Second)
		w.ready(hello, 4)
		time.Sleep(30 * time.Second)
		verified := 0
		w.mutex.Lock()
		defer w.mutex.Unlock()
		for _, o := range w.orders {
			if o.Verify {
				verified++
			}
		}
		if verified < 1 || verified > 3 {
			t.Errorf("%d verifications in 30 s, want one every ten", verified)
		}
	})
}

func TestHistoryKeepsRunsOfLikeDecisions(t *testing.T) {
	s := spec()
	s.Found = &revision.State{Desired: 1, Zero: zero.State{Active: zero.Yes, Initialized: true}}
	play(t, s, revision.Counts{Ready: 1}, func(t *testing.T, w *world) {
		time.Sleep(20 * time.Second)
		h, ok := w.engine.History(hello)
		if !ok || len(h) == 0 || len(h) > 6 {
			t.Fatalf("%d entries: %+v", len(h), h)
		}
		last := h[len(h)-1]
		if last.Times < 5 || last.Rule() == "" || last.Reason() == "" {
			t.Errorf("last entry %+v, %q", last, last.Reason())
		}
		if _, ok := w.engine.History(Key{Name: "unheard-of"}); ok {
			t.Error("a history of a revision nobody knows")
		}
		w.mutex.Lock()
		w.specs[hello] = nil
		w.mutex.Unlock()
		w.engine.Changed(hello)
		synctest.Wait()
		if _, ok := w.engine.History(hello); ok {
			t.Error("a deleted revision still has a history")
		}
	})
	var h history
	if list := h.list(); len(list) != 0 {
		t.Errorf("before the first decision: %+v", list)
	}
	for i := range 3 * HistoryLength {
		h.add(revision.Explanation{Decision: decide.Decision{Desired: int32(i)}})
	}
	list := h.list()
	if len(list) != HistoryLength || list[0].Decision.Desired != 2*HistoryLength || list[HistoryLength-1].Decision.Desired != 3*HistoryLength-1 {
		t.Errorf("%d entries from %d to %d", len(list), list[0].Decision.Desired, list[len(list)-1].Decision.Desired)
	}
}
