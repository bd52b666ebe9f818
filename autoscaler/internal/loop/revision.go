package loop

import (
	"sync"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
)

// Periods of a revision's own clock.
const (
	TickPeriod   = 2 * time.Second
	ScrapePeriod = time.Second
	// sleepPeriod is the tick of a revision that is at zero, where only news can change anything.
	sleepPeriod = 30 * time.Second
	// settle is how long the number of pods may differ from what was written before it is looked into.
	settle = 10 * time.Second
	// regular is the least time between two reports of a reporter that both enter the windows: what
	// comes sooner was sent out of turn, and the next regular report counts it again.
	regular = 600 * time.Millisecond
	// silent is how long a reporter must have been silent for its first report with waiting
	// requests to count as one sent out of turn.
	silent = 1500 * time.Millisecond
	// clockJump is how far back a reporter's timestamps may go before they mean at once that its clock was set. When they went
	// back by less, the second late report in a row means it.
	clockJump = time.Minute
	// maxReporters bounds what is remembered of reporters.
	maxReporters = 512
	// stillness is how long nothing may be decided on a revision that is awake until it means that this process did not run.
	stillness = 2 * TickPeriod
	// budgetRetry is how soon a scale-up that its service's budget cut short goes on.
	budgetRetry = time.Second
)

// Refusal says why a sample did not count.
type Refusal string

// The refusals of a sample that was well-formed.
const (
	Accepted   Refusal = ""
	Invalid    Refusal = "invalid"
	Late       Refusal = "late"
	Duplicate  Refusal = "duplicate"
	UnknownKey Refusal = "unknown-revision"
	Crowded    Refusal = "too-many-reporters"
	// StrangeMemory is of what another process handed over or left in the status.
	StrangeMemory Refusal = "strange-memory"
)

type reporter struct {
	seen, added time.Time
	// timestamp is of the newest report, regular of the newest regular one: a report out of turn may overtake
	// the regular one that was sent before it.
	timestamp, regular int64
	report             decide.Report
	// late is the timestamp of the newest regular report that was late with none in time since, and when that one came.
	late   int64
	lateAt time.Time
}

// setBack reports whether a late report shows that the reporter's clock was set back: reports are late one at a time, while
// all that follow such a change are, each a period after the other.
func (r reporter) setBack(timestamp int64, now time.Time) bool {
	return r.late != 0 && timestamp > r.late && now.Sub(r.lateAt) >= regular
}

// revision is the state of one revision; only its shard touches it, except for view.
type revision struct {
	key    Key
	spec   *Spec
	series *decide.Series
	decide decide.State
	zero   zero.State
	counts Counts
	// adaptive learns the target where the annotation asks for it.
	adaptive decide.Adaptive
	// learned is what its last lesson found out, that of another process included.
	learned decide.Learned

	reporters map[string]reporter

	probe   zero.Probe
	probing bool
	// probeAfter is when the next probe may be sent.
	probeAfter time.Time
	// scraping says that a scrape is under way, the one that was due at scrapeDue.
	scraping  bool
	scrapeDue time.Time
	// epoch grows with each change of Active, so that a probe sent before it is not taken for an answer after.
	epoch int

	// written is what the scale target was told last, -1 when not known.
	written int32
	// unsettled is since when the number of pods has differed from written.
	unsettled time.Time
	sent      Status
	everSent  bool

	tickAt, scrapeAt, stepAt time.Time
	// looked is when it was decided on last, zero while only news can change anything.
	looked time.Time
	// heapIndex is the place in the shard's heap, which is ordered by due as of the last reschedule.
	heapIndex int

	view view
}

// view is what readers outside the shard may see.
type view struct {
	mutex   sync.Mutex
	history history
	status  Status
	counts  Counts
}

func adopt(key Key, spec *Spec, counts Counts, now time.Time) *revision {
	r := &revision{key: key, spec: spec, counts: counts, written: -1, heapIndex: -1,
		series:    decide.NewSeries(spec.Decide.StableWindow, spec.PanicWindow),
		reporters: map[string]reporter{}}
	found := decide.NoDecision
	if spec.Found.Zero.Initialized {
		found = max(spec.Found.Desired, counts.Running())
	}
	if spec.Found.Desired == counts.Running() {
		r.written = spec.Found.Desired
	}
	r.decide = decide.Start(spec.Decide, counts.Ready, found, now)
	r.zero = spec.Found.Zero
	if r.zero.ActiveSince.IsZero() {
		r.zero.ActiveSince = now
	}
	if r.zero.Proxied {
		r.zero.LastShort = now
	}
	r.tickAt, r.scrapeAt = now, now
	return r
}

