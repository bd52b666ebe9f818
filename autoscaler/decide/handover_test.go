package decide

import (
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// Two processes in turn decide what one would have decided, whatever their clocks say.
func TestTwoInTurnDecideLikeOne(t *testing.T) {
	c := Config{Total: 10, Target: 7, TargetBurstCapacity: 200, ActivatorCapacity: 100, MaxScaleUpRate: 1000, MaxScaleDownRate: 2,
		PanicThreshold: 2, StableWindow: 60 * time.Second, ScaleDownDelay: 30 * time.Second, Reachable: true}
	for _, skew := range []time.Duration{0, 5 * time.Millisecond, -5 * time.Millisecond, 90 * time.Second, -3 * time.Hour} {
		began := time.Unix(1_700_000_000, 0)
		one, two := NewSeries(c.StableWindow, 6*time.Second), NewSeries(c.StableWindow, 6*time.Second)
		oneState, twoState := Start(c, 1, NoDecision, began), Start(c, 1, NoDecision, began.Add(skew))
		clock := func(i int) (time.Time, time.Time) {
			now := began.Add(time.Duration(i) * time.Second)
			return now, now.Add(skew)
		}
		for i := range 240 {
			load := 40.0
			switch {
			case i >= 60 && i < 75:
				load = 300 // a burst, to panic about
			case i >= 150:
				load = 7
			}
			a, b := clock(i)
			if i == 100 {
				// The second process is new, with the pods that are there, and hears from the first.
				two = NewSeries(c.StableWindow, 6*time.Second)
				twoState = Start(c, oneState.Desired, oneState.Desired, b)
				var ok bool
				if twoState, ok = Recall(two, twoState, Remember(one, oneState, a.Add(-time.Second)), b.Sub(a), b); !ok {
					t.Fatal("the memory is refused")
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
		}
	}
}

func TestAMemoryThatMakesNoSenseChangesNothing(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	c := Config{Total: 10, Target: 7, StableWindow: 60 * time.Second}
	for name, change := range map[string]func(*Memory){
		"a scale below none":      func(m *Memory) { m.Desired = -7 },
		"a negative maximum":      func(m *Memory) { m.PanicMax = -1 },
		"a negative floor":        func(m *Memory) { m.Floor = -1 },
		"panic in the future":     func(m *Memory) { m.PanicSince = now.Add(time.Hour) },
		"a delay without end":     func(m *Memory) { m.Delay = make([]DelaySlot, maxDelaySlots+1) },
		"windows from the future": func(m *Memory) { m.Windows[0] = window.Contents{First: now.Unix() + 1000, Values: []float64{1}} },
		"left at no time possible": func(m *Memory) {
			m.At = now.Add(time.Hour)
			m.Windows[0] = window.Contents{First: now.Unix(), Values: []float64{1}}
		},
	} {
		s := NewSeries(c.StableWindow, 6*time.Second)
		before := Start(c, 2, 3, now)
		m := Remember(s, before, now)
		change(&m)
		after, ok := Recall(s, before, m, 0, now)
		if ok || after.Desired != before.Desired || after.Floor != before.Floor || after.PanicMax != before.PanicMax {
			t.Errorf("%s: %v, %+v", name, ok, after)
		}
	}
}

func TestADelayThatIsHandedOverHoldsAsLong(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	var w delayWindow
	w, _ = w.record(now, 9, 30*time.Second)
	w, _ = w.record(now.Add(10*time.Second), 4, 30*time.Second)
	state := State{delay: w}
	next, ok := Recall(NewSeries(time.Minute, 6*time.Second), State{Desired: 1}, Remember(NewSeries(time.Minute, 6*time.Second), state, now.Add(12*time.Second)), 0, now.Add(12*time.Second))
	if !ok {
		t.Fatal("refused")
	}
	for seconds, want := range map[int]int32{14: 9, 28: 9, 36: 4, 60: 1} {
		if _, highest := next.delay.record(now.Add(time.Duration(seconds)*time.Second), 1, 30*time.Second); highest != want {
			t.Errorf("after %d s the delay holds %d, want %d", seconds, highest, want)
		}
	}
}
