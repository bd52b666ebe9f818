package keep

import (
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// play needs pods by the given steps, each for a time.
func play(k *History, now time.Time, steps ...any) time.Time {
	for i := 0; i < len(steps); i += 2 {
		k.Need(int32(steps[i].(int)), now)
		now = now.Add(steps[i+1].(time.Duration))
	}
	return now
}

func repeated(n int, steps ...any) (out []any) {
	for range n {
		out = append(out, steps...)
	}
	return out
}

func TestDecide(t *testing.T) {
	t.Parallel()
	usual := Config{Worth: 90_000, ColdStart: time.Second, Memory: 55, MaxTime: MaxTime, MaxPods: -1}
	every := func(d time.Duration) []any { return repeated(30, 1, 5*time.Second, 0, d-5*time.Second) }
	for name, c := range map[string]struct {
		steps  []any
		config func(*Config)
		idle   time.Duration // since the last step
		keep   int32
	}{
		"never needed":                               {keep: 0},
		"new, idle for a minute":                     {steps: []any{1, time.Second, 0, time.Minute}, keep: 1},
		"new, idle for two hours":                    {steps: []any{1, time.Second, 0, 2 * time.Hour}, keep: 0},
		"every five minutes, after four":             {steps: every(5 * time.Minute), idle: -time.Minute, keep: 1},
		"every five minutes, long after":             {steps: every(5 * time.Minute), idle: 40 * time.Minute, keep: 0},
		"every hour, after a minute":                 {steps: every(time.Hour), idle: -59 * time.Minute, keep: 0},
		"every hour, a minute before":                {steps: every(time.Hour), idle: -time.Minute, keep: 1},
		"every hour, small":                          {steps: every(time.Hour), config: func(c *Config) { c.Memory = 10 }, idle: -50 * time.Minute, keep: 1},
		"every hour, slow start":                     {steps: every(time.Hour), config: func(c *Config) { c.ColdStart = time.Minute }, idle: -50 * time.Minute, keep: 1},
		"each rank by itself":                        {steps: repeated(30, 3, 5*time.Second, 1, 2*time.Minute), idle: -time.Minute, keep: 2},
		"a peak of ten an hour ago, one each minute": {steps: append([]any{10, time.Second, 0, time.Minute}, repeated(60, 1, time.Second, 0, 59*time.Second)...), idle: -30 * time.Second, keep: 1},
		"bounded":         {steps: []any{10, time.Second, 0, time.Second}, config: func(c *Config) { c.MaxPods = 4 }, keep: 4},
		"bounded by time": {steps: every(5 * time.Minute), config: func(c *Config) { c.MaxTime = time.Minute }, keep: 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := usual
			if c.config != nil {
				c.config(&config)
			}
			k := &History{}
			now := play(k, start, c.steps...).Add(c.idle)
			d := k.Decide(config, now)
			if d.Keep != c.keep {
				t.Errorf("keeps %d, want %d: %s", d.Keep, c.keep, d.Reason)
			}
			if d.Keep > 0 && !d.Until.After(now) {
				t.Errorf("the decision holds until %s, and it is %s", d.Until, now)
			}
			if d.Reason == "" {
				t.Error("no reason")
			}
		})
	}
}

// A decision holds until a time that is still to come.
func TestADecisionHoldsForAWhile(t *testing.T) {
	t.Parallel()
	k := History{}
	now := play(&k, start, 3, time.Minute, 0, time.Nanosecond)
	c := Config{Worth: 1e9, ColdStart: time.Second, Memory: 1, MaxTime: MaxTime, MaxPods: -1}
	for range 200 {
		d := k.Decide(c, now)
		if d.Until.IsZero() {
			return
		}
		if !d.Until.After(now) {
			t.Fatalf("at %v a decision holds until %v", now, d.Until)
		}
		now = d.Until
	}
	t.Error("200 decisions within", now.Sub(start))
}

// The pod of a new revision was needed when it was deployed, although no request came yet.
func TestThePodsThatAreThereAtFirstWereNeeded(t *testing.T) {
	k, now := &History{}, time.Unix(1_000_000, 0)
	c := Config{MaxTime: time.Hour, MaxPods: 1, Always: true}
	k.Begin(2, now)
	k.Need(0, now)
	if d := k.Decide(c, now.Add(time.Minute)); d.Keep != 1 {
		t.Errorf("%+v, want one pod kept", d)
	}
	k.Begin(5, now.Add(time.Minute)) // is not the first time
	if d := k.Decide(c, now.Add(2*time.Hour)); d.Keep != 0 {
		t.Errorf("%+v, want none after an hour", d)
	}
}

// A pod that is needed every ten minutes is awake when it is needed, and asleep before and after.
func TestAPodIsWokenAheadOfTheLikelyNextRequest(t *testing.T) {
	k, now := &History{}, time.Unix(1_000_000, 0)
	c := Config{Worth: DefaultWorth, ColdStart: time.Second, Memory: 64, MaxTime: 4 * time.Hour, MaxPods: -1}
	for range 30 {
		k.Need(1, now)
		now = now.Add(time.Second)
		k.Need(0, now)
		now = now.Add(10 * time.Minute)
	}
	k.Need(1, now)
	k.Need(0, now)
	for _, at := range []struct {
		idle  time.Duration
		ahead int32
	}{{time.Second, 0}, {9 * time.Minute, 0}, {10*time.Minute - time.Second, 1}, {10 * time.Minute, 1}, {10*time.Minute + 30*time.Second, 0}} {
		d := k.Decide(c, now.Add(at.idle))
		if d.Ahead != at.ahead {
			t.Errorf("idle for %s: %+v, want %d ahead", at.idle, d, at.ahead)
		}
		if at.idle < 10*time.Minute && d.Until.After(now.Add(10*time.Minute+2*near)) {
			t.Errorf("idle for %s it looks again at %s", at.idle, d.Until.Sub(now))
		}
	}
	k.Need(1, now.Add(13*time.Minute)) // out of the rhythm
	k.Need(0, now.Add(13*time.Minute))
	if d := k.Decide(c, now.Add(23*time.Minute)); d.Ahead != 0 {
		t.Errorf("without a rhythm: %+v", d)
	}
	if d := (&History{}).Decide(c, now); d.Ahead > 0 {
		t.Errorf("without knowledge: %+v", d)
	}
}
