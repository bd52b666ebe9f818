package revision

import (
	"reflect"
	"time"

	"ebb.dev/ebb/autoscaler/zero"
)

const (
	// TickPeriod is the time between two decisions that may lower the scale.
	TickPeriod = 2 * time.Second
	// ScrapePeriod is the time between two scrapes.
	ScrapePeriod = time.Second
	// sleepPeriod is the tick of a revision at zero, where only an event can change anything.
	sleepPeriod = 30 * time.Second
	// maxGap is the longest time between two decisions of an awake revision. More means that
	// this process did not run.
	maxGap = 2 * TickPeriod
)

// clocks are the times at which a revision has to be looked at even if nothing happens.
type clocks struct {
	// tick is the next regular decision. scrape is the next scrape, zero while the revision sleeps.
	// step is when the way to zero continues, zero for never.
	tick, scrape, step time.Time
	// decided is the last decision, zero while the revision sleeps.
	decided time.Time
	// slot is how far apart the moments are at which scrapes and ticks are due, 0 for any moment.
	slot time.Duration
}

// StartScrapesAt sets the time of the first scrape, so that revisions adopted together are not
// scraped together.
func (r *Revision) StartScrapesAt(at time.Time) { r.clocks.scrape = at }

// Share has scrapes and ticks due at multiples of slot from the next ones on, 0 for any moment.
// Revisions that are due at one moment cost little more than one of them.
func (r *Revision) Share(slot time.Duration) { r.clocks.slot = slot }

// Awake reports whether the pods are scraped.
func (r *Revision) Awake() bool { return !r.clocks.scrape.IsZero() }

// Due is when Ring should be called next.
func (r *Revision) Due() time.Time {
	next := r.clocks.tick
	if step := r.clocks.step; !step.IsZero() && step.Before(next) {
		next = step
	}
	if scrape := r.clocks.scrape; !scrape.IsZero() && scrape.Before(next) {
		next = scrape
	}
	return next
}

// DueWith reports whether the revision is due now, or so soon that it can be served along with
// others that are. A step is never served early: nothing could be done then.
func (r *Revision) DueWith(now, soon time.Time) bool {
	due := r.Due()
	return !due.After(now) || !due.After(soon) && !due.Equal(r.clocks.step)
}

// Ring advances the clocks that are due by soon. It returns whether to scrape the pods now and
// whether to decide.
func (r *Revision) Ring(now, soon time.Time) (scrape, decide bool) {
	if at := r.clocks.scrape; !at.IsZero() && !at.After(soon) {
		r.clocks.scrape = shared(later(at, now).Add(ScrapePeriod), r.clocks.slot)
		if r.config.Scraped && r.counts.Ready+r.counts.Lapsed > 0 {
			r.wake()
			if !r.scraping {
				r.scraping, r.scrapeDue, scrape = true, at, true
			}
		}
	}
	tick := !r.clocks.tick.After(soon)
	if tick {
		r.clocks.tick = now.Add(TickPeriod)
		if at := r.clocks.scrape; r.clocks.slot > 0 && !at.IsZero() { // together with a scrape
			r.clocks.tick = at.Add(r.clocks.tick.Sub(at).Round(ScrapePeriod))
		}
	}
	return scrape, tick || !r.clocks.step.IsZero() && !r.clocks.step.After(now)
}

// Rest sets the clocks after an event. They are slow while only an event can change anything, which
// Rest returns.
func (r *Revision) Rest(now time.Time) bool {
	if r.asleep(now) {
		r.fallAsleep(now)
		r.clocks = clocks{tick: now.Add(sleepPeriod), step: r.clocks.step, slot: r.clocks.slot}
		return true
	}
	if r.clocks.tick.Sub(now) > TickPeriod+ScrapePeriod { // of one that was asleep
		r.clocks.tick = now.Add(TickPeriod)
	}
	if r.clocks.scrape.IsZero() {
		r.clocks.scrape = now
	}
	return false
}

// asleep reports whether only an event can change anything: there are no pods, none are wanted, and
// there are no reports.
func (r *Revision) asleep(now time.Time) bool {
	others := *r.counts
	others.Asleep, others.Deep, others.Memory, others.Startup = 0, [Levels]int32{}, 0, Startup{}
	others.Alone, others.Unfrozen, others.FreezeFailure = 0, 0, ""
	return r.ordered == r.counts.Asleep && others == (Counts{}) && r.zero.Active == zero.No && r.formula.Desired <= 0 && (r.lively == nil || r.series.Quiet(now))
}

// wake makes what a revision has that is not at zero.
func (r *Revision) wake() {
	if r.lively == nil {
		r.lively = &lively{series: r.idle.Again(r.config.Formula.StableWindow, r.config.PanicWindow)}
	}
}

// fallAsleep forgets what does not count any more, and drops what a revision at zero has no use
// for if nothing is left.
func (r *Revision) fallAsleep(now time.Time) {
	l := r.lively
	if l == nil {
		return
	}
	r.forgetReporters(now) // each wake-up brings pods with new names
	if len(l.reporters) == 0 {
		l.reporters = nil
	}
	if now.Sub(l.looked) >= lookPeriod {
		l.looked = time.Time{}
	}
	if now.Sub(l.busyAt) >= r.config.BusyFor {
		l.busy, l.busyAt = held{}, time.Time{}
	}
	if !now.Before(l.extraUntil) {
		l.extraUntil = time.Time{}
	}
	if l.grow.last == 0 {
		l.grow = again{}
	}
	rest := *l
	rest.series = nil
	if !l.scraping {
		rest.scrapeDue = time.Time{}
	}
	if idle, ok := l.series.Idle(now); ok && reflect.ValueOf(rest).IsZero() {
		r.lively, r.idle = nil, idle
	}
}

// noticePause marks the seconds in which this process did not run as missing.
func (r *Revision) noticePause(now time.Time) {
	if last := r.clocks.decided; !last.IsZero() && now.Sub(last) > maxGap {
		r.series.StoodStill(last, now)
	}
	r.clocks.decided = now
}

// shared is the multiple of slot next to a moment.
func shared(at time.Time, slot time.Duration) time.Time {
	return at.Add(at.Round(slot).Sub(at)) // Round alone would lose the monotonic clock
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// prober is what is known of the public Service.
type prober struct {
	answer zero.Probe
	busy   bool
	// next is when the next probe may be sent.
	next time.Time
	// epoch grows with each change of Active, so that the answer to an earlier probe does not
	// count.
	epoch int
}

// probe reports whether to send a probe now.
func (r *Revision) probe(now time.Time) bool {
	p := &r.prober
	if p.busy {
		return false
	}
	if p.answer == zero.ProbedOther {
		p.answer, p.next = zero.NotProbed, now.Add(zero.RetryProbe)
	}
	if now.Before(p.next) {
		r.clocks.step = p.next
		return false
	}
	p.busy = true
	return true
}

// Probed takes the answer to the probe of an Outcome. It reports whether to decide on it.
func (r *Revision) Probed(answer zero.Probe, epoch int) bool {
	r.prober.busy = false
	if epoch != r.prober.epoch {
		return false
	}
	r.prober.answer = answer
	return true
}