// recollect goes on from what another process has learned. It reports false if that makes no sense.
func (r *revision) recollect(now time.Time) bool {
	found := r.spec.Found.Learned
	if !r.spec.Adaptive || found == (decide.Learned{}) {
		return true
	}
	adaptive, ok := found.Adaptive(r.spec.Decide.Share(), now)
	if ok {
		r.adaptive, r.learned = adaptive, found
	}
	return ok
}

func (r *revision) update(spec *Spec) {
	r.series.Resize(spec.Decide.StableWindow, spec.PanicWindow)
	r.spec = spec
}

// record takes one sample in.
func (r *revision) record(s Sample, now time.Time) Refusal {
	known, seen := r.reporters[s.Reporter]
	if !seen && len(r.reporters) >= maxReporters {
		r.forgetReporters(now)
		if len(r.reporters) >= maxReporters {
			return Crowded
		}
	}
	// A single pod's report is never regular: the scrape of all pods counts the same requests.
	// Reporters that do not say which of their reports are out of turn are known by when they report.
	outOfTurn := s.OutOfTurn || s.Report.OnePod || now.Sub(known.added) < regular || s.Report.Queued > 0 && now.Sub(known.seen) > silent
	overtaken := false
	if s.Timestamp != 0 && known.timestamp != 0 {
		back := known.timestamp - s.Timestamp
		switch {
		case back == 0 && known.report == s.Report:
			return Duplicate
		case back <= 0 || back >= clockJump.Milliseconds():
		case !outOfTurn && known.setBack(s.Timestamp, now):
		case outOfTurn || s.Timestamp == known.regular && known.regular != 0 || s.Timestamp < known.regular:
			if !outOfTurn && (known.late == 0 || s.Timestamp < known.late) {
				known.late, known.lateAt = s.Timestamp, now
				r.reporters[s.Reporter] = known
			}
			return Late
		default:
			overtaken = true
		}
	}
	var accepted bool
	switch {
	case outOfTurn:
		accepted = r.series.Press(now, s.Reporter, s.Report)
	case overtaken:
		accepted = r.series.Overtaken(now, s.Reporter, s.Report)
	default:
		accepted = r.series.Add(now, s.Reporter, s.Report)
	}
	if !accepted {
		return Invalid
	}
	known.seen, known.late = now, 0
	if !overtaken {
		known.report = s.Report
	}
	if !outOfTurn {
		known.added = now
		known.regular = s.Timestamp
	}
	if s.Timestamp != 0 && !overtaken {
		known.timestamp = s.Timestamp
	}
	r.reporters[s.Reporter] = known
	return Accepted
}

// forgetReporters forgets those who have said nothing for so long that nothing of theirs can still be on its way.
func (r *revision) forgetReporters(now time.Time) {
	for name, one := range r.reporters {
		if now.Sub(one.seen) > clockJump {
			delete(r.reporters, name)
		}
	}
}

// scraped takes the outcome of a scrape in.
func (r *revision) scraped(s Scrape, now time.Time) {
	r.scraping = false
	// A scrape tells of the second in which it ends.
	r.series.Await(r.scrapeDue, now.Add(-time.Second))
	if s.Failed || !r.series.Add(now, decide.ScrapeReporter, s.Report) {
		r.series.Miss(now)
		return
	}
	if r.spec.Adaptive && r.spec.Decide.Metric == decide.Concurrency {
		r.adaptive = r.adaptive.Learn(now, r.spec.Decide.Target, r.spec.Decide.Share(), decide.Work{Completed: s.Completed, BusySeconds: s.BusySeconds,
			Ready: r.counts.Ready, Wanted: max(r.written, 0)})
		if learned, ok := r.adaptive.Learned(); ok {
			r.learned = learned
		}
	}
}

// await marks what the scrape has yet to tell of: since it was due, while one is under way; else this second, until its own
// begins. Activators that report meanwhile tell of a part of the load alone.
func (r *revision) await(now time.Time) {
	switch {
	case !r.spec.Scraped || r.counts.Ready == 0:
	case r.scraping:
		r.series.Await(r.scrapeDue, now)
	case r.spec.PanicWindow <= ScrapePeriod:
		// Its one second is all that the panic window has; what activators say of it is better than nothing.
	case r.series.ScrapedSince(now.Add(-2 * ScrapePeriod)):
		r.series.Await(now, now)
	}
}

