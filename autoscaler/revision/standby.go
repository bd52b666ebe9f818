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

// CompressedShare is what a compressed pod takes of its memory: measured, 0.49 to 0.55 of the
// Python sample's, and nearly all of the Go sample's, of which queue-proxy is the most. Too little
// would let pods that sleep take more than standby-memory.
const CompressedShare = 0.55

// PodOrders is what pods are to be told now. An order that was lost comes again with the next ones.
type PodOrders struct {
	// Wake and Sleep are how many pods. At most one of them is not 0.
	Wake, Sleep int32
	// Look asks the pods that are not ready whether they sleep, and how deeply. Grow gives the pods
	// that woke the resources that they ask for.
	Look, Grow bool
	Level      standby.Level
}

// lookPeriod is the time between two looks at the pods that sleep. A pod that wakes says so itself.
const lookPeriod = 30 * time.Second

// wakeAfter is how long too few pods have been awake before some are told to wake. A request wakes
// its pod itself, and the pod says so standby.SettleTime after that; the request may be known
// before. Nearly all compressed pods wake within 60 ms.
const wakeAfter = 100 * time.Millisecond

// again paces what is to be done again and again until a number is 0: at once if it rises, and else
// after twice the time each time.
type again struct {
	last int32
	wait time.Duration
	next time.Time
}

// The shortest and the longest wait before pods that woke are given their resources once more. A
// quota may refuse that for ever.
const firstAgain, lastAgain = TickPeriod, time.Minute

func (a *again) due(n int32, now time.Time) bool {
	rises := n > a.last
	a.last = n
	switch {
	case rises:
		a.wait = firstAgain
	case n == 0 || now.Before(a.next):
		return false
	default:
		a.wait = min(2*a.wait, lastAgain)
	}
	a.next = now.Add(a.wait)
	return true
}

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

// sleepers is what is known of the pods that sleep or may.
type sleepers struct {
	history keep.History
	awake   held // how many pods were to be awake last
	// short is since when fewer have been awake, looked is when pods were last asked whether they
	// sleep.
	short, looked time.Time
	grow          again // gives pods that woke their resources
	asks          bool  // for a share of the memory of pods asleep
}

// divide divides a scale into pods that are awake and pods that sleep. total is the scale of both
// together; kept says why how many sleep, nil without standby.
func (r *Revision) divide(d *decide.Decision, want, busy int32, budget *Budget, now time.Time) (total, awake int32, kept *keep.Decision) {
	used, spare := min(r.used(d, want), want), int32(0)
	if used > 0 {
		spare = r.config.Buffer
	}
	s := r.config.Standby
	if s == nil {
		r.ask(budget, 0, 0)
		return r.bounded(used+spare, want), r.awake.value, nil
	}
	awake = r.toBeAwake(d, want, busy, now)
	used = min(awake, used)
	idle := awake - used // awake, and not needed by the load
	k, memory := r.worthKeeping(want, used, idle, budget, now)
	if r.config.Zero.Unreachable {
		spare = 0
	}
	asked, why := r.granted(k, awake, spare-idle, memory, budget, now)
	asleep, reason := k.Keep, k.Reason
	if s.Always || asked > asleep {
		asleep, reason = asked, why
	}
	total = r.bounded(awake+max(asleep, 0), want)
	asleep = total - awake
	return total, awake, &keep.Decision{Keep: asleep, Ahead: min(max(k.Ahead-idle, 0), asleep), Until: k.Until, Reason: reason}
}

// worthKeeping is how many pods are to sleep because that is worth it, and what each takes in MiB.
// Those that are idle and awake are not among them.
func (r *Revision) worthKeeping(want, used, idle int32, budget *Budget, now time.Time) (k keep.Decision, memory float64) {
	r.history.Begin(max(want, r.counts.Ready+r.counts.Asleep), now)
	r.history.Need(used, now)
	worth := r.worth(idle, budget)
	k = r.history.Decide(worth, now)
	r.lookAgain(k.Until)
	k.Keep -= idle
	if r.config.Zero.Unreachable {
		k.Keep, k.Reason = 0, "no Route leads to the revision"
	}
	return k, worth.Memory
}

// granted is how many pods are to sleep whatever they are worth, as far as max-scale and the
// namespace's share have room for them, and why.
func (r *Revision) granted(k keep.Decision, awake, spare int32, memory float64, budget *Budget, now time.Time) (pods int32, why string) {
	asked, why := r.asked(k, spare, now)
	asked = max(r.bounded(awake+asked, 0)-awake, 0)
	if pods = r.ask(budget, asked, memory); pods < asked {
		why = fmt.Sprintf("the namespace's share of standby-memory has room for %d of %d pods asleep (%s)", pods, asked, why)
	}
	return pods, why
}

// toBeAwake is how many pods are to be awake: those that the load of the last seconds takes, those
// whose programs are busy, and the last one until requests reach the activators.
func (r *Revision) toBeAwake(d *decide.Decision, want, busy int32, now time.Time) int32 {
	awake := r.awake.need(min(max(r.needed(d, want), busy), want), r.config.Standby.After, now)
	if awake == 0 && want > 0 && !r.reachActivators(now) {
		awake = 1
	}
	return min(awake, want)
}

