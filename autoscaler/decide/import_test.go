package decide

import (
	"math"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// Two processes in turn decide what one would have decided, whatever their clocks say.
func TestTwoInTurnDecideLikeOne(t *testing.T) {
	for _, steady := range []bool{false, true} {
		twoInTurn(t, steady)
	}
}

func twoInTurn(t *testing.T, steady bool) {
	t.Helper()
	c := Config{Total: 10, Target: 7, TargetBurstCapacity: 200, ActivatorCapacity: 100, MaxScaleUpRate: 1000, MaxScaleDownRate: 2,
		PanicThreshold: 2, StableWindow: 60 * time.Second, ScaleDownDelay: 30 * time.Second, Reachable: true, Steady: steady}
	held := false
	for _, skew := range []time.Duration{0, 5 * time.Millisecond, -5 * time.Millisecond, 90 * time.Second, -3 * time.Hour} {
		began := time.Unix(1_700_000_000, 0)
		one, two := NewSeries(c.StableWindow, 6*time.Second), NewSeries(c.StableWindow, 6*time.Second)
		oneState, twoState := Start(c, 1, NoDecision, began), Start(c, 1, NoDecision, began.Add(skew))
		clock := func(i int) (time.Time, time.Time) {
			now := began.Add(time.Duration(i) * time.Second)
			return now, now.Add(skew)
		}
		for i := range 320 {
			load := 40.0
			switch {
			case i >= 60 && i < 75:
				load = 300 // a burst, to panic about
			case i >= 150 && i < 220:
				load = 7
			case i >= 220 && i < 222:
				load = 30
			case i >= 222:
				load = 6
			}
			a, b := clock(i)
			if i == 100 {
				// The second process is new, with the pods that are there, and hears from the
				// first.
				two = NewSeries(c.StableWindow, 6*time.Second)
				twoState = Start(c, oneState.Desired, oneState.Desired, b)
				var ok bool
				if twoState, ok = handOver(one, oneState, two, twoState, a.Add(-time.Second), b.Sub(a), b); !ok {
					t.Fatal("the state is refused")
				}
			}
			if i < 100 {
				twoState, two = oneState, one
			}
			one.Add(a, "activator", Report{Concurrency: load})
			if i >= 100 {
				two.Add(b, "activator", Report{Concurrency: load})
			}
			if i%2 == 1 {
				continue
			}
			var d, e Decision
			ready := max(oneState.Desired, 1)
			d, oneState = Decide(c, oneState, one.Observe(a, Concurrency, window.Linear, ready, false), a)
			if i < 100 {
				continue
			}
			e, twoState = Decide(c, twoState, two.Observe(b, Concurrency, window.Linear, ready, false), b)
			if e.Desired != d.Desired {
				t.Errorf("skew %s, second %d: %d by %s, the one before would have decided %d by %s", skew, i, e.Desired, e.Rule, d.Desired, d.Rule)
			}
			held = held || e.Rule == RuleHysteresis
		}
	}
	if held != steady {
		t.Errorf("steady is %v, a number was held: %v", steady, held)
	}
}

func TestAnInvalidStateChangesNothing(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := Config{Total: 10, Target: 7, StableWindow: 60 * time.Second}
	type carried struct {
		State
		windows Windows
		at      time.Time
	}
	for name, change := range map[string]func(*carried){
		"a scale below none":      func(m *carried) { m.Desired = -7 },
		"a negative maximum":      func(m *carried) { m.PanicMax = -1 },
		"a negative floor":        func(m *carried) { m.Floor = -1 },
		"panic in the future":     func(m *carried) { m.PanicSince = now.Add(time.Hour) },
		"a target that is none":   func(m *carried) { m.Held.Target = math.NaN() },
		"fewer pods than none":    func(m *carried) { m.Tried.Number = -1 },
		"a delay without end":     func(m *carried) { m.Delay = make(delayWindow, maxDelaySlots+1) },
		"windows from the future": func(m *carried) { m.windows[0] = window.Contents{First: now.Unix() + 1000, Values: []float64{1}} },
		"exported at no time possible": func(m *carried) {
			m.at = now.Add(time.Hour)
			m.windows[0] = window.Contents{First: now.Unix(), Values: []float64{1}}
		},
	} {
		s := NewSeries(c.StableWindow, 6*time.Second)
		before := Start(c, 2, 3, now)
		m := carried{before, s.Export(), now}
		change(&m)
		after, ok := before.Import(m.State, 0, now)
		if ok {
			ok = s.Import(m.windows, m.at, 0, now)
		} else if after.Desired != before.Desired || after.Floor != before.Floor || after.PanicMax != before.PanicMax {
			t.Errorf("%s: %+v", name, after)
		}
		if ok {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

// Wherever in a lesson the process changes, what the next one aims for is what the first would
// have.
func TestALessonThatIsHandedOverGoesOn(t *testing.T) {
	f := waiting(0.02, 0.01)
	for _, skew := range []time.Duration{0, 90 * time.Second, -3 * time.Hour} {
		one, ready := Adaptive{}, int32(1)
		var phases [settled + 1]int
		for i := range 200 {
			now := epoch.Add(time.Duration(i) * time.Second)
			// Another process, from here to the end.
			two, ok := Adaptive{}.Import(one, skew, now.Add(skew))
			if !ok {
				t.Fatalf("second %d: the lesson is refused: %+v", i, one)
			}
			phases[one.Phase]++
			first, second, a, b := one, two, ready, ready
			for j := i; j < 200; j++ {
				now := epoch.Add(time.Duration(j) * time.Second)
				for _, p := range []struct {
					adaptive *Adaptive
					ready    *int32
					now      time.Time
				}{{&first, &a, now}, {&second, &b, now.Add(skew)}} {
					n := 9 / float64(*p.ready)
					*p.adaptive = p.adaptive.Learn(p.now, 10, 0.7, Work{Completed: f(n) * float64(*p.ready), BusySeconds: 9, Ready: *p.ready, Wanted: *p.ready})
					*p.ready = pods(9 / p.adaptive.Target(10))
				}
				if a != b || first.Target(10) != second.Target(10) {
					t.Fatalf("skew %s, handed over in second %d: in second %d a target of %v, the one before would have %v", skew, i, j, second.Target(10), first.Target(10))
				}
				if j == i {
					one, ready = first, a
				}
			}
		}
		for phase, seconds := range phases {
			if seconds == 0 {
				t.Errorf("no lesson was handed over in phase %d", phase)
			}
		}
		if one.Aim == 0 {
			t.Error("nothing was learned")
		}
	}
}

func TestALessonThatMakesNoSenseIsRefused(t *testing.T) {
	good := Adaptive{Phase: measuring, Aim: 2, Before: point{4, 100, 600}, Since: epoch}
	if _, ok := (Adaptive{}).Import(good, 0, epoch); !ok {
		t.Fatal("a good one is refused")
	}
	for name, change := range map[string]func(*Adaptive){
		"a phase there is none of":       func(l *Adaptive) { l.Phase = 4 },
		"a target that is no number":     func(l *Adaptive) { l.Aim = math.NaN() },
		"a target of nearly nothing":     func(l *Adaptive) { l.Aim = 1e-9 },
		"a negative knee":                func(l *Adaptive) { l.Knee = -1 },
		"an endless throughput":          func(l *Adaptive) { l.Rate = math.Inf(1) },
		"a try without a target":         func(l *Adaptive) { l.Aim = 0 },
		"a try compared with nothing":    func(l *Adaptive) { l.Before.Throughput = 0 },
		"a negative number of pods":      func(l *Adaptive) { l.Sum.Ready = -1 },
		"a negative number of seconds":   func(l *Adaptive) { l.Strange = -1 },
		"a phase begun in the future":    func(l *Adaptive) { l.Since = epoch.Add(time.Hour) },
		"a lesson learned in the future": func(l *Adaptive) { l.LearnedAt = epoch.Add(time.Hour) },
	} {
		l := good
		change(&l)
		if a, ok := (Adaptive{}).Import(l, 0, epoch); ok || a != (Adaptive{}) {
			t.Errorf("%s: %v, %+v", name, ok, a)
		}
	}
}

func TestADelayThatIsHandedOverHoldsAsLong(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var w delayWindow
	w, _ = w.record(now, 9, 30*time.Second)
	w, _ = w.record(now.Add(10*time.Second), 4, 30*time.Second)
	next, ok := State{Desired: 1}.Import(State{Delay: w}, 0, now.Add(12*time.Second))
	if !ok {
		t.Fatal("refused")
	}
	for seconds, want := range map[int]int32{14: 9, 28: 9, 36: 4, 60: 1} {
		if _, highest := next.Delay.record(now.Add(time.Duration(seconds)*time.Second), 1, 30*time.Second); highest != want {
			t.Errorf("after %d s the delay holds %d, want %d", seconds, highest, want)
		}
	}
}

func TestWhatWasLearnedIsGoneOnFrom(t *testing.T) {
	at := epoch.Unix()
	for behaviour, c := range map[string]struct {
		learned Learned
		share   float64
		target  float64 // of a configured one of 50, 0 if it is refused
	}{
		"a knee":                          {Learned{10, 200, at}, 0.7, 7},
		"a knee above what is configured": {Learned{100, 200, at}, 0.7, 50},
		"no knee up to there":             {Learned{10, 0, at}, 0.7, 50},
		"a knee below the least target":   {Learned{0.26, 200, at}, 0.5, lowestLearned},
		"a month ago":                     {Learned{10, 200, at - 29*24*3600}, 0.7, 7},
		"more than a month ago":           {Learned{10, 200, at - 31*24*3600}, 0.7, 0},
		"a clock that is a little ahead":  {Learned{10, 200, at + 30}, 0.7, 7},
		"in an hour":                      {Learned{10, 200, at + 3600}, 0.7, 0},
		"at the end of time":              {Learned{10, 200, math.MaxInt64}, 0.7, 0},
		"at its begin":                    {Learned{10, 200, math.MinInt64}, 0.7, 0},
		"no concurrency":                  {Learned{0, 200, at}, 0.7, 0},
		"a negative concurrency":          {Learned{-1, 200, at}, 0.7, 0},
		"a concurrency that is no number": {Learned{math.NaN(), 200, at}, 0.7, 0},
		"a concurrency without bound":     {Learned{math.Inf(1), 200, at}, 0.7, 0},
		"a negative throughput":           {Learned{10, -1, at}, 0.7, 0},
		"a throughput that is no number":  {Learned{10, math.NaN(), at}, 0.7, 0},
		"a throughput without bound":      {Learned{10, math.Inf(1), at}, 0.7, 0},
		"nothing at all":                  {Learned{}, 0.7, 0},
		"a share of nothing":              {Learned{10, 200, at}, 0, 0},
	} {
		a, ok := c.learned.Adaptive(c.share, epoch)
		if ok != (c.target > 0) {
			t.Errorf("%s: taken is %v", behaviour, ok)
		}
		if !ok {
			continue
		}
		if got := a.Target(50); math.Abs(got-c.target) > 1e-9 {
			t.Errorf("%s: a target of %v, want %v", behaviour, got, c.target)
		}
		if again, ok := a.Learned(); !ok || again != c.learned {
			t.Errorf("%s: it would be told as %+v", behaviour, again)
		}
	}
	for behaviour, a := range map[string]Adaptive{"nothing": {}, "in a try": {Phase: settling, Aim: 2}, "as it measures": {Phase: measuring, Aim: 2, Knee: 3}} {
		if l, ok := a.Learned(); ok {
			t.Errorf("%s: told as %+v", behaviour, l)
		}
	}
}

// What was found may be wrong and make sense. Under load that shows, and is learned anew; otherwise
// it can do no more than the configured target.
func TestAWrongLessonIsLearnedAnew(t *testing.T) {
	for behaviour, wrong := range map[string]Learned{"a knee that is too high": {6, 9000, epoch.Unix()}, "one that is too low": {0.3, 9000, epoch.Unix()}} {
		a, ok := wrong.Adaptive(0.7, epoch)
		if !ok {
			t.Fatalf("%s: it makes sense", behaviour)
		}
		f := singleThreaded(0.01)
		ready := int32(1)
		for i := range 600 {
			n := 9 / float64(ready)
			a = a.Learn(epoch.Add(time.Duration(i)*time.Second), 50, 0.7, Work{Completed: f(n) * float64(ready), BusySeconds: 9, Ready: ready, Wanted: ready})
			ready = max(1, int32(math.Ceil(9/a.Target(50))))
		}
		if got, ok := a.Learned(); !ok || got.Concurrency > 3 || math.Abs(got.Throughput-100) > 20 {
			t.Errorf("%s: learned %+v of a pod that works on one request at a time for 10 ms: %s", behaviour, got, a)
		}
	}
}

// handOver exports from one process and imports into another.
func handOver(from *Series, state State, to *Series, next State, at time.Time, behind time.Duration, now time.Time) (State, bool) {
	next, ok := next.Import(state, behind, now)
	return next, ok && to.Import(from.Export(), at, behind, now)
}
