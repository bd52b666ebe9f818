package decide

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// freshness is how long the newest report of a reporter stands for its current load: a bit more
// than two of its periods, so that one late report is not an end of load.
const freshness = 2500 * time.Millisecond

// queueFreshness is how long a report of queued requests is valid. A reporter with queued requests
// reports every second. If it is silent for longer, its queue is empty.
const queueFreshness = 1500 * time.Millisecond

// maxReporters bounds the memory for the newest reports of one revision. There are never more
// activators in one path than this. Of more pods out of turn, the first ones are reason enough to
// scale up.
const maxReporters = 256

// ScrapeReporter is the reporter of the scrape of all pods; no activator has an empty name.
const ScrapeReporter = ""

// Report is what one reporter, an activator or the scrape of all pods, says about its last period.
type Report struct {
	// Concurrency and RequestsPerSecond exclude what another reporter has counted already.
	Concurrency, RequestsPerSecond float64
	// ProxiedConcurrency and ProxiedRequests are the part of a scrape that activators report
	// themselves.
	ProxiedConcurrency, ProxiedRequests float64
	// Queued is how many requests wait in the reporter now.
	Queued float64
	// OnePod marks a report that a single pod sent out of turn. The scrape of all pods counts the
	// same requests.
	OnePod bool
}

// Series is the load of one revision over time. It has one owner and no lock.
type Series struct {
	concurrency, requests pair
	newest                map[string]newest
	// missed says that the last scrape failed or took too long, scraped when one last succeeded.
	missed  bool
	scraped time.Time
	// woken is when the present second last became the only one that may be known.
	woken time.Time
	// told are the loads by metrics that the pods tell, by place.
	told []told
	// owed are the reports that are due from activators with load.
	owed owed
}

type pair struct{ stable, panic *window.Window }

func newPair(stableLength, panicLength time.Duration) pair {
	return pair{window.New(stableLength), window.New(panicLength)}
}

func (p pair) add(now time.Time, value float64) bool {
	p.panic.Add(now, value)
	return p.stable.Add(now, value)
}

func (p pair) replace(now time.Time, before, value float64) {
	p.panic.Replace(now, before, value)
	p.stable.Replace(now, before, value)
}

func (p pair) miss(now time.Time) {
	p.stable.Miss(now)
	p.panic.Miss(now)
}

func (p pair) found(now time.Time) {
	p.stable.Found(now)
	p.panic.Found(now)
}

type newest struct {
	at                            time.Time
	concurrency, requests, queued float64
	onePod                        bool
	counted                       counted
	// share is set on a scrape while an activator is silent: the load of all activators, as the
	// pods see it.
	share figures
}

// counted is what a reporter's last regular report added to the windows, and when.
type counted struct {
	at                    time.Time
	concurrency, requests float64
}

// PanicWindow is the length of the panic window: a percentage of the stable one in whole seconds,
// at least one.
func PanicWindow(stable time.Duration, percentage float64) time.Duration {
	return max(time.Second, time.Duration(float64(stable)*percentage/100).Round(time.Second))
}

// NewSeries returns a Series that has seen nothing.
func NewSeries(stableLength, panicLength time.Duration) *Series {
	return &Series{concurrency: newPair(stableLength, panicLength), requests: newPair(stableLength, panicLength)}
}

// Idle is what is left of a Series of which nothing counts any more.
type Idle struct{ written, missed bool }

// Idle reports whether nothing counts any more that the Series has seen, and what is left of it.
func (s *Series) Idle(now time.Time) (left Idle, ok bool) {
	if !s.Quiet(now) || len(s.owed.since) > 0 || len(s.told) > 0 || now.Sub(s.scraped) <= freshness || now.Sub(s.woken) <= freshness {
		return Idle{}, false
	}
	for _, w := range s.windows() {
		if !w.Empty(now) {
			return Idle{}, false
		}
	}
	return Idle{written: s.concurrency.stable.Written(), missed: s.missed}, true
}

// Again returns a Series of which so much was left.
func (i Idle) Again(stableLength, panicLength time.Duration) *Series {
	s := NewSeries(stableLength, panicLength)
	s.missed = i.missed
	for _, w := range s.windows() {
		if i.written {
			w.Clear()
		}
	}
	return s
}

