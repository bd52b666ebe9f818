// Package zero turns a desired scale into the scale to write: within the revision's bounds, and to
// zero only when no request can be lost.
//
// Owns: the bounds, the two steps to zero, the Active condition and the path of requests. Reads:
// the configuration, state, input and time that the caller passes. Writes: nothing but its results.
// Never: looks at a clock or a network. The caller probes when a step asks for it.
package zero

import (
	"fmt"
	"math"
	"time"
)

// Unknown is the wanted scale when there is no decision.
const Unknown int32 = -1

// ActivationSlack is added to the progress deadline of a revision that never became active. The
// Deployment reports its own deadline first, with a better explanation.
const ActivationSlack = 30 * time.Second

// RetryProbe is the time between two probes of the public Service while it does not lead to the
// activators.
const RetryProbe = time.Second

// Condition is the three-valued status of a condition.
type Condition uint8

// The values of a Condition.
const (
	Undecided Condition = iota
	Yes
	No
)

func (c Condition) String() string { return [...]string{"Unknown", "True", "False"}[c] }

// Reasons of the condition Active.
const (
	NoTraffic = "NoTraffic"
	TimedOut  = "TimedOut"
	Queued    = "Queued"
)

// Config is what the revision's annotations and the ConfigMap say, resolved.
type Config struct {
	// Min and Max bound the scale; 0 is no Max. Initial is the scale before the first readiness.
	Min, Max, Initial int32
	// Unreachable is true for a revision that no Route sends traffic to. Min and Initial do not
	// apply then.
	Unreachable bool
	// ScaleToZero is false if one pod is always kept.
	ScaleToZero bool
	// AlwaysProxied is true if the activators are always in the path. Then no probe is needed.
	AlwaysProxied bool
	StableWindow  time.Duration
	// Grace is how long the activators must have been in the path before the last pod is removed.
	// Retention is how long the last pod stays after the last traffic.
	Grace, Retention time.Duration
	ProgressDeadline time.Duration
	// PathHold is how long the activators stay in the path after they were last needed.
	PathHold time.Duration
}

// State is carried from one step to the next.
type State struct {
	Active       Condition
	ActiveReason string
	ActiveSince  time.Time
	// Initialized becomes true once, when the pods asked for were first ready.
	Initialized bool
	// Proxied is true while requests go through the activators, since ProxiedSince.
	Proxied      bool
	ProxiedSince time.Time
	// LastShort is when spare capacity was last below what a burst needs.
	LastShort time.Time
}

// Probe is the latest answer of the public Service.
type Probe uint8

// The answers. An answer from before the present state counts as NotProbed.
const (
	NotProbed Probe = iota
	ProbedActivator
	ProbedOther
)

// Input is what the step depends on besides configuration and state.
type Input struct {
	// Desired is the decided scale, Unknown when there is none.
	Desired int32
	// ExcessBurst is the spare capacity. Below 0 the activators belong in the path.
	ExcessBurst float64
	Ready       int32
	// Busy is how many ready pods have a program that says that it is busy. They stay.
	Busy  int32
	Probe Probe
}

// Step is what to do.
type Step struct {
	// Want is the scale to report.
	Want int32
	// Apply is true if Replicas must be written.
	Apply    bool
	Replicas int32
	// Probe asks for a probe of the public service.
	Probe bool
	// After, if above 0, is when to decide again even if nothing happens.
	After  time.Duration
	Rule   string
	Reason string
}

// The rules of a step; "" stands for the decision's own.
const (
	RuleMinScale     = "min-scale"
	RuleMaxScale     = "max-scale"
	RuleInitialScale = "initial-scale"
	RuleBusy         = "busy-for"
	RuleNeverZero    = "enable-scale-to-zero"
	RuleActivating   = "activating"
	RuleTimedOut     = "activation-timeout"
	RuleStableWindow = "stable-window-before-zero"
	RuleHandOver     = "hand-over"
	RuleProbe        = "probe-activator"
	RuleRetention    = "scale-to-zero-pod-retention-period"
	RuleGrace        = "scale-to-zero-grace-period"
	RuleZero         = "zero"
)

