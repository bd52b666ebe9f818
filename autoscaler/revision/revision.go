// Package revision composes the pure cores (window, decide, zero) into the decisions for one
// revision. The autoscaler's loop and the simulator both call it.
//
// Owns: the load series, the decision state, what was learned, and the clocks of one revision.
// Reads: the configuration, pod counts, reports, scrapes, probes and the time that the caller
// passes.
// Writes: nothing but its results.
// Never: looks at a clock, logs, starts a goroutine or does I/O.
package revision

import (
	"fmt"
	"time"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/standby"
)

// driftTime is how long the number of pods may differ from the last scale that was ordered before
// the scale is read again.
const driftTime = 10 * time.Second

// Config is what a PodAutoscaler asks for, resolved with the ConfigMap. It is immutable.
type Config struct {
	// UID and Generation are those of the PodAutoscaler.
	UID        string
	Generation int64
	// Name is the namespace and name of the revision.
	Name string
	// BudgetOwner names the service whose budget pays for scale-ups.
	BudgetOwner string

	Formula     decide.Config
	Zero        zero.Config
	Algorithm   window.Algorithm
	PanicWindow time.Duration
	// Scraped is false when the activators see all traffic.
	Scraped bool
	// Adaptive switches the learned target on.
	Adaptive bool
	// ScaleUp bounds how many pods the service may add.
	ScaleUp Rate
	// Standby lets pods sleep. Without it a pod that is not wanted is deleted.
	Standby *Standby
	// Buffer is how many more pods than busy ones are kept while there is load. With standby they
	// sleep.
	Buffer int32
	// BusyFor bounds for how long a program may say that it is busy; 0 lets it not say that.
	BusyFor time.Duration
	// MinSchedule, if set, raises Zero.Min at its times.
	MinSchedule Schedule
}

// Counts are the pods of one revision by state. Lapsed ones are among those not ready.
type Counts struct {
	Ready, NotReady, Pending, Terminating int32
	// Lapsed pods were ready before, so they can still be at long requests.
	Lapsed int32
	// Asleep pods are none of the others. Deep counts them by level.
	Asleep int32
	Deep   [Levels]int32
	// Alone are asleep pods that could be frozen, but have no node agent. Unfrozen are those whose
	// freeze failed; FreezeFailure says why one of them did.
	Alone, Unfrozen int32
	FreezeFailure   string
	// Memory is what a pod asks for in MiB, 0 if it asks for none.
	Memory int32
	// Shrunk are ready pods that still ask for as little as while they slept.
	Shrunk int32
	// Lost are those not ready on nodes that are lost, and those on silent ones that have not
	// started.
	Lost int32
	// Startup is how the pods get more CPU while they start.
	Startup Startup
}

// Startup is how the pods of a revision get more CPU while they start.
type Startup struct {
	// Reason and Message say what keeps a pod from it, or from its own limit after it.
	Reason, Message string
	// Raised: a pod has it.
	Raised bool
}

// Levels is how many levels of standby there are.
const Levels = int(standby.Compressed) + 1

// Running is how many pods count against the scale target's replicas.
func (c Counts) Running() int32 { return c.Ready + c.NotReady + c.Asleep - c.Terminating }

// Status is what the PodAutoscaler's status should say. It is comparable.
type Status struct {
	Generation   int64
	Active       zero.Condition
	ActiveReason string
	Initialized  bool
	Populated    bool
	// Actual counts the ready pods. Asleep ones are not ready.
	Desired, Actual, Asleep int32
	// Deep, Alone, Unfrozen and FreezeFailure say how those asleep sleep, as Counts has it.
	Deep            [Levels]int32
	Alone, Unfrozen int32
	FreezeFailure   string
	Startup         Startup
	Proxied         bool
	Activators      int32
	// Learned is the result of the last finished lesson, empty before there was one.
	Learned decide.Learned
}

// Explanation is a decision and the step that follows from it.
type Explanation struct {
	Decision decide.Decision
	Step     zero.Step
	// With standby, Awake is how many of the pods are to be awake, and Keep says how many others
	// stay asleep and why. Without it, Keep is nil.
	Awake int32
	Keep  *keep.Decision
	// Busy is how many pods are kept because their programs say that they are busy.
	Busy int32
	// Extra is how many pods more there are to be for Lost ones, as Counts has them.
	Extra, Lost int32
}

