package revision

import (
	"slices"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/standby"
)

// village is a revision with pods that do what they are told at once.
type village struct {
	*Revision
	t      testing.TB
	now    time.Time
	counts Counts
	load   float64 // requests in flight, all through activators
	rate   float64 // of requests
	busy   int32   // pods whose programs say that they are busy
	deaf   bool    // no pod answers
	quiet  bool    // an activator without requests reports that once
	told   bool    // and has
	keeps  bool    // what a revision at zero drops
	// written counts scales, woken and slept pods.
	written, woken, slept int32
	last                  Outcome
	budget                *Budget
}

func newVillage(t testing.TB, change func(*Config)) *village {
	c := config()
	c.Standby = &Standby{Config: keep.Config{Worth: keep.DefaultWorth, ColdStart: time.Second, Memory: 64, MaxTime: keep.MaxTime, MaxPods: -1},
		After: 10 * time.Second, Level: standby.Compressed}
	if change != nil {
		change(c)
	}
	v := &village{Revision: New(c, Counts{}, epoch), t: t, now: epoch}
	v.Import(asleep(), 0, epoch)
	return v
}

// run lets the time pass, a second at a time.
func (v *village) run(d time.Duration) {
	for end := v.now.Add(d); v.now.Before(end); v.now = v.now.Add(time.Second) {
		report := Sample{Reporter: "activator"}
		report.Report.Concurrency, report.Report.RequestsPerSecond = v.load, v.rate
		if !v.quiet || v.load > 0 || !v.told {
			v.Record(report, v.now)
		}
		v.told = v.load == 0
		scrape, decide := v.Ring(v.now, v.now)
		if scrape {
			v.Scraped(Scrape{Failed: v.deaf, Busy: min(v.busy, v.counts.Ready), Ready: int(v.counts.Ready)}, v.now)
		}
		if decide {
			v.obey(v.Decide(v.now, false, v.budget))
		}
		v.obey(v.Decide(v.now, true, v.budget))
		had := v.lively
		v.Rest(v.now)
		if v.keeps {
			v.lively = had
		}
	}
}

func (v *village) obey(out Outcome) {
	if out.PodOrders.Wake > 0 && out.PodOrders.Sleep > 0 {
		v.t.Fatalf("wake %d and sleep %d", out.PodOrders.Wake, out.PodOrders.Sleep)
	}
	if out.Scale {
		v.written++
		for v.counts.Ready+v.counts.Asleep > out.Replicas {
			if v.counts.Asleep > 0 {
				v.counts.Asleep--
			} else {
				v.counts.Ready--
			}
		}
		v.counts.Ready = out.Replicas - v.counts.Asleep
	}
	if out.Probe {
		v.Probed(zero.ProbedActivator, out.Epoch)
	}
	v.counts.Ready += out.PodOrders.Wake - out.PodOrders.Sleep
	v.counts.Asleep += out.PodOrders.Sleep - out.PodOrders.Wake
	v.woken += out.PodOrders.Wake
	v.slept += out.PodOrders.Sleep
	if v.counts.Ready < 0 || v.counts.Asleep < 0 {
		v.t.Fatalf("told to do what cannot be done: %+v leads to %+v", out.PodOrders, v.counts)
	}
	v.SetCounts(v.counts)
	v.last = out
}

func (v *village) want(what string, ready, asleep int32) {
	v.t.Helper()
	if v.counts.Ready != ready || v.counts.Asleep != asleep {
		v.t.Fatalf("%s: %d ready, %d asleep, want %d and %d (%s; %+v)", what, v.counts.Ready, v.counts.Asleep, ready, asleep, v.last.Reason(), v.last.Keep)
	}
}

func TestAPodThatNobodyNeedsSleepsAndWakesWithoutAWrite(t *testing.T) {
	v := newVillage(t, nil)
	v.want("at zero", 0, 0)
	v.load = 1
	v.run(5 * time.Second)
	v.want("at work", 1, 0)
	v.load = 0
	v.run(3 * time.Minute)
	v.want("idle", 0, 1)
	if v.last.Status.Asleep != 1 || v.last.Status.Actual != 0 {
		t.Errorf("the status says %+v", v.last.Status)
	}
	written := v.written
	v.load = 1
	v.run(5 * time.Second)
	v.want("at work again", 1, 0)
	if v.written != written {
		t.Errorf("the scale was written %d times to wake a pod", v.written-written)
	}
	v.load = 0
	v.run(5 * time.Hour)
	v.want("forgotten", 0, 0)
}

