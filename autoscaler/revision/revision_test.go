package revision

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/wire"
)

var epoch = time.Unix(1_700_000_000, 0)

func config() *Config {
	return &Config{UID: "1", Generation: 1, BudgetOwner: "default/hello", Rules: &Rules{Scraped: true, PanicWindow: 6 * time.Second,
		Formula: decide.Config{Total: 10, Target: 7, ContainerConcurrency: 10, TargetBurstCapacity: 211, ActivatorCapacity: 100,
			MaxScaleUpRate: 1000, MaxScaleDownRate: 2, PanicThreshold: 2, StableWindow: time.Minute, Reachable: true},
		Zero: zero.Config{Initial: 1, ScaleToZero: true, StableWindow: time.Minute, Grace: 30 * time.Second,
			ProgressDeadline: 10 * time.Minute, PathHold: time.Minute}}}
}

// asleep is the status of a revision that was scaled to zero.
func asleep() State {
	return State{Zero: zero.State{Active: zero.No, ActiveReason: zero.NoTraffic, Initialized: true, Proxied: true}}
}

// A service that wakes often has pods with new names each time.
func TestASleepingRevisionRemembersNoReporters(t *testing.T) {
	r := New(config(), Counts{}, epoch)
	r.Import(asleep(), 0, epoch)
	for i := range 20 {
		now := epoch.Add(time.Duration(i) * 5 * time.Minute)
		r.Record(Sample{Reporter: fmt.Sprint("pod-", i)}, now)
		r.Rest(now)
	}
	r.Rest(epoch.Add(2 * time.Hour))
	if r.lively != nil {
		t.Errorf("it still has %+v hours after the last one said anything", r.lively)
	}
}

// A step of the way to zero has its own time: it is not taken early, and it does not keep other
// revisions from being served.
func TestAStepIsNotTakenEarly(t *testing.T) {
	r := New(config(), Counts{Ready: 1}, epoch)
	r.Ring(epoch, epoch)
	r.StartScrapesAt(epoch.Add(time.Hour))
	r.clocks.step = epoch.Add(2 * time.Millisecond)
	soon := 5 * time.Millisecond
	if r.DueWith(epoch, epoch.Add(soon)) {
		t.Error("due before its time")
	}
	if _, decide := r.Ring(epoch, epoch.Add(soon)); decide {
		t.Error("decided before its time")
	}
	if at := epoch.Add(2 * time.Millisecond); !r.DueWith(at, at.Add(soon)) {
		t.Error("not due at its time")
	} else if _, decide := r.Ring(at, at.Add(soon)); !decide {
		t.Error("not decided at its time")
	}
}

func TestSampleSize(t *testing.T) {
	for n, want := range map[int]int{0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 10: 7, 100: 14, 10_000: 16} {
		if got := SampleSize(n); got != want {
			t.Errorf("of %d pods %d, want %d", n, got, want)
		}
	}
}

func TestASampleStandsForAllPods(t *testing.T) {
	sample := []wire.Stat{{AverageConcurrent: 5, AverageProxiedConcurrent: 1, Requests: 10, ProxiedRequests: 4, Queued: 2, Completed: 7, BusySeconds: 1.5},
		{AverageConcurrent: 1, AverageProxiedConcurrent: 3}} // counted at different times
	sample[1].Busy = wire.BusyTold
	want := Scrape{Busy: 3, Report: decide.Report{Concurrency: 12, RequestsPerSecond: 18, ProxiedConcurrency: 6, ProxiedRequests: 12, Queued: 6}, Completed: 21, BusySeconds: 4.5, Ready: 6}
	if got := Extrapolate(sample, 6); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Extrapolate(nil, 0); !reflect.DeepEqual(got, Scrape{}) {
		t.Errorf("without pods: %+v", got)
	}
}

func TestOldPodsAreAskedFirst(t *testing.T) {
	var all []time.Time
	for i := range 40 {
		started := epoch
		if i%4 == 0 {
			started = epoch.Add(-time.Hour)
		}
		all = append(all, started)
	}
	OldestFirst(all, func(p *time.Time) time.Time { return *p }, epoch.Add(-time.Minute), rand.Shuffle)
	for i, started := range all {
		if old := started.Before(epoch); old != (i < 10) {
			t.Fatalf("pod %d of 40 is old: %v", i, old)
		}
	}
}

