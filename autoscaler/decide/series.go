package decide

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/window"
)

// freshness is how long the newest report of a reporter stands for its current load: a bit more
// than two of its periods, so that one late report is not an end of load.
const freshness = 2500 * time.Millisecond

// queueFreshness is how long a reporter's waiting requests are believed to wait: whoever holds
// requests reports every second, so that one who says nothing for longer holds none any more.
const queueFreshness = 1500 * time.Millisecond

// maxReporters bounds the memory of one revision's newest reports. More activators than this never
// stand in one path, and of more pods in trouble than this the first ones are reason enough.
const maxReporters = 256

// ScrapeReporter is the reporter of the scrape of all pods; no activator has an empty name.
const ScrapeReporter = ""

// Report is what one reporter, an activator or the scrape of all pods, says about its last period.
type Report struct {
	// Concurrency and RequestsPerSecond exclude what another reporter has counted already.
	Concurrency, RequestsPerSecond float64
	// ProxiedConcurrency and ProxiedRequests are what the scrape leaves out for activators to tell
	// of.
	ProxiedConcurrency, ProxiedRequests float64
	// Queued is how many requests wait in the reporter now.
	Queued float64
	// OnePod marks a report of a single pod, sent out of turn: the scrape of all pods counts it,
	// too.
	OnePod bool
}

// Series is the load of one revision over time. It has one owner and no lock.
type Series struct {
	concurrency, requests pair
	newest                map[string]newest
	// missed is when the last scrape failed, or was found to take too long, zero when the last one
	// succeeded; scraped is when one succeeded last.
	missed, scraped time.Time
	// woken is when StoodStill was called last.
	woken time.Time
	// owed are what activators that had load have yet to say.
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
	// share is, of a scrape while an activator is silent, what the pods see of all activators'
	// load.
	share figures
}

// counted is what a reporter's last regular report put into the windows, and when.
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

// Resize changes the lengths of the windows and keeps what still fits.
func (s *Series) Resize(stableLength, panicLength time.Duration) {
	for _, p := range []*pair{&s.concurrency, &s.requests} {
		p.stable, p.panic = p.stable.Resize(stableLength), p.panic.Resize(panicLength)
	}
}

// Add records a regular report. It reports false, and records nothing, when the report is older
// than the stable window or holds a figure that is no load.
//
// A report stands for the time since the same reporter's previous one, which is a second, give or
// take what the two processes had to wait for a processor. So that a constant load has a constant
// average whatever the moments of its reports, each second holds one report of each reporter: a
// second one in the same second replaces the first, and a second that was skipped, although the
// reporter was not silent for longer than the freshness time, holds the lesser of what it said
// before and after. Different reporters are summed. One that is silent has no load, unless it is an
// activator that never said so: for it stands what the pods see.
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
		s.missed, s.scraped = time.Time{}, now
	}
	return true
}

// Overtaken records a regular report that a later one, sent out of turn, has overtaken: the windows
// lack it, while what is known of the moment is newer.
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

// Press notes what a reporter says out of turn because requests wait. It does not enter the
// windows, in which the reporter's regular report will count the same requests.
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

// Await says that the scrape that was due at a moment has told nothing of the seconds since, the
// one of now included: they are missing, whatever activators say of them, until it turns out
// otherwise. One that takes longer than the freshness time leaves the present unknown, as a failed
// one does.
func (s *Series) Await(due, now time.Time) {
	if now.Sub(due) > freshness {
		s.missed = now
	}
	s.missing(max(due.Unix(), s.scraped.Unix()+1), now.Unix()+1, now)
}

// ScrapedSince says that a scrape has succeeded since a moment.
func (s *Series) ScrapedSince(t time.Time) bool { return !s.scraped.Before(t) }

// Miss says that a scrape was due and failed.
func (s *Series) Miss(now time.Time) {
	s.missed = now
	s.concurrency.miss(now)
	s.requests.miss(now)
}

// StoodStill says that this process heard nobody since a moment, because it did not run: that time
// is nobody's silence. What was the load is missing, and until everybody had time to say what it is
// now, so is that.
func (s *Series) StoodStill(since, now time.Time) {
	s.missing(since.Unix()+1, now.Unix()+1, now)
	s.owed.excuse(now.Sub(since))
	s.woken = now
}

// Observe reads the series at a moment. scraped says whether pods are scraped at all: with ready
// pods and nothing recorded the load is then unknown, otherwise it is zero.
func (s *Series) Observe(now time.Time, metric Metric, algorithm window.Algorithm, ready int32, scraped bool) Observation {
	o := Observation{Ready: ready, Missing: !s.missed.IsZero()}
	lost := s.late(now, scraped && ready > 0)
	p := s.concurrency
	if metric == RequestsPerSecond {
		p = s.requests
	}
	o.Stable, o.Known = p.stable.Average(now, algorithm)
	o.Panic, _ = p.panic.Average(now, algorithm)
	if !scraped || ready == 0 {
		// The activators are the only reporters then, and those without traffic are silent after
		// they said so.
		o.Known, o.Missing = true, lost
	}
	o.Missing = o.Missing || !s.woken.IsZero() && now.Sub(s.woken) <= freshness
	// The scrape comes under the empty name; what single pods said since is part of it or news of
	// it.
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

// Quiet reports that no reporter said anything for the freshness time.
func (s *Series) Quiet(now time.Time) bool {
	s.forget(now)
	return len(s.newest) == 0
}
