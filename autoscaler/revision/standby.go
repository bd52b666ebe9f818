package revision

import (
	"fmt"
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/standby"
)

// Standby says how the pods of a revision sleep. It is immutable.
type Standby struct {
	keep.Config
	// After is how long a pod must not have been needed before it falls asleep. A pod that is still
	// wanted by the averages may sleep too: it is awake again within milliseconds.
	After time.Duration
	// Level is how deeply pods may sleep.
	Level standby.Level
	// Schedule, if set, says how many pods are at least kept asleep.
	Schedule Schedule
}

// Schedule asks for a number of pods at a time. until is when the answer may change, zero for
// never.
type Schedule interface {
	At(now time.Time) (pods int32, until time.Time)
}

// at asks a schedule, nil for none, and looks again when its answer may change.
func (r *Revision) at(s Schedule, now time.Time) int32 {
	if s == nil {
		return 0
	}
	pods, until := s.At(now)
	r.lookAgain(until)
	return pods
}

// lookAgain makes the revision due at a time, zero for never.
func (r *Revision) lookAgain(at time.Time) {
	if !at.IsZero() && (r.clocks.step.IsZero() || at.Before(r.clocks.step)) {
		r.clocks.step = at
	}
}

// CompressedShare is what a compressed pod takes of its memory.
const CompressedShare = 0.4

// Stir is what pods are to be told now. An order that was lost is in the next Stir again.
type Stir struct {
	// Wake and Sleep are how many pods. At most one of them is not 0.
	Wake, Sleep int32
	// Look asks the pods that are not ready whether they sleep, and how deeply. Grow gives the pods
	// that woke the resources that they ask for.
	Look, Grow bool
	Level      standby.Level
}

// lookPeriod is the time between two looks at the pods that sleep. A pod that wakes says so itself.
const lookPeriod = 30 * time.Second

// held is a number that rises at once, and falls after it has been higher than needed for a while,
// to the most that was needed in that time.
type held struct {
	value, most int32
	since       time.Time // that it is higher than needed
}

func (h *held) need(n int32, after time.Duration, now time.Time) int32 {
	switch {
	case n >= h.value:
		*h = held{value: n}
	case h.since.IsZero():
		h.most, h.since = n, now
	default:
		h.most = max(h.most, n)
	}
	if !h.since.IsZero() && now.Sub(h.since) >= after {
		*h = held{value: h.most}
	}
	return h.value
}

// stand divides a scale into pods that are awake and pods that sleep. It returns the scale of both
// together.
func (r *Revision) stand(out *Outcome, budget *Budget, now time.Time) int32 {
	want, s := out.Step.Replicas, r.config.Standby
	used := min(want, r.used(out))
	spare := int32(0)
	if used > 0 {
		spare = r.config.Buffer
	}
	if s == nil {
		r.ask(budget, 0, 0)
		return r.bounded(used+spare, want)
	}
	awake := r.awake.need(min(r.needed(out), want), s.After, now)
	if awake == 0 && want > 0 && !r.sheltered(now) {
		awake = 1
	}
	out.Awake = min(awake, want)
	used = min(out.Awake, used)
	r.keeper.Begin(max(want, r.counts.Ready+r.counts.Asleep), now)
	r.keeper.Need(used, now)
	worth := s.Config
	worth.Worth /= budget.Price()
	if m := r.counts.Memory; m > 0 {
		worth.Memory = float64(m)
	}
	if s.Level == standby.Compressed {
		worth.Memory *= CompressedShare
	}
	idle := out.Awake - used // awake, and not needed by the load
	if worth.Most >= 0 {
		worth.Most += idle
	}
	kept := r.keeper.Decide(worth, now)
	r.lookAgain(kept.Until)
	kept.Keep -= idle
	if r.config.Zero.Unreachable {
		kept.Keep, spare, kept.Reason = 0, 0, "no Route leads to the revision"
	}
	asked, why := int32(0), kept.Reason
	if s.Always {
		asked, kept.Keep = kept.Keep, 0
	}
	if scheduled := r.at(s.Schedule, now); scheduled > max(asked, kept.Keep) && !r.config.Zero.Unreachable {
		asked, why = scheduled, fmt.Sprintf("the schedule asks for %d (%s)", scheduled, why)
	}
	if spare -= idle; spare > max(asked, kept.Keep) {
		asked, why = spare, fmt.Sprintf("scale-buffer asks for %d more (%s)", spare, why)
	}
	asked = max(r.bounded(out.Awake+asked, 0)-out.Awake, 0)
	if granted := r.ask(budget, asked, worth.Memory); granted < asked {
		asked, why = granted, fmt.Sprintf("the namespace's share of standby-memory has room for %d of %d pods asleep (%s)", granted, asked, why)
	}
	if s.Always || asked > kept.Keep {
		kept.Keep, kept.Reason = max(asked, kept.Keep), why
	}
	total := r.bounded(out.Awake+max(kept.Keep, 0), want)
	kept.Keep = total - out.Awake
	kept.Ahead = min(max(kept.Ahead-idle, 0), kept.Keep)
	out.Keep = &kept
	return total
}