// decideNow makes a decision and returns the order that follows from it, if anything is to be done.
func (r *revision) decideNow(now time.Time, between bool, budget *Budget) (Order, bool) {
	if !r.looked.IsZero() && now.Sub(r.looked) > stillness {
		r.series.StoodStill(r.looked, now)
	}
	r.looked = now
	r.await(now)
	o := r.series.Observe(now, r.spec.Decide.Metric, r.spec.Algorithm, r.counts.Ready, r.spec.Scraped)
	o.BetweenTicks = between
	config := r.spec.Decide
	if r.spec.Adaptive {
		config = r.adaptive.Config(config)
	}
	var d decide.Decision
	d, r.decide = decide.Decide(config, r.decide, o, now)
	if r.spec.Adaptive {
		d.Learned = r.adaptive.String()
	}
	excess := d.ExcessBurst
	if d.Desired == decide.NoDecision {
		excess = decide.InitialExcessBurst(r.spec.Decide, r.spec.Zero.Initial)
	}
	before := r.zero
	var step zero.Step
	step, r.zero = zero.Decide(r.spec.Zero, r.zero, zero.Input{Desired: d.Desired, ExcessBurst: excess, Ready: r.counts.Ready, Probe: r.probe}, now)
	if before.Active != r.zero.Active {
		r.epoch++
	}
	if step.Want > 0 || before.Active != r.zero.Active {
		r.probe = zero.NotProbed
	}
	r.stepAt = time.Time{}
	if step.After > 0 {
		r.stepAt = now.Add(step.After)
	}

	order := Order{Key: r.key, UID: r.spec.UID, Target: r.spec.Target, Decision: d, Step: step, Counts: r.counts, From: r.written, Since: now}
	if step.Apply && step.Replicas != r.written {
		order.Scale, order.Replicas = true, r.afford(step.Replicas, budget, now)
		order.Urgent = r.counts.Ready == 0 && order.Replicas > 0
		if order.Replicas != step.Replicas {
			r.stepAt = now.Add(budgetRetry)
		}
		if order.Replicas == r.written {
			order.Scale = false
		} else {
			r.written, r.unsettled = order.Replicas, time.Time{}
		}
	}
	if !order.Scale {
		order.Verify = r.drifted(now)
		order.Replicas = r.written
	}
	order.Status = r.status(step)
	r.view.mutex.Lock()
	r.view.history.add(d, step)
	r.view.status, r.view.counts = order.Status, r.counts
	r.view.mutex.Unlock()
	if !order.Scale && !order.Verify && r.everSent && order.Status == r.sent {
		return order, false
	}
	r.sent, r.everSent = order.Status, true
	return order, true
}

// afford cuts a scale-up down to what the service's budget has left; the first pod is always granted.
func (r *revision) afford(replicas int32, budget *Budget, now time.Time) int32 {
	from := max(r.written, r.counts.Running(), 0)
	if replicas <= from || budget == nil {
		return replicas
	}
	service := r.spec.Service
	if service == "" {
		service = r.key.Name
	}
	granted := budget.Grant(Key{Namespace: r.key.Namespace, Name: service}, replicas-from, r.spec.ScaleUp, now)
	if from+granted == 0 {
		granted = 1
	}
	return from + granted
}

// drifted reports, once per settle time, that the number of pods has not fitted what was written for
// that long: somebody else may have written the scale, or made the target anew.
func (r *revision) drifted(now time.Time) bool {
	switch {
	case r.written < 0 || r.counts.Running() == r.written:
		r.unsettled = time.Time{}
	case r.unsettled.IsZero():
		r.unsettled = now
	case now.Sub(r.unsettled) >= settle:
		r.unsettled = now
		return true
	}
	return false
}

func (r *revision) status(step zero.Step) Status {
	s := Status{Generation: r.spec.Generation, Active: r.zero.Active, ActiveReason: r.zero.ActiveReason,
		Initialized: r.zero.Initialized, Populated: r.counts.Ready > 0, Desired: step.Want, Actual: r.counts.Ready,
		Proxied: r.zero.Proxied, Activators: decide.Activators(r.spec.Decide, r.counts.Ready), Learned: r.learned}
	if s.Desired == zero.Unknown {
		// What is known is not forgotten because this process does not know it.
		s.Desired = r.spec.Found.Desired
		if r.everSent {
			s.Desired = r.sent.Desired
		}
	}
	return s
}

// asleep reports that only news, not time, can change anything: no pods, none wanted, nobody reports.
func (r *revision) asleep(now time.Time) bool {
	return r.written == 0 && r.counts == (Counts{}) && r.zero.Active == zero.No && r.decide.Desired <= 0 && r.series.Quiet(now)
}

// due is when the revision's clock rings next.
func (r *revision) due() time.Time {
	next := r.tickAt
	if !r.stepAt.IsZero() && r.stepAt.Before(next) {
		next = r.stepAt
	}
	if !r.scrapeAt.IsZero() && r.scrapeAt.Before(next) {
		next = r.scrapeAt
	}
	return next
}