// A stream is one request: its rate is 0 while it is open. Its pod must not be told to sleep, and
// nobody is to take it for idle.
func TestAPodWithARequestInFlightStaysAwakeWhateverTheMetric(t *testing.T) {
	for name, others := range map[string][]decide.Other{"rps": nil, "rps and a told metric": {{Name: "waiting", Metric: decide.Told, Target: 5}}} {
		t.Run(name, func(t *testing.T) {
			v := newVillage(t, func(c *Config) {
				c.Formula.Metric, c.Formula.Total, c.Formula.Target, c.Formula.Others = decide.RequestsPerSecond, 200, 150, others
			})
			v.load, v.rate = 1, 1
			v.run(2 * time.Second)
			v.rate = 0
			v.run(10 * time.Minute)
			v.want("a stream", 1, 0)
			if v.slept > 0 {
				t.Errorf("told to sleep %d times", v.slept)
			}
			if kept := v.history.Export(); kept.Needed != 1 {
				t.Errorf("%d pods are needed, want 1: %+v", kept.Needed, kept)
			}
			v.load = 0
			v.run(time.Minute)
			v.want("its end", 0, 1)
		})
	}
}

func TestScalingUpWakesPodsBeforeItAsksForNewOnes(t *testing.T) {
	v := newVillage(t, nil)
	for range 3 { // spares are kept once it is known that they are needed
		v.load = 35
		v.run(30 * time.Second)
		v.want("a burst", 5, 0)
		v.load = 1
		v.run(2 * time.Minute)
	}
	if v.counts.Asleep == 0 {
		t.Fatalf("no spares after three bursts: %+v", v.counts)
	}
	written, spares := v.written, v.counts.Asleep
	v.load = 35
	v.run(2 * time.Second)
	if v.woken < spares || v.counts.Ready != 5 || v.written > written+1 {
		t.Errorf("%d woken of %d, %+v, %d writes", v.woken, spares, v.counts, v.written-written)
	}
}

// A request that came through an activator wakes its pod, which says so a little later. Its load is
// known before. No other pod is to wake for it, and those that are missing after that are.
func TestAPodThatARequestWakesIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		load  float64
		tells int32 // pods that woke for requests
		woken int32 // pods that are told to wake
	}{
		"one request, its pod tells":            {load: 1, tells: 1},
		"one request, no pod tells":             {load: 1, woken: 1},
		"requests for two pods, both tell":      {load: 14, tells: 2},
		"requests for two pods, one tells":      {load: 14, tells: 1, woken: 1},
		"requests for three pods, nobody tells": {load: 25, woken: 3},
		"requests for more pods than there are": {load: 95, tells: 1, woken: 2},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVillage(t, func(c *Config) {
				c.Standby.Always, c.Standby.MaxPods, c.Standby.MaxTime, c.Zero.Max = true, 3, time.Hour, 3
			})
			v.load = 25
			v.run(time.Minute)
			v.load = 0
			v.run(2 * time.Minute)
			v.want("idle", 0, 3)
			woken, begin := v.woken, v.now
			report := Sample{Reporter: "activator"}
			report.Report.Concurrency = c.load
			for ; v.now.Before(begin.Add(wakeAfter)); v.now = v.now.Add(10 * time.Millisecond) {
				if v.now.Equal(begin.Add(30 * time.Millisecond)) {
					v.counts.Ready, v.counts.Asleep = v.counts.Ready+c.tells, v.counts.Asleep-c.tells
					v.SetCounts(v.counts)
				}
				v.Record(report, v.now)
				v.obey(v.Decide(v.now, true, v.budget))
				if v.woken > woken {
					t.Fatalf("%d are told to wake after %s", v.woken-woken, v.now.Sub(begin))
				}
				v.Rest(v.now)
			}
			if due := v.Due().Sub(begin); c.woken > 0 && due > wakeAfter {
				t.Errorf("looks again after %s", due)
			}
			for at := later(v.Due(), v.now); at.Before(begin.Add(2 * wakeAfter)); at = later(v.Due(), at) {
				if _, decide := v.Ring(at, at); decide {
					v.obey(v.Decide(at, false, v.budget))
				}
				v.Rest(at)
			}
			if got := v.woken - woken; got != c.woken {
				t.Errorf("%d are told to wake, want %d (%+v; %s)", got, c.woken, v.counts, v.last.Reason())
			}
		})
	}
}

