// Package decide computes how many pods a revision needs, and says why.
//
// Owns: the formula, its state between two decisions, and the load series it reads.
// Reads: the configuration, observation and time that the caller passes.
// Writes: nothing but its results.
// Never: looks at a clock, logs, starts a goroutine, or lowers a scale because data is missing.
package decide

import (
	"math"
	"time"
)

// NoDecision is the desired scale before there was any data to decide on.
const NoDecision int32 = -1

// Config is what the revision's annotations and the ConfigMap say, resolved.
type Config struct {
	// Total is the load that a pod can take, Target the load per pod that the autoscaler aims for.
	Total, Target float64
	// Metric is the unit of Total, Target and the averages.
	Metric Metric
	// ContainerConcurrency is the hard limit of a pod, 0 when there is none.
	ContainerConcurrency float64
	// TargetBurstCapacity is the additional load that the pods must be able to take without the
	// activator. -1 keeps the activator in the path, 0 removes it as soon as there are pods.
	TargetBurstCapacity float64
	// ActivatorCapacity is the load that one activator is meant to carry.
	ActivatorCapacity float64
	// MaxScaleUpRate and MaxScaleDownRate bound desired/ready and ready/desired of one decision.
	MaxScaleUpRate, MaxScaleDownRate float64
	// ActivationScale, if above 1, is the minimum scale under any load.
	ActivationScale int32
	// PanicThreshold is the ratio of wanted to ready pods at which panic begins.
	PanicThreshold float64
	StableWindow   time.Duration
	// ScaleDownDelay is how long the highest desired scale is kept, 0 for none.
	ScaleDownDelay time.Duration
	// Reachable is false for a revision that no Route sends traffic to. Such a revision may shrink
	// at once.
	Reachable bool
	// Others are the further metrics. They do not go with Steady.
	Others []Other
	// Steady keeps the number of pods constant under a constant load with noise. It is used with a
	// learned target only, not in the compatible decision. Trying is true while the target is one
	// that is being tried.
	Steady, Trying bool
}

// Share is the share of a pod's capacity that the autoscaler aims for, above 0 and at most 1.
func (c Config) Share() float64 {
	if !(c.Total > 0) || !(c.Target > 0) {
		return 1
	}
	return math.Min(1, c.Target/c.Total)
}

// Observation is what is known about the load at the moment of a decision.
type Observation struct {
	// Ready is the number of ready pods. Fresh is how many of them became ready after the queue was
	// reported. They take requests from the queue, so their capacity is not added to it.
	Ready, Fresh int32
	// Stable and Panic are the averages over the two windows.
	Stable, Panic float64
	// Known is false if the load of every second in the window is incomplete. The averages are then
	// lower bounds, and only a panic, a burst or a queue changes the scale.
	Known bool
	// Missing is true if the newest data did not arrive, so that the averages cover older seconds
	// only.
	Missing bool
	// Burst is the load of the newest second. Queued is the number of queued requests now. Both are
	// 0 if not reported.
	Burst, Queued float64
	// Pushed is true if part of Burst is a momentary value that a reporter sent out of turn, not
	// the average of a second.
	Pushed bool
	// Unheard is the number of requests in the pods while an activator is silent, otherwise 0. If
	// the pods are full, more requests may be queued in that activator.
	Unheard float64
	// InFlight is the stable average of requests in flight, where the scale follows another metric.
	// Busy is the one over the panic window.
	InFlight, Busy float64
	// Others are the loads by the further metrics, in their order.
	Others []OtherLoad
	// BetweenTicks marks a decision that was made because data arrived. It can only raise the
	// scale.
	BetweenTicks bool
}

// State is carried from one decision to the next. It is a value: a decision returns a new one.
type State struct {
	Desired int32
	// PanicSince is when a load above the threshold was last seen, zero outside panic; PanicMax is
	// the highest scale decided since the panic began.
	PanicSince time.Time
	PanicMax   int32
	// Floor is the minimum scale until FloorUntil: the scale found when this process took over the
	// revision. It holds until this process has seen a whole window.
	Floor      int32
	FloorUntil time.Time
	// Delay holds the maxima of the scale-down delay.
	Delay delayWindow
	// Held is the hysteresis of a learned target, Tried that of a try.
	Held, Tried Hysteresis
	// Assumed is true if the panic is the one that a start with several pods assumes.
	Assumed bool
}

// Start returns the state of a revision that is new to this process. found is the scale that an
// earlier process left, NoDecision for a new revision.
func Start(c Config, ready, found int32, now time.Time) State {
	s := State{Desired: NoDecision}
	if found > 0 {
		s.Floor, s.FloorUntil = found, now.Add(c.StableWindow)
	}
	if ready > 1 {
		s.PanicSince, s.PanicMax, s.Assumed = now, ready, true
	}
	return s
}

