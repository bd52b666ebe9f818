package revision

import (
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/autoscaler/zero"
)

// Pods on lost nodes are asked for once more, beyond max-scale if need be, and at most as many as
// are wanted. When the node answers, the surplus goes with a tick, and not between two.
func TestPodsOnLostNodesAreReplaced(t *testing.T) {
	for behaviour, c := range map[string]struct {
		counts    Counts
		min, max  int32
		want      int32
		urgent    bool
		unlimited bool
	}{
		"none is lost":               {Counts{Ready: 3}, 3, 0, 3, false, true},
		"one of three":               {Counts{Ready: 2, NotReady: 1, Lost: 1}, 3, 0, 4, false, true},
		"one of three, at max-scale": {Counts{Ready: 2, NotReady: 1, Lost: 1}, 3, 3, 4, false, true},
		"all":                        {Counts{NotReady: 3, Lost: 3}, 3, 0, 6, true, true},
		"more than are wanted":       {Counts{NotReady: 5, Lost: 5}, 2, 2, 4, true, true},
		"one that starts":            {Counts{Ready: 2, NotReady: 1, Pending: 1, Lost: 1}, 3, 0, 4, false, true},
		"within the budget":          {Counts{NotReady: 3, Lost: 3}, 3, 0, 4, true, false},
	} {
		t.Run(behaviour, func(t *testing.T) {
			cfg := config()
			cfg.Zero.Min, cfg.Zero.Max = c.min, c.max
			budget := &Budget{}
			if !c.unlimited {
				cfg.ScaleUp = Rate{PerSecond: 1, Burst: 1}
			}
			r := New(cfg, Counts{Ready: c.min}, epoch)
			r.Import(State{Desired: c.min, Zero: zero.State{Active: zero.Yes, Initialized: true}}, 0, epoch)
			r.Scraped(load(1), epoch)
			if out := r.Decide(epoch, false, nil); out.Replicas != c.min || out.Extra != 0 {
				t.Fatalf("before, %d replicas", out.Replicas)
			}
			now := epoch.Add(2 * time.Second)
			r.SetCounts(c.counts)
			out := r.Decide(now, true, budget)
			if out.Replicas != c.want || out.Urgent != c.urgent || out.Status.Desired != c.min {
				t.Errorf("%d replicas of %d, urgent %v", out.Replicas, out.Status.Desired, out.Urgent)
			}
			if told := strings.Contains(out.Reason(), "on nodes that do not answer"); told != (c.counts.Lost > 0) {
				t.Errorf("reason %q", out.Reason())
			}
			r.SetCounts(Counts{Ready: c.want})
			r.Scraped(load(1), now)
			if out := r.Decide(now.Add(time.Second), true, budget); out.Replicas < c.want {
				t.Errorf("between two ticks %d replicas", out.Replicas)
			}
			r.Scraped(load(1), now.Add(2*time.Second))
			if out := r.Decide(now.Add(2*time.Second), false, budget); out.Replicas != c.min || out.Extra != 0 {
				t.Errorf("in the end %d replicas, because %s", out.Replicas, out.Reason())
			}
		})
	}
}