// Rule is the rule that determined the outcome.
func (e Explanation) Rule() string {
	if e.Step.Rule != "" {
		return e.Step.Rule
	}
	return e.Decision.Rule.String()
}

// Reason is the sentence that goes with Rule.
func (e Explanation) Reason() string {
	reason := e.Decision.Reason()
	if e.Step.Reason != "" {
		reason = e.Step.Reason + " (" + reason + ")"
	}
	if e.Keep != nil {
		reason += "; asleep: " + e.Keep.Reason
	}
	switch {
	case e.Extra > 0 && e.Lost > 0:
		reason += fmt.Sprintf("; %d more, because %d are on nodes that do not answer", e.Extra, e.Lost)
	case e.Extra > 0:
		reason += fmt.Sprintf("; %d more for now, because so many were on nodes that did not answer", e.Extra)
	}
	return reason
}

// Outcome is what to do after a decision.
type Outcome struct {
	Explanation
	// Changed says that there is something to write: a scale, a status, or a scale to verify.
	Changed bool
	// Held says that the status is not worth a write yet.
	Held bool
	// Scale is true if Replicas must be written. From is the scale that was ordered before, -1 if
	// unknown.
	Scale          bool
	Replicas, From int32
	PodOrders      PodOrders
	// IdleTimes are for the status, if it changed. See keep.History.Text.
	IdleTimes string
	// Verify asks to read the scale first, because the number of pods does not match what was
	// ordered.
	Verify bool
	// Urgent marks a scale-up from zero ready pods: requests may be waiting.
	Urgent bool
	Status Status
	Counts Counts
	// Probe asks for a probe of the public Service. Its answer goes to Probed, along with Epoch.
	Probe bool
	Epoch int
}

// Revision is the state of one revision. It has one owner and no lock.
type Revision struct {
	config *Config
	counts Counts

	series *decide.Series
	// formula and zero are the states of the two steps of a decision.
	formula  decide.State
	zero     zero.State
	adaptive decide.Adaptive
	history  keep.History
	// busy is how many pods have a busy program, busyAt when one was seen last.
	busy   held
	busyAt time.Time
	// awake is how many pods were to be awake last, short since when fewer have been, and looked
	// when pods were last asked whether they sleep.
	awake         held
	asks          bool // for a share of the memory of pods asleep
	short, looked time.Time
	grow          again // gives pods that woke their resources
	// least is the smallest scale, as the schedule says, extra what replacements said last. Until
	// extraUntil it does not fall.
	least, extra int32
	extraUntil   time.Time
	// learned is the result of the last finished lesson, possibly another process's.
	learned decide.Learned

	reporters map[string]reporter
	// queuedAt is how many pods were ready when a queue was reported last.
	queuedAt int32
	prober   prober
	// scraping says that a scrape is under way; scrapeDue is when it was due.
	scraping  bool
	scrapeDue time.Time

	// ordered is the last scale ordered, -1 if unknown. assumed says that it is only what a status
	// and the pods agreed on. driftedAt is since when the number of pods has differed from it.
	ordered   int32
	assumed   bool
	driftedAt time.Time
	// found is the scale that an earlier process reported, surplus how many pods more there were,
	// until the scale is no higher than it needs to be.
	found, surplus int32
	// sent is the last status returned as a change.
	sent     Status
	everSent bool

	clocks clocks
}

// New returns a Revision that nothing is known of but its pods. Import adds what an earlier process
// left.
func New(c *Config, counts Counts, now time.Time) *Revision {
	return &Revision{config: c, counts: counts, ordered: -1, found: zero.Unknown,
		series:    decide.NewSeries(c.Formula.StableWindow, c.PanicWindow),
		formula:   decide.Start(c.Formula, counts.Ready, decide.NoDecision, now),
		zero:      zero.State{ActiveSince: now},
		reporters: map[string]reporter{},
		clocks:    clocks{tick: now, scrape: now}}
}

// Update replaces the configuration.
func (r *Revision) Update(c *Config) {
	r.series.Resize(c.Formula.StableWindow, c.PanicWindow)
	r.config = c
}

