package zero

import (
	"math/rand"
	"testing"
	"time"
)

var epoch = time.Unix(1_700_000_000, 0)

func config() Config {
	return Config{Initial: 1, ScaleToZero: true, StableWindow: 60 * time.Second, Grace: 30 * time.Second,
		ProgressDeadline: 600 * time.Second, PathHold: 60 * time.Second}
}

func TestActiveTable(t *testing.T) {
	cases := []struct {
		want, ready, threshold int32
		before                 Condition
		after                  Condition
		reason                 string
	}{
		{0, 0, 1, Undecided, No, TimedOut},
		{0, 5, 1, Undecided, No, TimedOut},
		{0, 0, 0, Undecided, No, NoTraffic},
		{5, 5, 0, Undecided, No, NoTraffic},
		{0, 1, 1, Yes, No, NoTraffic},
		{0, 0, 1, No, No, NoTraffic},
		{1, 0, 1, Yes, Undecided, Queued},
		{1, 0, 1, No, Undecided, Queued},
		{1, 0, 1, Undecided, Undecided, Queued},
		{3, 2, 3, Yes, Undecided, Queued},
		{Unknown, 0, 1, No, No, NoTraffic},
		{Unknown, 0, 1, Yes, Undecided, Queued},
		{Unknown, 0, 1, Undecided, Undecided, Queued},
		{1, 1, 1, No, Yes, ""},
		{1, 1, 1, Undecided, Yes, ""},
		{5, 3, 3, Yes, Yes, ""},
		{Unknown, 1, 1, Yes, Yes, ""},
		{Unknown, 1, 1, Undecided, Yes, ""},
		{Unknown, 1, 1, No, No, NoTraffic},
	}
	for _, c := range cases {
		conf := config()
		conf.Min, conf.Initial = c.threshold, c.threshold
		s := State{Active: c.before, ActiveSince: epoch.Add(-time.Minute), Initialized: c.threshold > 0}
		if c.before == No {
			s.ActiveReason = NoTraffic
		}
		got := activate(conf, s, c.want, c.ready, epoch)
		if got.Active != c.after || got.ActiveReason != c.reason {
			t.Errorf("want %d, ready %d of %d, before %s: %s %q; expected %s %q", c.want, c.ready, c.threshold, c.before, got.Active, got.ActiveReason, c.after, c.reason)
		}
		if changed := got.ActiveSince.Equal(epoch); changed != (c.before != c.after) {
			t.Errorf("want %d, ready %d of %d, before %s: time of change %s", c.want, c.ready, c.threshold, c.before, got.ActiveSince)
		}
	}
}

// Whatever happens, zero is written only when inactive and handed over, or given up.
func TestZeroOnlyAfterHandOver(t *testing.T) {
	for seed := range int64(300) {
		r := rand.New(rand.NewSource(seed))
		c := config()
		c.Min, c.Max, c.Initial = int32(r.Intn(3)), int32(r.Intn(5)), int32(r.Intn(4))
		c.Unreachable, c.ScaleToZero = r.Intn(3) == 0, r.Intn(4) > 0
		c.Retention = time.Duration(r.Intn(2)*r.Intn(100)) * time.Second
		s, now := State{}, epoch
		for range 300 {
			now = now.Add(time.Duration(r.Intn(20000)) * time.Millisecond)
			in := Input{Desired: int32(r.Intn(4) - 1), Ready: int32(r.Intn(4)), ExcessBurst: float64(r.Intn(3) - 1), Probe: Probe(r.Intn(3))}
			if r.Intn(3) > 0 {
				in.Desired = 0
			}
			before := s
			var step Step
			step, s = Decide(c, s, in, now)
			if !step.Apply || step.Replicas > 0 {
				if c.Max > 0 && step.Apply && step.Replicas > c.Max {
					t.Fatalf("seed %d: %+v with max %d", seed, step, c.Max)
				}
				continue
			}
			switch {
			case step.Rule == RuleTimedOut && before.Active == Undecided && now.Sub(before.ActiveSince) >= 630*time.Second:
			case step.Rule == RuleZero && before.Active == No && in.Probe == ProbedActivator && c.ScaleToZero && before.Proxied:
			default:
				t.Fatalf("seed %d: %+v on %+v from %+v", seed, step, in, before)
			}
		}
	}
}