// worth is what pods that sleep are worth now, if so many that are awake are idle.
func (r *Revision) worth(idle int32, budget *Budget) keep.Config {
	c := r.config.Standby.Config
	if budget != nil {
		c.Worth /= budget.Memory.Price()
	}
	if m := r.counts.Memory; m > 0 {
		c.Memory = float64(m)
	}
	if r.config.Standby.Level == standby.Compressed {
		c.Memory *= CompressedShare
	}
	if c.MaxPods >= 0 {
		c.MaxPods += idle
	}
	return c
}

// asked is how many pods are to sleep whatever they are worth, and why.
func (r *Revision) asked(k keep.Decision, spare int32, now time.Time) (pods int32, why string) {
	why = k.Reason
	if r.config.Standby.Always {
		pods, k.Keep = k.Keep, 0
	}
	if scheduled := r.at(r.config.Standby.Schedule, now); scheduled > max(pods, k.Keep) && !r.config.Zero.Unreachable {
		pods, why = scheduled, fmt.Sprintf("the schedule asks for %d (%s)", scheduled, why)
	}
	if spare > max(pods, k.Keep) {
		pods, why = spare, fmt.Sprintf("scale-buffer asks for %d more (%s)", spare, why)
	}
	return pods, why
}

// ask asks the namespace's share for pods that sleep without paying. Most revisions never do, and
// all share a lock.
func (r *Revision) ask(budget *Budget, pods int32, each float64) int32 {
	if pods == 0 && !r.asks {
		return 0
	}
	if r.asks = pods > 0; budget == nil {
		return pods
	}
	return budget.Memory.Ask(r.config.Name, pods, each)
}

// bounded is the larger of two scales, the first one within max-scale.
func (r *Revision) bounded(total, want int32) int32 {
	if most := r.config.Zero.Max; most > 0 {
		total = min(total, most)
	}
	return max(total, want)
}

// orders says what pods are to be told, if so many replicas are ordered.
func (r *Revision) orders(e *Explanation, replicas int32, now time.Time) PodOrders {
	s, c, look, awake := r.config.Standby, *r.counts, lookPeriod, e.Awake
	if e.Keep != nil {
		awake += e.Keep.Ahead
	}
	o := PodOrders{Grow: r.grow.due(c.Shrunk, now)}
	if c.Ready >= awake {
		r.short = time.Time{}
	}
	switch {
	case s == nil: // standby may have been switched off
		o.Wake = c.Asleep
	case !e.Step.Apply:
	case c.Ready < awake:
		o.Wake = r.missing(min(awake-c.Ready, c.Asleep), now)
	case r.config.Zero.Unreachable: // they go once the scale falls
	default: // the pods that go are not put to sleep first
		o.Sleep = max(min(c.Ready-awake, replicas-awake-c.Asleep), 0)
	}
	if s != nil {
		o.Level = s.Level
		if c.Deep[standby.Frozen] > 0 && s.Level == standby.Compressed {
			look = lookPeriod / 2
		}
		if c.Lapsed > 0 {
			look = TickPeriod
		}
	}
	if c.Lapsed+c.Asleep > 0 && now.Sub(r.looked) >= look {
		r.looked, o.Look = now, true
	}
	return o
}

// missing is how many of n pods that are missing are to be told to wake: all of them, once some
// have been missing for wakeAfter.
func (r *Revision) missing(n int32, now time.Time) int32 {
	if n == 0 {
		return 0
	}
	if r.short.IsZero() {
		r.short = now
	}
	if at := r.short.Add(wakeAfter); now.Before(at) {
		r.lookAgain(at)
		return 0
	}
	return n
}

// needed is how many pods the load of the last seconds takes, if want are wanted.
func (r *Revision) needed(d *decide.Decision, want int32) int32 {
	if d.Desired == decide.NoDecision || !r.zero.Initialized {
		return want
	}
	needed := max(d.PanicRaw, d.BurstRaw, busy(d))
	if !r.config.Zero.Unreachable {
		needed = max(needed, r.least)
	}
	return needed
}

// used is how many pods the load of the last seconds would fill, if want are wanted. Pods beyond
// that are awake so that a pod is not full; a request does not wait for them.
func (r *Revision) used(d *decide.Decision, want int32) int32 {
	if d.Desired == decide.NoDecision || !r.zero.Initialized {
		return want
	}
	return max(int32(math.Ceil(max(d.Observation.Panic, d.Observation.Burst)/r.config.Formula.Total)), busy(d))
}

// busy is 1 while a request is in flight that the metric does not count: a stream is one request,
// and its rate is 0 while it is open.
func busy(d *decide.Decision) int32 {
	if d.Observation.Busy > 0 {
		return 1
	}
	return 0
}

// reachActivators reports whether requests do, so that the last pod may sleep.
func (r *Revision) reachActivators(now time.Time) bool {
	return r.config.Zero.AlwaysProxied || r.zero.Proxied && now.Sub(r.zero.ProxiedSince) >= r.config.Zero.Grace
}
