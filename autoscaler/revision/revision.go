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
	"time"
	"unique"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
)

// Config is what a PodAutoscaler asks for, resolved with the ConfigMap. It is immutable.
type Config struct {
	// UID and Generation are those of the PodAutoscaler.
	UID        string
	Generation int64
	// Name is the namespace and name of the revision.
	Name string
	// BudgetOwner names the service whose budget pays for scale-ups.
	BudgetOwner string
	*Rules
}

// Rules are what many revisions have in common. They are immutable.
type Rules struct {
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

// Revision is the state of one revision. It has one owner and no lock.
type Revision struct {
	config *Config
	counts *Counts // never written to

	// formula and zero are the states of the two steps of a decision, least is the smallest scale,
	// as the schedule says.
	formula decide.State
	zero    zero.State
	least   int32
	// queuedAt is how many pods were ready when a queue was reported last.
	queuedAt int32

	prober prober
	clocks clocks
	inherited
	lastOrder
	lastStatus

	*lively
	idle decide.Idle // what is left of the series while lively is nil
}

// lively is what a revision has no use for while it is at zero, as most are. It is nil then:
// whoever needs it calls wake before, and Rest drops it.
type lively struct {
	series   *decide.Series
	adaptive decide.Adaptive
	// learned is the result of the last finished lesson, possibly another process's.
	learned decide.Learned

	reports
	busyPods
	sleepers
	lostPods
}

// New returns a Revision that nothing is known of but its pods. Import adds what an earlier process
// left.
func New(c *Config, counts Counts, now time.Time) *Revision {
	r := &Revision{config: c, counts: &none,
		formula:   decide.Start(c.Formula, counts.Ready, decide.NoDecision, now),
		zero:      zero.State{ActiveSince: now},
		clocks:    clocks{tick: now, scrape: now},
		inherited: inherited{found: zero.Unknown},
		lastOrder: lastOrder{ordered: -1}}
	r.SetCounts(counts)
	return r
}

// Update replaces the configuration.
func (r *Revision) Update(c *Config) {
	if r.lively != nil {
		r.series.Resize(c.Formula.StableWindow, c.PanicWindow)
	}
	r.config = c
}

// none are the counts of a revision without pods.
var none Counts

// SetCounts takes new pod counts.
func (r *Revision) SetCounts(counts Counts) {
	switch counts {
	case *r.counts:
	case none:
		r.counts = &none
	default:
		r.counts = &counts
	}
}

// Counts returns the pod counts, which nobody may change.
func (r *Revision) Counts() *Counts { return r.counts }

// Decide makes a decision and returns what follows from it. between marks a decision between two
// ticks, which may only raise the scale.
func (r *Revision) Decide(now time.Time, between bool, budget *Budget) Outcome {
	r.wake()
	d := r.evaluate(now, between)
	busy := r.occupied(now)
	step := r.step(&d, busy, now)
	out := Outcome{Explanation: Explanation{Decision: d, Step: step, Awake: r.awake.value, Busy: busy}, Replicas: r.ordered, From: r.ordered,
		Counts: *r.counts, Epoch: r.prober.epoch}
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
		r.lastOrder = lastOrder{ordered: out.Replicas}
	} else {
		out.Verify = r.drifted(r.counts.Running(), now)
	}
	out.PodOrders = r.orders(&out.Explanation, out.Replicas-out.Extra, now)
	out.Status = r.status(step)
	out.Held = r.turns(out.Status, now)
	differs := !r.everSent || out.Status != r.sent.Value()
	if out.Changed = out.Scale || out.Verify || differs && !out.Held; out.Changed && !out.Held {
		if differs {
			r.sent, r.everSent = unique.Make(out.Status), true
		}
		if r.config.Standby != nil {
			out.IdleTimes = r.history.Text()
		}
	}
	if step.Probe {
		out.Probe = r.probe(now)
	}
	return out
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
	granted := max(from+budget.ScaleUps.Grant(r.config.BudgetOwner, replicas-from, r.config.ScaleUp, now), 1)
	if granted != replicas {
		r.clocks.step = now.Add(budgetRetry)
	}
	return granted
}