func TestStandbyThatIsSwitchedOffWakesThePods(t *testing.T) {
	v := newVillage(t, nil)
	v.load = 1
	v.run(5 * time.Second)
	v.load = 0
	v.run(3 * time.Minute)
	v.want("idle", 0, 1)
	off := *v.config
	off.Standby = nil
	v.Update(&off)
	out := v.Decide(v.now, false, v.budget)
	if out.PodOrders.Wake != 1 || out.PodOrders.Sleep != 0 {
		t.Errorf("%+v", out.PodOrders)
	}
}

// Before the load is known, nobody is put to sleep.
func TestNobodySleepsBeforeTheLoadIsKnown(t *testing.T) {
	v := newVillage(t, nil)
	r := New(v.config, Counts{Ready: 3}, epoch)
	state := asleep()
	state.Desired = 3
	r.Import(state, 0, epoch)
	if out := r.Decide(epoch, true, nil); out.PodOrders.Sleep != 0 {
		t.Errorf("%+v", out.PodOrders)
	}
}

// A quota may keep a pod that woke from its resources for ever. That is tried at once, and then
// ever more rarely.
func TestPodsThatWokeGetTheirResourcesOrTheyAreTriedMoreRarely(t *testing.T) {
	v := newVillage(t, nil)
	var at []int
	for second := range 400 {
		counts := Counts{Ready: 3}
		switch {
		case second >= 300:
			counts.Shrunk = 1 // it slept again
		case second >= 250:
		case second >= 200:
			counts.Shrunk = 2
		default:
			counts.Shrunk = 1
		}
		v.SetCounts(counts)
		if v.Decide(epoch.Add(time.Duration(second)*time.Second), true, nil).PodOrders.Grow {
			at = append(at, second)
		}
	}
	want := []int{0, 2, 6, 14, 30, 62, 122, 182, 200, 202, 206, 214, 230, 300, 302, 306, 314, 330, 362}
	if !slices.Equal(at, want) {
		t.Errorf("tried at %v, want %v", at, want)
	}
}

func TestPodsThatMaySleepAreAskedNowAndThen(t *testing.T) {
	v := newVillage(t, nil)
	v.SetCounts(Counts{Ready: 1, NotReady: 1, Lapsed: 1})
	looks := 0
	for i := range 20 {
		if v.Decide(epoch.Add(time.Duration(i)*time.Second), true, nil).PodOrders.Look {
			looks++
		}
	}
	if looks != 10 {
		t.Errorf("%d looks at a lapsed pod in 20 s", looks)
	}
	v.SetCounts(Counts{Ready: 1, Asleep: 1})
	looks = 0
	for i := range 120 {
		if v.Decide(epoch.Add(time.Minute+time.Duration(i)*time.Second), true, nil).PodOrders.Look {
			looks++
		}
	}
	if looks != 4 {
		t.Errorf("%d looks at a sleeping pod in two minutes", looks)
	}
}

func TestWhatIsKnownOfIdleTimesIsHandedOver(t *testing.T) {
	a := newVillage(t, nil)
	for range 5 {
		a.load = 1
		a.run(10 * time.Second)
		a.load = 0
		a.run(4 * time.Minute)
	}
	b := newVillage(t, nil)
	b.SetCounts(a.counts)
	if !b.Import(a.Export(a.now), time.Second, a.now.Add(time.Second)) {
		t.Fatal("the state is not taken")
	}
	at := a.now.Add(10 * time.Second)
	if x, y := a.history.Decide(a.config.Standby.Config, at), b.history.Decide(b.config.Standby.Config, at.Add(time.Second)); x.Keep != y.Keep || x.Keep == 0 {
		t.Errorf("kept %+v, then %+v", x, y)
	}
	bad := a.Export(a.now)
	bad.Keep.Gaps[0][3] = -1
	if b.Import(bad, 0, a.now) {
		t.Error("a negative weight is taken")
	}
}