// Decision is the outcome of Decide together with everything it was computed from.
type Decision struct {
	Time    time.Time
	Desired int32
	// ExcessBurst is the spare capacity beyond TargetBurstCapacity; below 0 the activator belongs
	// in the path.
	ExcessBurst float64
	Panicking   bool
	Rule        Rule

	Observation Observation
	Target      float64
	Total       float64
	Metric      Metric
	// StableRaw, PanicRaw and BurstRaw are the scales the averages ask for before any limit, Low
	// and High the limits of the scaling rates.
	StableRaw, PanicRaw, BurstRaw int32
	Low, High                     int32
	// StableBy and PanicBy say whose average asked for StableRaw and PanicRaw: 0 is Metric's, a
	// higher number one of the others'.
	StableBy, PanicBy int8
	// Held is the value that the deciding rule used: a remembered maximum or a floor.
	Held         int32
	PanicSeconds float64
	// Learned describes the learned target, "" for a configured one.
	Learned string
}

// Decide is the formula. In the order of its steps:
//
//	raw        stable and panic average divided by the target, rounded up, of the metric that asks
//	           for the most; a queue or the newest second alone ("burst") asks likewise
//	hysteresis of an adaptive target: a stable number that noise could raise again is not lowered
//	rate       each is held within [ready/MaxScaleDownRate, ready*MaxScaleUpRate]
//	activation any load at all asks for at least ActivationScale
//	panic      from threshold*ready on, until a stable window passes without: the larger of the
//	           two, and never less than since the panic began
//	queue      requests wait and no pod is ready: at once what the queue asks for
//	delay      the maximum over ScaleDownDelay
//	in flight  never zero while a request is in flight, whatever the metric
//	safety     never less than before between ticks, on missing data, or before a window has been seen
func Decide(c Config, s State, o Observation, now time.Time) (Decision, State) {
	d := Decision{Time: now, Observation: o, Target: c.Target, Total: c.Total, Metric: c.Metric,
		ExcessBurst: ExcessBurst(c, o)}
	r := math.Max(1, float64(o.Ready))
	burst := o.burst(c)
	// A single second or moment is weak evidence. It counts only if it exceeds the threshold before
	// rounding up: for a single pod and a threshold of 2, rounding up would do this for any load
	// above the target.
	suddenly := burst/c.Target >= c.PanicThreshold*r
	d.PanicRaw, d.PanicBy = c.most(o.Panic, o.Others, func(l *OtherLoad) float64 { return l.Panic })
	over := float64(d.PanicRaw)/r >= c.PanicThreshold
	if !o.Known && o.Queued == 0 && !suddenly && !over {
		d.PanicRaw = 0
		d.Desired, d.Rule = s.Desired, RuleNoData
		d.Panicking = !s.PanicSince.IsZero()
		return d, s
	}

	d.StableRaw, d.StableBy = c.most(o.Stable, o.Others, func(l *OtherLoad) float64 { return l.Stable })
	d.BurstRaw = pods(burst / c.Target)
	d.High = pods(c.MaxScaleUpRate * r)
	if c.Reachable {
		d.Low = int32(math.Floor(r / c.MaxScaleDownRate))
	}

	urgentRaw, urgentName := d.PanicRaw, RulePanic
	if suddenly || o.Queued > 0 && o.Ready == 0 {
		over = over || suddenly
		if d.BurstRaw > urgentRaw {
			urgentRaw, urgentName = d.BurstRaw, RuleBurst
		}
	}
	urgent, urgentRule := limited(c, d, urgentRaw, urgentName)
	stableRaw, stableName := d.StableRaw, RuleStable
	if c.Steady && c.Reachable {
		sudden := int32(0)
		if over {
			sudden = urgentRaw
		}
		stableRaw, stableName = s.steady(c, &d, o, sudden, now)
	}
	stable, stableRule := limited(c, d, stableRaw, stableName)

	switch {
	case over:
		s.PanicSince, s.Assumed = now, false
	case !s.PanicSince.IsZero() && s.PanicSince.Add(c.StableWindow).Before(now):
		s.PanicSince, s.PanicMax = time.Time{}, 0
	}

	d.Desired, d.Rule = stable, stableRule
	d.panic(&s, urgent, urgentRule, now)
	if o.Queued > 0 && o.Ready == 0 && (urgent > d.Desired || d.Desired == 0) {
		d.Desired, d.Rule = max(urgent, 1), RuleQueue
	}

	d.hold(c, &s, o, now)
	s.Desired = d.Desired
	return d, s
}