// SetCounts takes new pod counts.
func (r *Revision) SetCounts(counts Counts) { r.counts = counts }

// Found tells what the scale is, when it is not what the last order was decided on, -1 if that is
// unknown. The next decision starts from it.
func (r *Revision) Found(replicas int32) {
	r.ordered, r.assumed, r.driftedAt = replicas, false, time.Time{}
}

// Decide makes a decision and returns what follows from it. between marks a decision between two
// ticks, which may only raise the scale.
func (r *Revision) Decide(now time.Time, between bool, budget *Budget) Outcome {
	d := r.evaluate(now, between)
	busy := r.occupied(now)
	step := r.step(&d, busy, now)
	out := Outcome{Explanation: Explanation{Decision: d, Step: step, Awake: r.awake.value, Busy: busy}, Replicas: r.ordered, From: r.ordered,
		Counts: r.counts, Epoch: r.prober.epoch}
	if step.Apply {
		total := int32(0)
		total, out.Awake, out.Keep = r.divide(&d, step.Replicas, busy, budget, now)
		replaced := r.replaced(&d, total, now)
		out.Extra, out.Lost = r.replacements(total, replaced, between || now.Before(r.extraUntil)), r.counts.Lost
		step.Want = max(step.Want-replaced, 0)
		out.Step.Want = step.Want
		total += out.Extra
		out.Replicas = r.withinBudget(total, budget, now)
		out.Urgent = total != r.ordered && r.counts.Ready == 0 && step.Replicas > 0
	}
	if out.Scale = out.Replicas != r.ordered; out.Scale {
		r.ordered, r.assumed, r.driftedAt = out.Replicas, false, time.Time{}
	} else {
		out.Verify = r.drifted(now)
	}
	out.PodOrders = r.orders(&out.Explanation, out.Replicas-out.Extra, now)
	out.Status = r.status(step)
	out.Held = r.turns(out.Status, now)
	differs := !r.everSent || out.Status != r.sent
	if out.Changed = out.Scale || out.Verify || differs && !out.Held; out.Changed && !out.Held {
		r.sent, r.everSent = out.Status, true
		if r.config.Standby != nil {
			out.IdleTimes = r.history.Text()
		}
	}
	if step.Probe {
		out.Probe = r.probe(now)
	}
	return out
}

// replaced is how many lost pods an earlier process has replaced. The scale that was found has
// these replacements in it, beyond what that process wanted and what the load takes; to replace the
// same pods again would add as many with each restart.
func (r *Revision) replaced(d *decide.Decision, total int32, now time.Time) int32 {
	beyond := total - max(d.StableRaw, d.PanicRaw, d.BurstRaw, r.found)
	if beyond <= 0 && !now.Before(r.formula.FloorUntil) {
		r.surplus = 0
	}
	return max(min(r.surplus, r.counts.Lost, beyond), 0)
}

// replacements is how many pods more than total there are to be, because some are lost and were
// not replaced before. With rises it only rises.
func (r *Revision) replacements(total, replaced int32, rises bool) int32 {
	extra := max(alive.Extra(total-replaced, r.counts.Lost)-replaced, 0)
	if rises {
		extra = max(extra, min(r.extra, total))
	}
	r.extra = extra
	return extra
}

// turnWithin is how long a revision may take to leave zero or to reach it before its status tells
// of it. Most take less, and then one write tells all.
const turnWithin = 2 * time.Second

// turns reports whether a revision that was said to be at zero waits for its pods, or one that was
// said to be active for its last pod to go, not for long. Requests must pass the activators before
// that pod goes: if they do not yet, the status has to say so at once.
func (r *Revision) turns(s Status, now time.Time) bool {
	end := r.zero.ActiveSince.Add(turnWithin)
	switch {
	case !r.everSent || !now.Before(end):
		return false
	case r.sent.Active == zero.No && s.Active == zero.Undecided:
		return true
	case r.sent.Active == zero.Yes && s.Active == zero.No && r.sent.Proxied && s.Actual > 0:
		r.lookAgain(end)
		return true
	}
	return false
}