// daily asks for pods in the second half of each hour.
type daily int32

func (d daily) At(now time.Time) (int32, time.Time) {
	if now.Minute() >= 30 {
		return int32(d), now.Truncate(time.Hour).Add(time.Hour)
	}
	return 0, now.Truncate(time.Hour).Add(30 * time.Minute)
}

func TestSchedulesAskForPods(t *testing.T) {
	for behaviour, c := range map[string]struct {
		change            func(*Config)
		ready, asleep     int32
		laterReady, later int32
	}{
		"min-scale":  {func(c *Config) { c.MinSchedule, c.Standby = daily(3), nil }, 0, 0, 3, 0},
		"standby":    {func(c *Config) { c.Standby.Schedule = daily(2) }, 0, 0, 0, 2},
		"at most":    {func(c *Config) { c.Standby.Schedule, c.Zero.Max = daily(9), 4 }, 0, 0, 0, 4},
		"no more":    {func(c *Config) { c.MinSchedule, c.Zero.Max, c.Standby = daily(9), 4, nil }, 0, 0, 4, 0},
		"both":       {func(c *Config) { c.MinSchedule, c.Standby.Schedule = daily(1), daily(2) }, 0, 0, 1, 2},
		"none of it": {func(c *Config) {}, 0, 0, 0, 0},
	} {
		t.Run(behaviour, func(t *testing.T) {
			v := newVillage(t, c.change)
			v.now = epoch.Truncate(time.Hour).Add(time.Hour + 20*time.Minute)
			v.run(5 * time.Minute)
			v.want("before", c.ready, c.asleep)
			v.run(10 * time.Minute)
			v.want("at the time", c.laterReady, c.later)
			v.run(40 * time.Minute)
			if v.counts.Ready != 0 {
				t.Errorf("%d pods are ready long after the time", v.counts.Ready)
			}
		})
	}
}

func TestABufferIsKeptUnderLoad(t *testing.T) {
	for behaviour, c := range map[string]struct {
		change        func(*Config)
		ready, asleep int32
	}{
		"asleep":              {func(c *Config) { c.Buffer = 3 }, 1, 3},
		"awake":               {func(c *Config) { c.Buffer, c.Standby = 3, nil }, 4, 0},
		"within max-scale":    {func(c *Config) { c.Buffer, c.Zero.Max = 3, 2 }, 1, 1},
		"a count, for a time": {func(c *Config) { c.Standby.Always, c.Standby.MaxPods, c.Standby.MaxTime = true, 2, time.Hour }, 1, 0},
	} {
		t.Run(behaviour, func(t *testing.T) {
			v := newVillage(t, c.change)
			v.load = 1
			v.run(2 * time.Minute)
			v.want("under load", c.ready, c.asleep)
			v.load = 0
			v.run(5 * time.Minute)
			if v.counts.Ready != 0 {
				t.Errorf("%d ready without load", v.counts.Ready)
			}
		})
	}
}

func TestACountIsKeptForItsTime(t *testing.T) {
	v := newVillage(t, func(c *Config) { c.Standby.Always, c.Standby.MaxPods, c.Standby.MaxTime = true, 2, time.Hour })
	v.load = 25
	v.run(time.Minute)
	v.want("under load", 4, 0)
	v.load = 0
	v.run(30 * time.Minute)
	v.want("after half of it", 0, 2)
	v.run(32 * time.Minute)
	v.want("after it", 0, 0)
}