// The only pod stops being ready while it is at a long request, which nobody but the pod knows of.
func TestALongRequestInAPodThatIsNotReadyAnyMoreKeepsIt(t *testing.T) {
	for behaviour, c := range map[string]struct {
		counts Counts
		load   float64
		fails  bool
		want   int32
	}{
		"a pod that was ready, at a request":           {Counts{NotReady: 1, Lapsed: 1}, 1, false, 1},
		"a pod that was ready, at none":                {Counts{NotReady: 1, Lapsed: 1}, 0, false, 0},
		"a pod that was ready and does not answer":     {Counts{NotReady: 1, Lapsed: 1}, 0, true, 0},
		"a pod that is starting again, so it has none": {Counts{NotReady: 1}, 1, false, 0},
	} {
		t.Run(behaviour, func(t *testing.T) {
			r := New(config(), Counts{Ready: 1}, epoch)
			r.Import(State{Desired: 1, Zero: zero.State{Active: zero.Yes, Initialized: true}}, 0, epoch)
			scale := int32(1)
			for now := epoch; now.Before(epoch.Add(30 * time.Minute)); now = now.Add(500 * time.Millisecond) {
				if now.Equal(epoch.Add(2 * time.Minute)) {
					r.SetCounts(c.counts)
				}
				r.Rest(now)
				scrape, decide := r.Ring(now, now)
				switch {
				case scrape && now.Before(epoch.Add(2*time.Minute)):
					r.Scraped(load(1), now)
				case scrape:
					answer := load(c.load)
					answer.Failed = c.fails
					r.Scraped(answer, now)
				}
				if !decide {
					continue
				}
				out := r.Decide(now, false, nil)
				if out.Scale {
					scale = out.Replicas
				}
				if out.Probe {
					r.Probed(zero.ProbedActivator, out.Epoch)
				}
			}
			if scale != c.want {
				t.Errorf("scaled to %d, want %d", scale, c.want)
			}
		})
	}
}

func load(concurrency float64) Scrape {
	return Scrape{Report: decide.Report{Concurrency: concurrency}}
}

// A new revision that is to have no pod is at zero with its first status, and that is the only one.
func TestARevisionThatStartsWithoutPodsIsToldOfOnce(t *testing.T) {
	c := config()
	c.Zero.Initial = 0
	r := New(c, Counts{}, epoch)
	r.Import(State{Desired: zero.Unknown}, 0, epoch)
	written := 0
	for now := epoch; now.Before(epoch.Add(2 * time.Minute)); now = now.Add(50 * time.Millisecond) {
		out := r.Decide(now, now.Equal(epoch), nil)
		if out.Probe {
			r.Probed(zero.ProbedActivator, out.Epoch)
		}
		if s := out.Status; s.Active != zero.No || !s.Initialized || !s.Proxied || s.Desired != 0 {
			t.Fatalf("after %s it is %+v", now.Sub(epoch), s)
		}
		if out.Changed && !out.Scale {
			written++
		}
	}
	if written != 1 {
		t.Errorf("its status was written %d times", written)
	}
}

// A revision at zero gets a request, and a pod after some time.
func TestAWakeIsOnlyInTheStatusIfItTakesLong(t *testing.T) {
	for behaviour, c := range map[string]struct {
		ready time.Duration
		want  []zero.Condition
	}{
		"soon": {time.Second, []zero.Condition{zero.Yes}},
		"late": {7 * time.Second, []zero.Condition{zero.Undecided, zero.Yes}},
	} {
		t.Run(behaviour, func(t *testing.T) {
			r := New(config(), Counts{}, epoch)
			r.Import(asleep(), 0, epoch)
			r.Decide(epoch, false, nil)
			var told []zero.Condition
			scales := 0
			for now := epoch; now.Before(epoch.Add(20 * time.Second)); now = now.Add(100 * time.Millisecond) {
				if now.Sub(epoch) == c.ready {
					r.SetCounts(Counts{Ready: 1})
				}
				r.Record(Sample{Reporter: "activator", Report: decide.Report{Queued: 1, Concurrency: 1}}, now)
				out := r.Decide(now, false, nil)
				if out.Scale {
					scales++
				}
				if active := out.Status.Active; out.Changed && !out.Held && (len(told) == 0 || told[len(told)-1] != active) {
					told = append(told, active)
				}
				if out.Held && (out.Status.Active != zero.Undecided || now.Sub(epoch) > turnWithin) {
					t.Fatalf("after %s %+v is held", now.Sub(epoch), out.Status)
				}
			}
			if !slices.Equal(told, c.want) || scales != 1 {
				t.Errorf("told %v with %d scales, want %v", told, scales, c.want)
			}
		})
	}
}