// step decides about zero, and between the bounds of the scale.
func (r *Revision) step(d *decide.Decision, busy int32, now time.Time) zero.Step {
	excess := d.ExcessBurst
	if d.Desired == decide.NoDecision {
		excess = decide.InitialExcessBurst(r.config.Formula, r.config.Zero.Initial)
	}
	r.clocks.step = time.Time{}
	bounds := r.config.Zero
	bounds.Min = r.bounded(r.at(r.config.MinSchedule, now), bounds.Min)
	r.least = bounds.Min
	active := r.zero.Active
	var step zero.Step
	step, r.zero = zero.Decide(bounds, r.zero, zero.Input{Desired: d.Desired, ExcessBurst: excess,
		Ready: r.counts.Ready + r.counts.Asleep, Busy: busy, Probe: r.prober.answer}, now)
	if active != r.zero.Active {
		r.prober.epoch++
	}
	if step.Want > 0 || active != r.zero.Active {
		r.prober.answer = zero.NotProbed
	}
	if step.After > 0 {
		r.lookAgain(now.Add(step.After))
	}
	return step
}

// evaluate runs the formula on what is known now.
func (r *Revision) evaluate(now time.Time, between bool) decide.Decision {
	r.noticePause(now)
	r.awaitScrape(now)
	o := r.series.Observe(now, r.config.Formula.Metric, r.config.Algorithm, r.counts.Ready, r.config.Scraped)
	if others := r.config.Formula.Others; len(others) > 0 {
		o.Others = r.series.ObserveOthers(now, others, r.config.Algorithm, r.counts.Ready)
	}
	o.BetweenTicks, o.Fresh = between, max(r.counts.Ready-r.queuedAt, 0)
	formula := r.config.Formula
	if r.config.Adaptive {
		formula = r.adaptive.Config(formula)
	}
	var d decide.Decision
	d, r.formula = decide.Decide(formula, r.formula, o, now)
	if r.config.Adaptive {
		d.Learned = r.adaptive.String()
	}
	return d
}

// withinBudget cuts a scale-up down to what the service's budget has left, and looks again soon for
// the rest. The first pod is always granted.
func (r *Revision) withinBudget(replicas int32, budget *Budget, now time.Time) int32 {
	from := max(r.ordered, r.counts.Running(), 0)
	if replicas <= from || budget == nil {
		return replicas
	}
	granted := max(from+budget.Grant(r.config.BudgetOwner, replicas-from, r.config.ScaleUp, now), 1)
	if granted != replicas {
		r.clocks.step = now.Add(budgetRetry)
	}
	return granted
}

// drifted reports, once per driftTime, that the number of pods has not matched the last order for
// that long: somebody else may have written the scale or replaced the scale target. If the order is
// only assumed, the last pod may go because an earlier process scaled to zero and ended before its
// status said so: requests would wait for nothing.
func (r *Revision) drifted(now time.Time) bool {
	switch {
	case r.ordered < 0 || r.counts.Running() == r.ordered:
		r.driftedAt = time.Time{}
	case r.assumed && r.counts.Running() == 0:
		r.assumed, r.driftedAt = false, now
		return true
	case r.driftedAt.IsZero():
		r.driftedAt = now
	case now.Sub(r.driftedAt) >= driftTime:
		r.driftedAt = now
		return true
	}
	return false
}

func (r *Revision) status(step zero.Step) Status {
	s := Status{Generation: r.config.Generation, Active: r.zero.Active, ActiveReason: r.zero.ActiveReason,
		Initialized: r.zero.Initialized, Populated: r.counts.Ready > 0, Desired: step.Want, Actual: r.counts.Ready, Asleep: r.counts.Asleep, Deep: r.counts.Deep, Alone: r.counts.Alone,
		Unfrozen: r.counts.Unfrozen, FreezeFailure: r.counts.FreezeFailure, Startup: r.counts.Startup,
		Proxied: r.zero.Proxied, Activators: decide.Activators(r.config.Formula, r.counts.Ready), Learned: r.learned}
	if s.Desired == zero.Unknown {
		// Keep the last known value.
		s.Desired = r.found
		if r.everSent {
			s.Desired = r.sent.Desired
		}
	}
	return s
}