// Resize changes the lengths of the windows and keeps what still fits.
func (s *Series) Resize(stableLength, panicLength time.Duration) {
	for _, p := range []*pair{&s.concurrency, &s.requests} {
		p.stable, p.panic = p.stable.Resize(stableLength), p.panic.Resize(panicLength)
	}
	for i := range s.told {
		p := &s.told[i].pair
		p.stable, p.panic = p.stable.Resize(stableLength), p.panic.Resize(panicLength)
	}
}

// newPair returns empty windows of the lengths that the others have.
func (s *Series) newPair() pair {
	return newPair(s.concurrency.stable.Length(), s.concurrency.panic.Length())
}

// Add records a regular report. It returns false and records nothing if the report is older than
// the stable window, or if a value is not a valid load.
//
// A report covers the time since the previous report of the same reporter. This is about a second,
// but scheduling delays vary it. To give a constant load a constant average, each second holds one
// report of each reporter. A second report in the same second replaces the first. If a second was
// skipped, and the reporter was silent for no longer than the freshness time, that second gets the
// lower of the values before and after it.
//
// Reports of different reporters are added up. A silent reporter has no load. The exception is an
// activator that did not report an end of its load: the pods' view counts for it.
func (s *Series) Add(now time.Time, reporter string, r Report) bool {
	if !r.valid() {
		return false
	}
	var lacking time.Time // since when the windows lack what a silent activator did not tell
	rest, share := r, figures{}
	if reporter == ScrapeReporter {
		proxied := figures{r.ProxiedConcurrency, r.ProxiedRequests}
		untold, silent, since := s.claim(now, proxied)
		r.Concurrency += untold.concurrency
		r.RequestsPerSecond += untold.requests
		if lacking = since; silent {
			share = proxied
		}
	}
	before := s.newest[reporter].counted
	seconds := now.Unix() - before.at.Unix()
	recent := !before.at.IsZero() && now.Sub(before.at) <= freshness
	if recent && seconds == 0 {
		s.concurrency.replace(now, before.concurrency, r.Concurrency)
		s.requests.replace(now, before.requests, r.RequestsPerSecond)
	} else {
		if !s.concurrency.add(now, r.Concurrency) {
			return false
		}
		s.requests.add(now, r.RequestsPerSecond)
		for ; recent && seconds > 1; seconds-- {
			skipped := now.Add(-time.Duration(seconds-1) * time.Second)
			s.concurrency.add(skipped, math.Min(before.concurrency, r.Concurrency))
			s.requests.add(skipped, math.Min(before.requests, r.RequestsPerSecond))
		}
	}
	if reporter != ScrapeReporter {
		if !recent {
			s.back(now, r)
		}
		s.owes(now, reporter, r)
	}
	s.note(now, reporter, rest, counted{now, r.Concurrency, r.RequestsPerSecond}, share)
	if reporter == ScrapeReporter {
		first := now.Unix()
		if recent {
			first = min(first, before.at.Unix()+1) // the skipped seconds were given a load above
		}
		for second := first; second <= now.Unix(); second++ {
			s.concurrency.found(time.Unix(second, 0))
			s.requests.found(time.Unix(second, 0))
		}
		if !lacking.IsZero() {
			s.missing(lacking.Unix()+1, now.Unix(), now)
		}
		s.missed, s.scraped = false, now
	}
	return true
}

// Overtaken records a regular report that arrived after a later one, sent out of turn. The windows
// still need it, but the newer report describes the present.
func (s *Series) Overtaken(now time.Time, reporter string, r Report) bool {
	newer, known := s.newest[reporter]
	if !s.Add(now, reporter, r) {
		return false
	}
	if known {
		newer.counted = s.newest[reporter].counted
		s.newest[reporter] = newer
	}
	return true
}

// Press notes a report that was sent out of turn because requests are queued. It does not enter the
// windows: the reporter's regular report will count the same requests.
func (s *Series) Press(now time.Time, reporter string, r Report) bool {
	if !r.valid() {
		return false
	}
	s.note(now, reporter, r, s.newest[reporter].counted, figures{})
	return true
}

func valid(f float64) bool { return f >= 0 && !math.IsInf(f, 0) } // false for NaN

func (r Report) valid() bool {
	return valid(r.Concurrency) && valid(r.RequestsPerSecond) && valid(r.Queued) && valid(r.ProxiedConcurrency) && valid(r.ProxiedRequests)
}