// burst is the load of the last second or of this moment, with the requests that wait.
func (o Observation) burst(c Config) float64 {
	if o.Queued > 0 && c.Metric == Concurrency {
		// Requests are queued only if all slots of the pods that were ready are in use.
		return math.Max(o.Burst, o.Queued+float64(o.Ready-o.Fresh)*c.ContainerConcurrency)
	}
	return o.Burst
}

// panic decides, while the load is or was above the threshold, for what is urgent, and for no less
// than since the panic began.
func (d *Decision) panic(s *State, urgent int32, rule Rule, now time.Time) {
	if d.Panicking = !s.PanicSince.IsZero(); !d.Panicking {
		return
	}
	d.PanicSeconds = now.Sub(s.PanicSince).Seconds()
	if urgent > d.Desired {
		d.Desired, d.Rule = urgent, rule
	}
	if d.Desired < s.PanicMax {
		d.Desired, d.Rule, d.Held = s.PanicMax, RulePanicHold, s.PanicMax
	}
	s.PanicMax = d.Desired
}

// hold keeps the scale from falling below what was found or decided before, where that is safer.
func (d *Decision) hold(c Config, s *State, o Observation, now time.Time) {
	hold := func(floor int32, rule Rule) {
		if floor > d.Desired {
			d.Desired, d.Rule, d.Held = floor, rule, floor
		}
	}
	if c.ScaleDownDelay > 0 && c.Reachable {
		var highest int32
		s.Delay, highest = s.Delay.record(now, d.Desired, c.ScaleDownDelay)
		hold(highest, RuleScaleDownDelay)
	}
	if now.Before(s.FloorUntil) {
		hold(s.Floor, RuleWarmUp)
	}
	if pods(o.InFlight) > 0 {
		hold(1, RuleInFlight) // a WebSocket is one request, and its rate is 0 while it is open
	}
	if o.unknown() != nil {
		hold(max(s.Desired, 1), RuleMissingMetric)
	}
	if o.lacks(c) {
		hold(s.Desired, RuleMissingData)
	}
	if o.BetweenTicks {
		hold(s.Desired, RuleBetweenTicks)
	}
}

// full is the share of its hard limit at which a pod counts as full. Requests that end and begin
// keep the average slightly below the limit.
const full = 0.9

// hides reports whether requests may be queued in a silent activator. This is possible only while
// the pods are full.
func (o Observation) hides(c Config) bool {
	return o.Unheard > 0 && c.ContainerConcurrency > 0 && o.Unheard >= full*c.ContainerConcurrency*float64(o.Ready)
}

// lacks reports whether the load may be higher than observed.
func (o Observation) lacks(c Config) bool { return o.Missing || !o.Known || o.hides(c) }

// limited applies the rate limits and the activation scale to one raw scale.
func limited(c Config, d Decision, raw int32, rule Rule) (int32, Rule) {
	wanted := raw
	switch {
	case wanted > d.High:
		wanted, rule = d.High, RuleMaxScaleUpRate
	case wanted < d.Low:
		wanted, rule = d.Low, RuleMaxScaleDownRate
	}
	if c.ActivationScale > 1 && raw > 0 && wanted < c.ActivationScale {
		wanted, rule = c.ActivationScale, RuleActivationScale
	}
	return wanted, rule
}

// ExcessBurst is the capacity of the ready pods beyond the load and the burst that must find room.
func ExcessBurst(c Config, o Observation) float64 {
	switch {
	case c.TargetBurstCapacity == 0:
		return 0
	case c.TargetBurstCapacity < 0:
		return -1
	}
	return math.Floor(float64(o.Ready)*c.Total - c.TargetBurstCapacity - o.Panic)
}

// InitialExcessBurst is what ExcessBurst is taken for before there was a decision.
func InitialExcessBurst(c Config, initialScale int32) float64 {
	if c.TargetBurstCapacity == 0 || c.TargetBurstCapacity < 0 {
		return c.TargetBurstCapacity
	}
	return float64(initialScale)*c.Total - c.TargetBurstCapacity
}

// MinActivators is how many activators stand in the path of a revision at least.
const MinActivators = 2

// Activators is how many activators the revision needs in its path, by their capacity.
func Activators(c Config, ready int32) int32 {
	capacity := float64(ready) * c.Total
	switch {
	case c.TargetBurstCapacity == 0:
		return MinActivators
	case c.TargetBurstCapacity > 0:
		capacity += c.TargetBurstCapacity
	}
	return max(MinActivators, pods(capacity/c.ActivatorCapacity))
}

// pods rounds up to whole pods and never leaves the range of a replica count.
func pods(f float64) int32 {
	f = math.Ceil(f)
	switch {
	case f >= math.MaxInt32:
		return math.MaxInt32
	case f > 0:
		return int32(f)
	}
	return 0 // also for NaN
}