// An autoscaler that restarts again and again finds the replacements of the one before, and does
// not replace the same pods once more. It knows after a while that they are lost.
func TestARestartReplacesNothingTwice(t *testing.T) {
	for behaviour, c := range map[string]struct{ lost, want int32 }{"one of three": {1, 4}, "all": {3, 6}} {
		t.Run(behaviour, func(t *testing.T) {
			cfg := config()
			cfg.Zero.Min = 3
			now, running := epoch, int32(3)
			state := State{Desired: 3, Zero: zero.State{Active: zero.Yes, Initialized: true}}
			var r *Revision
			decide := func(counts Counts) Outcome {
				r.SetCounts(counts)
				r.Scraped(load(1), now)
				return r.Decide(now, false, nil)
			}
			knows := func() Counts { return Counts{Ready: running - c.lost, NotReady: c.lost, Lost: c.lost} }
			for n := range 5 {
				r = New(cfg, Counts{Ready: running}, now)
				r.Import(state, 0, now)
				if out := decide(Counts{Ready: running}); out.Replicas != running {
					t.Fatalf("process %d orders %d replicas of %d at first", n, out.Replicas, running)
				}
				now = now.Add(4 * time.Second)
				out := decide(knows())
				if out.Replicas != c.want || out.Status.Desired != 3 {
					t.Fatalf("process %d orders %d replicas and wants %d: %s", n, out.Replicas, out.Status.Desired, out.Reason())
				}
				running, state.Desired = out.Replicas, out.Status.Desired
				now = now.Add(10 * time.Second)
			}
			for end := now.Add(3 * time.Minute); now.Before(end); now = now.Add(2 * time.Second) {
				if out := decide(knows()); out.Replicas != c.want || out.Status.Desired != 3 {
					t.Fatalf("after %s: %d replicas, %d wanted: %s", now.Sub(epoch), out.Replicas, out.Status.Desired, out.Reason())
				}
			}
			if out := decide(Counts{Ready: running}); out.Replicas != 3 {
				t.Errorf("in the end %d replicas, because %s", out.Replicas, out.Reason())
			}
		})
	}
}

// A process that takes over may never have had an answer from the dead node. It keeps the
// replacements until it can know by itself.
func TestReplacementsAreHandedOver(t *testing.T) {
	for behaviour, c := range map[string]struct {
		knows bool
		want  int32
	}{"and the next one finds out": {true, 4}, "and the node is back": {false, 3}} {
		t.Run(behaviour, func(t *testing.T) {
			cfg := config()
			cfg.Zero.Min = 3
			now, state := epoch, State{Desired: 3, Zero: zero.State{Active: zero.Yes, Initialized: true}}
			lost, ready := Counts{Ready: 3, NotReady: 1, Lost: 1}, Counts{Ready: 4}
			decide := func(r *Revision, counts Counts, passed time.Duration) Outcome {
				now = now.Add(passed)
				r.SetCounts(counts)
				r.Scraped(load(1), now)
				return r.Decide(now, false, nil)
			}
			first := New(cfg, Counts{Ready: 3}, now)
			first.Import(state, 0, now)
			decide(first, Counts{Ready: 3}, 0)
			if out := decide(first, Counts{Ready: 2, NotReady: 1, Lost: 1}, 2*time.Second); out.Replicas != 4 {
				t.Fatalf("the first process orders %d", out.Replicas)
			}
			for range 40 { // until it has seen a window
				decide(first, lost, 2*time.Second)
			}
			next := New(cfg, ready, now)
			next.Import(state, 0, now)
			if !next.Import(first.Export(now), 0, now) {
				t.Fatal("the state is refused")
			}
			for _, passed := range []time.Duration{0, 2 * time.Second, 10 * time.Second} {
				if out := decide(next, ready, passed); out.Replicas != 4 || out.Status.Desired != 3 {
					t.Fatalf("%s later it orders %d and wants %d, because %s", passed, out.Replicas, out.Status.Desired, out.Reason())
				} else if why := "; 1 more for now, because so many were on nodes that did not answer"; !strings.HasSuffix(out.Reason(), why) {
					t.Errorf("because %s", out.Reason())
				}
			}
			counts := ready
			if c.knows {
				counts = lost
			}
			if out := decide(next, counts, verdict); out.Replicas != c.want {
				t.Errorf("in the end it orders %d, because %s", out.Replicas, out.Reason())
			}
		})
	}
	r := New(config(), Counts{}, epoch)
	bad := r.Export(epoch)
	bad.Extra = -1
	if r.Import(bad, 0, epoch) {
		t.Error("fewer pods than none are taken")
	}
}

// Nobody asks for the pods of a revision that nobody needs.
func TestARevisionAtZeroHasNothingToReplace(t *testing.T) {
	r := New(config(), Counts{}, epoch)
	r.Import(asleep(), 0, epoch)
	r.Decide(epoch, false, nil)
	r.SetCounts(Counts{NotReady: 2, Lost: 2})
	if out := r.Decide(epoch.Add(2*time.Second), false, nil); out.Replicas > 0 || out.Extra != 0 {
		t.Errorf("%d replicas, because %s", out.Replicas, out.Reason())
	}
}