func (s *Series) note(now time.Time, reporter string, r Report, c counted, share figures) {
	if s.newest == nil {
		s.newest = make(map[string]newest, 2)
	}
	if _, known := s.newest[reporter]; !known && len(s.newest) >= maxReporters {
		s.forget(now)
		if len(s.newest) >= maxReporters {
			return
		}
	}
	s.newest[reporter] = newest{now, r.Concurrency, r.RequestsPerSecond, r.Queued, r.OnePod, c, share}
}

func (s *Series) forget(now time.Time) {
	for reporter, n := range s.newest {
		if now.Sub(n.at) > freshness {
			delete(s.newest, reporter)
		}
	}
}

// Await marks the seconds since a scrape was due, the present one included, as missing: the scrape
// has not reported on them yet. Reports of activators do not change this. If the scrape takes
// longer than the freshness time, the present load is unknown, as after a failed scrape.
func (s *Series) Await(due, now time.Time) {
	if now.Sub(due) > freshness {
		s.missed = true
	}
	s.missing(max(due.Unix(), s.scraped.Unix()+1), now.Unix()+1, now)
}

// ScrapedSince says that a scrape has succeeded since a moment.
func (s *Series) ScrapedSince(t time.Time) bool { return !s.scraped.Before(t) }

// Miss says that a scrape was due and failed.
func (s *Series) Miss(now time.Time) {
	s.missed = true
	s.concurrency.miss(now)
	s.requests.miss(now)
}

// StoodStill handles a pause in which this process did not run and received no reports. The load in
// the pause is missing. The present load is missing too, until every reporter had time to report
// again. The pause does not count as silence of a reporter.
func (s *Series) StoodStill(since, now time.Time) {
	s.missing(since.Unix()+1, now.Unix()+1, now)
	s.owed.excuse(now.Sub(since))
	s.woken = now
}

// Observe returns the load at a moment. scraped is false if pods are not scraped at all. If pods
// are scraped, some are ready and nothing was recorded, the load is unknown. Otherwise it is zero.
func (s *Series) Observe(now time.Time, metric Metric, algorithm window.Algorithm, ready int32, scraped bool) Observation {
	o := Observation{Ready: ready, Missing: s.missed}
	lost := s.late(now, scraped && ready > 0)
	p := s.concurrency
	if metric == RequestsPerSecond {
		p = s.requests
		o.InFlight, _ = s.concurrency.stable.Average(now, algorithm)
		o.Busy, _ = s.concurrency.panic.Average(now, algorithm)
	}
	o.Stable, o.Known = p.stable.Average(now, algorithm)
	o.Panic, _ = p.panic.Average(now, algorithm)
	if !scraped || ready == 0 {
		// Only activators report then. An activator without traffic reports zero once, and is
		// silent after that.
		o.Known, o.Missing = true, lost
	}
	o.Missing = o.Missing || !s.woken.IsZero() && now.Sub(s.woken) <= freshness
	// The reporter of the scrape is the empty name. Reports of single pods are newer, or part of
	// the scrape.
	var scrape, single, share float64
	var singlePushed bool
	for reporter, n := range s.newest {
		if now.Sub(n.at) > freshness {
			delete(s.newest, reporter)
			continue
		}
		load := n.concurrency
		if metric == RequestsPerSecond {
			load = n.requests
		}
		if now.Sub(n.at) <= queueFreshness {
			o.Queued += n.queued
		}
		switch {
		case n.onePod:
			single += load
			singlePushed = singlePushed || load > 0
		case reporter == ScrapeReporter:
			scrape = load
			if n.share != (figures{}) {
				o.Unheard = n.concurrency + n.share.concurrency
			}
			if share = n.share.concurrency; metric == RequestsPerSecond {
				share = n.share.requests
			}
		default:
			o.Burst += load
			o.Pushed = o.Pushed || load > 0 && n.at != n.counted.at
		}
	}
	o.Pushed = o.Pushed || singlePushed && single > scrape
	o.Burst = math.Max(o.Burst, share) + math.Max(scrape, single)
	return o
}

// Quiet reports whether all reporters were silent for the freshness time.
func (s *Series) Quiet(now time.Time) bool {
	s.forget(now)
	return len(s.newest) == 0
}
