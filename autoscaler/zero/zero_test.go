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

func active(c Condition, ago time.Duration) State {
	s := State{Active: c, ActiveSince: epoch.Add(-ago), Initialized: true, Proxied: c == No, ProxiedSince: epoch.Add(-ago)}
	if c == No {
		s.ActiveReason = NoTraffic
	}
	return s
}

func TestSteps(t *testing.T) {
	cases := []struct {
		behaviour string
		config    func(*Config)
		state     State
		in        Input
		want      Step // Reason is compared for presence only
	}{
		{"nothing decided for an active revision: nothing written", nil, active(Yes, time.Hour), Input{Desired: Unknown, Ready: 1}, Step{Want: Unknown}},
		{"nothing decided while activating: the bounds apply", func(c *Config) { c.Min = 3 }, active(Undecided, 0), Input{Desired: Unknown}, Step{Want: 3, Apply: true, Replicas: 3, Rule: RuleMinScale}},
		{"a decision within bounds is written", nil, active(Yes, time.Hour), Input{Desired: 7, Ready: 2}, Step{Want: 7, Apply: true, Replicas: 7}},
		{"min-scale lifts", func(c *Config) { c.Min = 3 }, active(Yes, time.Hour), Input{Desired: 0, Ready: 3}, Step{Want: 3, Apply: true, Replicas: 3, Rule: RuleMinScale}},
		{"min-scale does not count for an unreachable revision", func(c *Config) { c.Min, c.Unreachable = 3, true }, active(Yes, time.Hour), Input{Desired: 2, Ready: 3}, Step{Want: 2, Apply: true, Replicas: 2}},
		{"max-scale caps", func(c *Config) { c.Max = 5 }, active(Yes, time.Hour), Input{Desired: 9, Ready: 5}, Step{Want: 5, Apply: true, Replicas: 5, Rule: RuleMaxScale}},
		{"contradictory bounds: the ceiling wins", func(c *Config) { c.Min, c.Max = 9, 5 }, active(Yes, time.Hour), Input{Desired: 1, Ready: 5}, Step{Want: 5, Apply: true, Replicas: 5, Rule: RuleMaxScale}},
		{"initial-scale counts before the first readiness", func(c *Config) { c.Initial = 4 }, State{ActiveSince: epoch}, Input{Desired: 0}, Step{Want: 4, Apply: true, Replicas: 4, Rule: RuleInitialScale}},
		{"initial-scale does not count afterwards", func(c *Config) { c.Initial = 4 }, active(Yes, time.Hour), Input{Desired: 2, Ready: 4}, Step{Want: 2, Apply: true, Replicas: 2}},
		{"initial-scale does not count for an unreachable revision", func(c *Config) { c.Initial, c.Unreachable = 4, true }, State{ActiveSince: epoch}, Input{Desired: 2}, Step{Want: 2, Apply: true, Replicas: 2}},
		{"scale to zero switched off keeps one", func(c *Config) { c.ScaleToZero = false }, active(Yes, time.Hour), Input{Desired: 0, Ready: 1}, Step{Want: 1, Apply: true, Replicas: 1, Rule: RuleNeverZero}},

		{"zero while activating waits", nil, active(Undecided, 629*time.Second), Input{Desired: 0}, Step{Want: Unknown, After: time.Second, Rule: RuleActivating}},
		{"zero while activating for too long gives up", nil, active(Undecided, 630*time.Second), Input{Desired: 0}, Step{Apply: true, Rule: RuleTimedOut}},
		{"zero soon after becoming active keeps one", nil, active(Yes, 45*time.Second), Input{Desired: 0, Ready: 1}, Step{Want: 1, Apply: true, Replicas: 1, After: 15 * time.Second, Rule: RuleStableWindow}},
		{"zero after a stable window reports zero and writes nothing yet", nil, active(Yes, 60*time.Second), Input{Desired: 0, Ready: 1}, Step{After: time.Millisecond, Rule: RuleHandOver}},
		{"inactive: the public service is probed first", nil, active(No, time.Minute), Input{Desired: 0, Ready: 1}, Step{Probe: true, Rule: RuleProbe}},
		{"inactive: a probe that reaches a pod is repeated", nil, active(No, time.Minute), Input{Desired: 0, Ready: 1, Probe: ProbedOther}, Step{Probe: true, After: RetryProbe, Rule: RuleProbe}},
		{"inactive and always proxied: no probe", func(c *Config) { c.AlwaysProxied = true }, active(No, time.Minute), Input{Desired: 0, Ready: 1}, Step{Apply: true, Rule: RuleZero}},
		{"inactive for the grace period and probed: zero", nil, active(No, 30*time.Second), Input{Desired: 0, Ready: 1, Probe: ProbedActivator}, Step{Apply: true, Rule: RuleZero}},
		{"inactive for less, activators in the path since then: the remainder", nil, active(No, 10*time.Second), Input{Desired: 0, Ready: 1, Probe: ProbedActivator}, Step{After: 20 * time.Second, Rule: RuleGrace}},
		{"inactive for less, activators in the path for longer: zero", nil, func() State {
			s := active(No, time.Second)
			s.ProxiedSince = epoch.Add(-time.Minute)
			return s
		}(), Input{Desired: 0, Ready: 1, Probe: ProbedActivator}, Step{Apply: true, Rule: RuleZero}},
		{"the retention period is kept even so", func(c *Config) { c.Retention = 100 * time.Second }, func() State {
			s := active(No, 40*time.Second)
			s.ProxiedSince = epoch.Add(-time.Hour)
			return s
		}(), Input{Desired: 0, Ready: 1, Probe: ProbedActivator}, Step{After: 60 * time.Second, Rule: RuleRetention}},
		{"an unreachable revision has no retention period", func(c *Config) { c.Retention, c.Unreachable = 100*time.Second, true }, active(No, 40*time.Second), Input{Desired: 0, Ready: 1, Probe: ProbedActivator}, Step{Apply: true, Rule: RuleZero}},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			conf := config()
			if c.config != nil {
				c.config(&conf)
			}
			got, _ := Decide(conf, c.state, c.in, epoch)
			if got.Rule != "" && got.Reason == "" {
				t.Error("a rule without a reason")
			}
			got.Reason = ""
			if got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
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

func TestInitializedIsSetOnceAndStays(t *testing.T) {
	c := config()
	c.Initial = 2
	_, s := Decide(c, State{ActiveSince: epoch}, Input{Desired: 2, Ready: 1}, epoch)
	if s.Initialized || s.Active != Undecided {
		t.Fatalf("initialized with one of two pods: %+v", s)
	}
	_, s = Decide(c, s, Input{Desired: 2, Ready: 2}, epoch)
	if !s.Initialized || s.Active != Yes {
		t.Fatalf("not initialized with two of two pods: %+v", s)
	}
	_, s = Decide(c, s, Input{Desired: 2, Ready: 0}, epoch)
	if !s.Initialized {
		t.Fatal("initialized was taken back")
	}
}

func TestPath(t *testing.T) {
	c := config()
	s := active(Yes, time.Hour)
	at := func(after time.Duration, desired int32, excess float64) bool {
		_, s = Decide(c, s, Input{Desired: desired, ExcessBurst: excess, Ready: 1}, epoch.Add(after))
		return s.Proxied
	}
	for _, step := range []struct {
		after   time.Duration
		desired int32
		excess  float64
		proxied bool
		why     string
	}{
		{0, 3, 5, false, "capacity to spare: straight to the pods"},
		{time.Second, 3, -1, true, "short: the activators enter at once"},
		{2 * time.Second, 3, 1, true, "hovering: they stay"},
		{50 * time.Second, 3, -1, true, "short again"},
		{100 * time.Second, 3, 1, true, "not long enough since"},
		{110 * time.Second, 3, 0, false, "a minute without shortage: they leave"},
		{111 * time.Second, Unknown, 0, false, "nothing decided: no change"},
		{112 * time.Second, 0, 100, true, "no traffic: they take over"},
		{113 * time.Second, Unknown, 100, true, "nothing decided while inactive: no change"},
	} {
		if got := at(step.after, step.desired, step.excess); got != step.proxied {
			t.Errorf("%s: proxied %v (%s)", step.after, got, step.why)
		}
	}
	c.PathHold = 0
	s = active(No, time.Hour)
	if at(120*time.Second, 1, 0) {
		t.Error("with target-burst-capacity 0 the activators leave as soon as there is a pod")
	}
}

// A run from traffic to zero pods and back.
func TestToZeroAndBack(t *testing.T) {
	c := config()
	s := State{}
	now := epoch
	probe := NotProbed
	step := func(after time.Duration, desired, ready int32) Step {
		now = epoch.Add(after)
		var st Step
		st, s = Decide(c, s, Input{Desired: desired, Ready: ready, ExcessBurst: -1, Probe: probe}, now)
		return st
	}
	expect := func(got Step, want int32, apply bool, replicas int32, active Condition, rule string) {
		t.Helper()
		if got.Want != want || got.Apply != apply || apply && got.Replicas != replicas || s.Active != active || got.Rule != rule {
			t.Fatalf("at %s: %+v, active %s", now.Sub(epoch), got, s.Active)
		}
	}
	expect(step(0, 0, 0), Unknown, false, 0, Undecided, RuleActivating)
	expect(step(2*time.Second, 0, 1), Unknown, false, 0, Yes, RuleActivating)
	expect(step(4*time.Second, 0, 1), 1, true, 1, Yes, RuleStableWindow)
	expect(step(62*time.Second, 0, 1), 0, false, 0, No, RuleHandOver)
	expect(step(62*time.Second, 0, 1), 0, false, 0, No, RuleProbe)
	probe = ProbedActivator
	expect(step(63*time.Second, 0, 1), 0, true, 0, No, RuleZero) // activators were in the path all along
	expect(step(64*time.Second, 0, 0), 0, true, 0, No, RuleZero)
	expect(step(70*time.Second, 1, 0), 1, true, 1, Undecided, "")
	expect(step(71*time.Second, 1, 1), 1, true, 1, Yes, "")
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