// After a restart only the status is known. The pods that sleep are not deleted for that.
func TestPodsThatSleepSurviveARestart(t *testing.T) {
	a := newVillage(t, nil)
	for range 5 {
		a.load = 1
		a.run(10 * time.Second)
		a.load = 0
		a.run(4 * time.Minute)
	}
	a.want("before", 0, 1)
	gaps, err := keep.ParseText(a.history.Text())
	if err != nil {
		t.Fatal(err)
	}
	b := newVillage(t, nil)
	b.Revision = New(b.config, Counts{NotReady: 1, Lapsed: 1}, a.now)
	b.counts, b.now = Counts{NotReady: 1, Lapsed: 1}, a.now
	state := asleep()
	state.Asleep, state.Keep.Gaps = 1, gaps
	if !b.Import(state, 0, b.now) {
		t.Fatal("the status is not taken")
	}
	out := b.Decide(b.now, false, nil)
	b.obey(out)
	if out.Scale || !out.PodOrders.Look || out.PodOrders.Wake > 0 {
		t.Fatalf("at first: scale %v to %d, %+v", out.Scale, out.Replicas, out.PodOrders)
	}
	b.counts = Counts{Asleep: 1}
	b.SetCounts(b.counts)
	b.run(2 * time.Minute)
	b.want("after", 0, 1)
	if b.woken > 0 {
		t.Errorf("%d pods were woken", b.woken)
	}
	b.run(5 * time.Hour)
	b.want("forgotten", 0, 0)
}

// The node of an autoscaler and of pods that sleep is drained. The next autoscaler finds their
// successors, which start, and a status with the pods that are left.
func TestSuccessorsOfPodsThatSleptFallAsleepAfterARestart(t *testing.T) {
	for asleep := range int32(3) {
		b := newVillage(t, func(c *Config) { c.Standby.Always, c.Standby.MaxPods = true, 3 })
		b.load = 1
		b.counts = Counts{Ready: 1, Asleep: asleep, NotReady: 3 - asleep}
		b.Revision = New(b.config, b.counts, b.now)
		if !b.Import(State{Desired: 1, Asleep: asleep, Zero: zero.State{Active: zero.Yes, Initialized: true}}, 0, b.now) {
			t.Fatal("the status is not taken")
		}
		b.run(5 * time.Minute)
		b.want("after", 1, 3)
	}
}

// Nobody can reach a superseded revision, so its pods are not kept, whoever asked for them.
func TestASupersededRevisionKeepsNoPodAsleep(t *testing.T) {
	for name, change := range map[string]func(c *Config){
		"auto":         func(*Config) {},
		"a number":     func(c *Config) { c.Standby.Always, c.Standby.MaxPods = true, 2 },
		"a schedule":   func(c *Config) { c.Standby.Schedule = always(2) },
		"scale-buffer": func(c *Config) { c.Buffer = 2 },
	} {
		t.Run(name, func(t *testing.T) {
			v := newVillage(t, change)
			v.load = 1
			v.run(time.Minute)
			v.load = 0
			v.run(2 * time.Minute)
			if name != "scale-buffer" && v.counts.Asleep == 0 {
				t.Fatalf("no pod sleeps before: %+v", v.counts)
			}
			c := *v.Revision.config
			c.Zero.Unreachable, c.Formula.Reachable = true, false
			v.Update(&c)
			woken, slept := v.woken, v.slept
			v.run(5 * time.Minute)
			v.want("after the last Route left", 0, 0)
			if v.woken != woken || v.slept != slept {
				t.Errorf("pods that go were told to wake (%d) or to sleep (%d)", v.woken-woken, v.slept-slept)
			}
			// Who still calls it, by its own name, wakes it as any other.
			v.load = 1
			v.run(10 * time.Second)
			v.want("a request after all", 1, 0)
		})
	}
}