// ask asks the namespace's share for pods that sleep without paying. Most revisions never do, and
// all share the budget's lock.
func (r *Revision) ask(budget *Budget, pods int32, each float64) int32 {
	if pods == 0 && !r.asks {
		return 0
	}
	r.asks = pods > 0
	return budget.Ask(r.config.Name, pods, each)
}

// bounded is the larger of two scales, the first one within max-scale.
func (r *Revision) bounded(total, want int32) int32 {
	if most := r.config.Zero.Max; most > 0 {
		total = min(total, most)
	}
	return max(total, want)
}

// stir says what pods are to be told.
func (r *Revision) stir(out *Outcome, now time.Time) {
	s, c, look, awake := r.config.Standby, r.counts, lookPeriod, out.Awake
	if out.Keep != nil {
		awake += out.Keep.Ahead
	}
	switch {
	case s == nil: // standby may have been switched off
		out.Stir.Wake = c.Asleep
	case !out.Step.Apply:
	case c.Ready < awake:
		out.Stir.Wake = min(awake-c.Ready, c.Asleep)
	case r.config.Zero.Unreachable: // they go once the scale falls
	default: // the pods that go are not put to sleep first
		out.Stir.Sleep = max(min(c.Ready-awake, out.Replicas-awake-c.Asleep), 0)
	}
	out.Stir.Grow = c.Shrunk > 0
	if s != nil {
		out.Stir.Level = s.Level
		if c.Deep[standby.Frozen] > 0 && s.Level == standby.Compressed {
			look = lookPeriod / 2
		}
		if c.Lapsed > 0 {
			look = TickPeriod
		}
	}
	if c.Lapsed+c.Asleep > 0 && now.Sub(r.looked) >= look {
		r.looked, out.Stir.Look = now, true
	}
}

// needed is how many pods the load of the last seconds takes.
func (r *Revision) needed(out *Outcome) int32 {
	d := out.Decision
	if d.Desired == decide.NoDecision || !r.zero.Initialized {
		return out.Step.Replicas
	}
	needed := max(d.PanicRaw, d.BurstRaw)
	if !r.config.Zero.Unreachable {
		needed = max(needed, r.least)
	}
	return needed
}

// used is how many pods the load of the last seconds would fill. Pods beyond that are awake so that
// a pod is not full; a request does not wait for them.
func (r *Revision) used(out *Outcome) int32 {
	d, f := out.Decision, r.config.Formula
	if d.Desired == decide.NoDecision || !r.zero.Initialized {
		return out.Step.Replicas
	}
	return int32(math.Ceil(max(d.Observation.Panic, d.Observation.Burst) / f.Total))
}

// sheltered reports whether requests reach the activators, so that the last pod may sleep.
func (r *Revision) sheltered(now time.Time) bool {
	return r.config.Zero.AlwaysProxied || r.zero.Proxied && now.Sub(r.zero.ProxiedSince) >= r.config.Zero.Grace
}