// Decide brings a decided scale within bounds and, if that is zero, takes the next step towards it:
//
//	Active   desired 0 means
//	Unknown  report 0 if none are asked for; else wait for them; after ProgressDeadline + ActivationSlack
//	         give up, write 0
//	True     for less than StableWindow: keep 1; after that: report 0, write nothing. The condition turns
//	         False and the activators enter the path
//	False    once the public service answers as the activator (not asked when AlwaysProxied), and
//	         Retention and Grace have passed: write 0
func Decide(c Config, s State, in Input, now time.Time) (Step, State) {
	if s.ActiveSince.IsZero() {
		s.ActiveSince = now
	}
	step := plan(c, s, in, now)
	s = path(c, s, in, step.Want, now)
	s = activate(c, s, step.Want, in.Ready, now)
	return step, s
}

func plan(c Config, s State, in Input, now time.Time) Step {
	activating := s.Active == Undecided
	if in.Desired < 0 && !activating {
		return Step{Want: Unknown}
	}
	want, rule, reason := bound(c, s, in)
	if want == 0 && !c.ScaleToZero && in.Desired >= 0 {
		want, rule, reason = 1, RuleNeverZero, "scale to zero is disabled, so one pod stays"
	}
	if want > 0 {
		return Step{Want: want, Apply: true, Replicas: want, Rule: rule, Reason: reason}
	}

	since := now.Sub(s.ActiveSince)
	switch s.Active {
	case Undecided:
		if Threshold(c, s) == 0 {
			return wait(0, time.Millisecond, RuleInitialScale, "the initial scale is 0, so no pod is waited for")
		}
		limit := c.ProgressDeadline + ActivationSlack
		if since < limit {
			return wait(Unknown, limit-since, RuleActivating, "waiting until the pods asked for are ready")
		}
		return gone(RuleTimedOut, fmt.Sprintf("no pod became ready within %s", limit))
	case Yes:
		if since < c.StableWindow {
			step := wait(1, c.StableWindow-since, RuleStableWindow, fmt.Sprintf("active for %s, less than the stable window of %s, so one pod stays", seconds(since), c.StableWindow))
			step.Apply, step.Replicas = true, clampMax(c, 1)
			return step
		}
		return wait(0, time.Millisecond, RuleHandOver, "no traffic for a stable window: the activators take over before the last pod goes")
	}
	return leave(c, s, in.Probe, since, now)
}

func wait(want int32, remaining time.Duration, rule, reason string) Step {
	return Step{Want: want, After: max(remaining, time.Millisecond), Rule: rule, Reason: reason}
}

func gone(rule, reason string) Step { return Step{Apply: true, Rule: rule, Reason: reason} }