// A program that says that it is busy keeps its pod awake, without a request and without a Route,
// and no longer than it may say that.
func TestPodsWhoseProgramsAreBusyStayAwake(t *testing.T) {
	for name, c := range map[string]struct {
		standby, unreachable bool
	}{
		"without standby": {},
		"with standby":    {standby: true},
		"without a Route": {standby: true, unreachable: true},
		"without both":    {unreachable: true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVillage(t, func(to *Config) {
				to.BusyFor = 10 * time.Minute
				if !c.standby {
					to.Standby = nil
				}
			})
			begin := func() {
				t.Helper()
				v.load, v.busy = 20, 2
				v.run(2 * time.Minute)
				if v.counts.Ready != 3 {
					t.Fatalf("at work: %+v (%s)", v.counts, v.last.Reason())
				}
				v.load = 0
				if c.unreachable {
					to, rules := *v.Revision.config, *v.Revision.config.Rules
					to.Rules = &rules
					to.Zero.Unreachable, to.Formula.Reachable = true, false
					v.Update(&to)
				}
			}
			begin()
			v.run(20 * time.Minute)
			if v.counts.Ready != 2 || v.last.Busy != 2 {
				t.Fatalf("two are busy, and %+v (%s)", v.counts, v.last.Reason())
			}
			if v.last.Status.Active != zero.Yes {
				t.Errorf("active: %v (%s)", v.last.Status.Active, v.last.Reason())
			}
			v.busy = 1
			v.run(2 * time.Minute)
			if v.counts.Ready != 1 {
				t.Fatalf("one is busy, and %+v (%s)", v.counts, v.last.Reason())
			}
			v.busy = 0
			v.run(3 * time.Minute)
			if v.counts.Ready != 0 {
				t.Fatalf("none is busy, and %+v (%s)", v.counts, v.last.Reason())
			}
			begin()
			v.deaf = true
			v.run(9 * time.Minute)
			if v.counts.Ready < 2 || v.last.Busy != 2 {
				t.Fatalf("two may be busy, and %d are kept of %+v (%s)", v.last.Busy, v.counts, v.last.Reason())
			}
			v.run(2 * time.Minute)
			if v.last.Busy != 0 {
				t.Fatalf("none can be busy any more, and %d are kept (%s)", v.last.Busy, v.last.Reason())
			}
		})
	}
}

// The next owner has not asked the pods when it decides first.
func TestBusyPodsAreHandedOver(t *testing.T) {
	change := func(c *Config) { c.BusyFor, c.Standby = time.Hour, nil }
	v := newVillage(t, change)
	v.load, v.busy = 20, 2
	v.run(2 * time.Minute)
	v.load = 5
	v.run(5 * time.Minute)
	v.want("one is at work, two are busy", 2, 0)
	for _, behind := range []time.Duration{0, 500 * time.Millisecond} {
		next := newVillage(t, change)
		next.SetCounts(v.counts)
		if !next.Import(v.Export(v.now), behind, v.now) {
			t.Fatalf("behind by %s: the state is refused", behind)
		}
		if out := next.Decide(v.now, false, nil); out.Replicas != 2 {
			t.Errorf("behind by %s: two are busy, and %d pods are ordered (%s)", behind, out.Replicas, out.Reason())
		}
	}
}

func TestBusyPodsOfASample(t *testing.T) {
	c := config()
	c.BusyFor = time.Hour
	r, now := New(c, Counts{Ready: 100}, epoch), epoch
	answer := func(s Scrape) int32 {
		now = now.Add(time.Second)
		r.Scraped(s, now)
		return r.occupied(now)
	}
	if got := answer(Scrape{Busy: 8, Ready: 100}); got != 8 {
		t.Errorf("8 of 100 are busy, %d stay", got)
	}
	for range 60 {
		if got := answer(Scrape{Ready: 100}); got != 8 {
			t.Fatalf("a sample that missed them after %s: %d stay", now.Sub(epoch), got)
		}
	}
	if got := answer(Scrape{Ready: 100}); got != 0 {
		t.Errorf("all samples of a minute missed them: %d stay", got)
	}
	answer(Scrape{Busy: 8, Ready: 100})
	r.SetCounts(Counts{Ready: 3, Lapsed: 1})
	if got := r.occupied(now); got != 4 {
		t.Errorf("4 pods are left, %d stay", got)
	}
	if got := answer(Scrape{Busy: 1, Ready: 4}); got != 1 {
		t.Errorf("all were asked, 1 is busy, %d stay", got)
	}
}

type always int32

func (a always) At(time.Time) (int32, time.Time) { return int32(a), time.Time{} }