// The last pod of a revision goes. Where activators are in the path already, nobody has to know
// before it has gone.
func TestTheWayToZeroIsOnlyInTheStatusIfItTakesLong(t *testing.T) {
	for behaviour, c := range map[string]struct {
		proxied bool
		gone    time.Duration // after the scale was written
		want    []int32       // pods that each status tells of
	}{
		"soon, past activators": {true, 100 * time.Millisecond, []int32{0}},
		"late, past activators": {true, 5 * time.Second, []int32{1, 0}},
		"not past activators":   {false, 100 * time.Millisecond, []int32{1, 0}},
	} {
		t.Run(behaviour, func(t *testing.T) {
			cfg := config()
			if !c.proxied {
				cfg.Formula.TargetBurstCapacity = 0
			}
			cfg.Zero.AlwaysProxied = true // nobody answers a probe here
			r := New(cfg, Counts{Ready: 1}, epoch)
			var told []int32
			var down time.Time
			for now := epoch; now.Before(epoch.Add(5 * time.Minute)); now = now.Add(100 * time.Millisecond) {
				if !down.IsZero() && now.Sub(down) >= c.gone {
					r.SetCounts(Counts{})
				}
				r.Scraped(load(0), now)
				out := r.Decide(now, false, nil)
				if out.Scale && out.Replicas == 0 {
					down = now
				}
				if out.Held && now.Sub(r.zero.ActiveSince) > turnWithin {
					t.Fatalf("%+v is held", out.Status)
				}
				if out.Changed && !out.Held && out.Status.Active == zero.No {
					told = append(told, out.Status.Actual)
				}
			}
			if told = slices.Compact(told); down.IsZero() || !slices.Equal(told, c.want) {
				t.Errorf("told of %v pods, want %v; scaled down: %v", told, c.want, down)
			}
		})
	}
}

// A process ends after it has scaled to zero and before its status says so. The last pod goes while
// the next one has the revision, and a request comes.
func TestARevisionWakesWhoseWayToZeroNobodyToldOf(t *testing.T) {
	for how, handed := range map[string]bool{"from the status": false, "handed over": true} {
		t.Run(how, func(t *testing.T) {
			r := New(config(), Counts{Ready: 1}, epoch)
			told := State{Desired: 1, Zero: zero.State{Active: zero.Yes, ActiveSince: epoch.Add(-time.Hour), Initialized: true, Proxied: true}}
			r.Import(told, 0, epoch)
			r.Decide(epoch, true, nil)
			now := epoch.Add(100 * time.Millisecond)
			if handed {
				left := New(config(), Counts{Ready: 1}, epoch)
				left.Import(told, 0, epoch)
				left.Found(0)
				if !r.Import(left.Export(now), 0, now) {
					t.Fatal("the state was not taken")
				}
			}
			r.SetCounts(Counts{})
			r.Record(Sample{Reporter: "activator", Report: decide.Report{Concurrency: 1, Queued: 1}, OutOfTurn: true}, now)
			out := r.Decide(now, true, nil)
			if !out.Changed || out.Replicas != 1 || !out.Verify && (!out.Scale || out.From != -1) {
				t.Errorf("the scale is not read: %d to %d, %v, %v", out.From, out.Replicas, out.Scale, out.Verify)
			}
			for range 30 {
				now = now.Add(100 * time.Millisecond)
				if out := r.Decide(now, true, nil); out.Verify {
					t.Error("the scale is read again at once")
				}
			}
		})
	}
}