// leave is the step of a revision whose last pod goes: the activators are to be in the path, and
// the last pod stays for Retention and Grace.
func leave(c Config, s State, probed Probe, since time.Duration, now time.Time) Step {
	if !c.AlwaysProxied {
		switch probed {
		case NotProbed:
			return Step{Probe: true, Rule: RuleProbe, Reason: "asking whether new requests reach an activator"}
		case ProbedOther:
			step := wait(0, RetryProbe, RuleProbe, "new requests do not reach an activator yet, so the last pod stays")
			step.Probe = true
			return step
		}
	}
	retention := c.Retention
	if c.Unreachable {
		retention = 0
	}
	if since >= max(c.Grace, retention) {
		return gone(RuleZero, "no traffic, and activators answer for the revision")
	}
	if since < retention {
		return wait(0, retention-since, RuleRetention, fmt.Sprintf("the last pod stays for %s after the last traffic", retention))
	}
	proxied := time.Duration(0)
	if s.Proxied {
		proxied = now.Sub(s.ProxiedSince)
	}
	if remaining := c.Grace - proxied; remaining > 0 {
		return wait(0, remaining, RuleGrace, fmt.Sprintf("activators have been in the path for %s, the last pod stays for %s of that", seconds(proxied), c.Grace))
	}
	return gone(RuleZero, "no traffic, and activators have been in the path for long enough")
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// bound clamps a scale to the bounds that apply. in.Desired may be Unknown. Busy pods count for a
// revision that no Route leads to, too: their work is not that of requests.
func bound(c Config, s State, in Input) (int32, string, string) {
	low, lowRule := c.Min, RuleMinScale
	if c.Unreachable {
		low = 0
	} else if !s.Initialized && c.Initial > 1 && c.Initial > low {
		low, lowRule = c.Initial, RuleInitialScale
	}
	want := max(in.Desired, 0)
	rule, reason := "", ""
	if want < low {
		want, rule = low, lowRule
		reason = fmt.Sprintf("%s keeps at least %d", lowRule, low)
	}
	if in.Desired >= 0 && want < in.Busy {
		want, rule, reason = in.Busy, RuleBusy, fmt.Sprintf("pods whose programs say that they are busy stay: %d", in.Busy)
	}
	if limit := clampMax(c, want); limit < want {
		reason = fmt.Sprintf("max-scale allows %d of the %d asked for", limit, want)
		want, rule = limit, RuleMaxScale
	}
	return want, rule, reason
}

func clampMax(c Config, scale int32) int32 {
	if c.Max > 0 {
		return min(scale, c.Max)
	}
	return scale
}

// Threshold is the number of ready pods that makes the revision active. It is at most the maximum
// scale.
func Threshold(c Config, s State) int32 {
	low := c.Min
	if c.Unreachable {
		low = 0
	}
	if !s.Initialized {
		return clampMax(c, max(low, c.Initial))
	}
	return clampMax(c, max(low, 1))
}

// activate moves the Active condition, and Initialized.
//
//	want            ready      before            after
//	0 (threshold 0) any        Unknown, thr > 0  False TimedOut
//	0 (threshold 0) any        other             False NoTraffic
//	> 0             below      any               Unknown Queued
//	-1              below      False             False NoTraffic
//	-1              below      True, Unknown     Unknown Queued
//	> 0             at, above  any               True
//	-1              at, above  True, Unknown     True
//	-1              at, above  False             unchanged
func activate(c Config, s State, want, ready int32, now time.Time) State {
	threshold := Threshold(c, s)
	set := func(active Condition, reason string) {
		if active != s.Active {
			s.ActiveSince = now
		}
		s.Active, s.ActiveReason = active, reason
	}
	switch {
	case want == 0 || threshold == 0:
		if s.Active == Undecided && threshold > 0 {
			set(No, TimedOut)
		} else if s.ActiveReason != TimedOut || s.Active != No {
			set(No, NoTraffic)
		}
	case ready < threshold && want == Unknown && s.Active == No:
		if s.ActiveReason == "" {
			set(No, NoTraffic)
		}
	case ready < threshold:
		set(Undecided, Queued)
	case want > 0 || s.Active != No:
		set(Yes, "")
	}
	if ready >= threshold {
		s.Initialized = true
	}
	return s
}

// path decides whether new requests go through the activators. The activators enter the path as
// soon as they are needed, and leave it only after a while: each switch moves every connection, and
// a load close to the limit must not cause one switch after the other.
func path(c Config, s State, in Input, want int32, now time.Time) State {
	short := in.ExcessBurst < 0 || math.IsNaN(in.ExcessBurst)
	if short {
		s.LastShort = now
	}
	proxied := true
	switch {
	case want == 0, short:
	case want == Unknown:
		proxied = s.Proxied || s.Active == No
	case s.Proxied && !s.LastShort.IsZero() && now.Sub(s.LastShort) < c.PathHold:
	default:
		proxied = false
	}
	if proxied && !s.Proxied {
		s.ProxiedSince = now
	}
	s.Proxied = proxied
	return s
}
