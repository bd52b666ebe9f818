package decide

import (
	"math"
	"time"
)

// An activator that becomes idle reports zero once. So if an activator reported load and is then
// silent for longer than the freshness time, it was cut off or has ended. Its requests are still in
// the pods, and the pods count separately what came through activators.
//
// The pods' count is the sum over all activators, including those that still report. So the load
// through activators is the larger of two values: the sum of the reports, and the pods' count. It
// is not the sum of both. It is never less than the reports, because the pods do not see requests
// that are queued in an activator.

// lateness is the age at which a report of an activator with load is late: one and a half periods.
const lateness = 1500 * time.Millisecond

// kept is the ratio, over a stable window, of the pods' count to the activators' reports above
// which silent activators still have load. A lower ratio comes from the different times at which
// both count.
const kept = 1.1

// figures are a load in both metrics.
type figures struct{ concurrency, requests float64 }

func (f *figures) add(g figures) {
	f.concurrency += g.concurrency
	f.requests += g.requests
}

// beyond is what of f exceeds g.
func (f figures) beyond(g figures) figures {
	return figures{math.Max(0, f.concurrency-g.concurrency), math.Max(0, f.requests-g.requests)}
}

// owed are the reports that are due from activators with load.
type owed struct {
	// since holds the time of the last regular report of each activator with load. The empty name
	// stands for the load that the pods see while no activator reports: this process may have
	// started after an activator became silent.
	since map[string]time.Time
	// noticed is the number of silent activators at the last scrape. scrapes counts the scrapes
	// since that number changed. seen and told are the sums, over these scrapes, of the pods' count
	// and of the activators' reports.
	noticed, scrapes int
	seen, told       figures
}

// owes handles an activator's regular report.
func (s *Series) owes(now time.Time, reporter string, r Report) {
	if at, owes := s.owed.since[reporter]; owes && s.owed.noticed == 0 && now.Sub(at) > freshness && now.Sub(at) <= s.concurrency.stable.Length() {
		// No scrape has counted for it meanwhile. Others may not have reported in this second yet,
		// which may be the only one that is known.
		s.missing(at.Unix()+1, now.Unix(), now)
		s.woken = now
	}
	delete(s.owed.since, ScrapeReporter)
	if r.Concurrency == 0 && r.RequestsPerSecond == 0 {
		delete(s.owed.since, reporter)
		return
	}
	s.owed.put(reporter, now)
}

func (o *owed) put(reporter string, now time.Time) {
	if o.since == nil {
		o.since = make(map[string]time.Time, 1)
	}
	if _, known := o.since[reporter]; known || len(o.since) < maxReporters {
		o.since[reporter] = now
	}
}

// silent returns how many reports are overdue by more than the freshness time, and the time of the
// latest report of these activators.
func (o *owed) silent(now time.Time) (n int, last time.Time) {
	for _, at := range o.since {
		if now.Sub(at) > freshness {
			n++
			if at.After(last) {
				last = at
			}
		}
	}
	return n, last
}

// excuse shortens all silences by d.
func (o *owed) excuse(d time.Duration) {
	for reporter, at := range o.since {
		o.since[reporter] = at.Add(d)
	}
}

func (o *owed) forget(now time.Time, silence time.Duration) {
	for reporter, at := range o.since {
		if now.Sub(at) > silence {
			delete(o.since, reporter)
		}
	}
}

// claim returns the part of the pods' count that no activator reports, and whether an activator is
// silent. If one has just become silent, the load is incomplete from the time since on.
func (s *Series) claim(now time.Time, share figures) (untold figures, silent bool, since time.Time) {
	var told figures
	heard := false
	for reporter, n := range s.newest {
		if reporter == ScrapeReporter || n.onePod || now.Sub(n.at) > freshness {
			continue
		}
		heard = true
		if now.Sub(n.counted.at) <= freshness {
			told.add(figures{n.counted.concurrency, n.counted.requests})
		}
	}
	o := &s.owed
	switch {
	case share == figures{}:
		delete(o.since, ScrapeReporter)
	case !heard && len(o.since) == 0:
		o.put(ScrapeReporter, now)
	}
	n, last := o.silent(now)
	if n != o.noticed {
		if n > o.noticed {
			since = last
		}
		o.noticed, o.scrapes, o.seen, o.told = n, 0, figures{}, figures{}
	}
	if n == 0 {
		return figures{}, false, since
	}
	o.scrapes++
	o.seen.add(share)
	o.told.add(told)
	if time.Duration(o.scrapes)*time.Second >= s.concurrency.stable.Length() {
		if o.seen.concurrency <= kept*o.told.concurrency && o.seen.requests <= kept*o.told.requests {
			o.forget(now, freshness) // gone or idle: the reports cover what is in the pods
		}
		o.scrapes, o.seen, o.told = 0, figures{}, figures{}
	}
	return share.beyond(told), true, since
}

// back corrects this second when a silent activator reports again: it removes what the scrape had
// counted for that activator.
func (s *Series) back(now time.Time, r Report) {
	scrape, known := s.newest[ScrapeReporter]
	if !known || scrape.counted.at.Unix() != now.Unix() {
		return
	}
	untold := figures{scrape.counted.concurrency, scrape.counted.requests}.beyond(figures{scrape.concurrency, scrape.requests})
	c, q := math.Min(untold.concurrency, r.Concurrency), math.Min(untold.requests, r.RequestsPerSecond)
	s.concurrency.replace(now, c, 0)
	s.requests.replace(now, q, 0)
	scrape.counted.concurrency -= c
	scrape.counted.requests -= q
	s.newest[ScrapeReporter] = scrape
}

// late marks the seconds that a late activator has not reported. With scraped, the pods report them
// once the activator is silent. Without, late returns whether an activator is silent. After a
// stable window of silence such an activator counts as gone.
func (s *Series) late(now time.Time, scraped bool) (silent bool) {
	if !scraped {
		s.owed.forget(now, s.concurrency.stable.Length())
	}
	first := now.Unix() + 1
	for reporter, at := range s.owed.since {
		switch age := now.Sub(at); {
		case age <= lateness, reporter == ScrapeReporter, scraped && age > freshness:
		default:
			first = min(first, at.Unix()+1)
			silent = silent || age > freshness
		}
	}
	s.missing(first, now.Unix()+1, now)
	return silent
}

// missing marks the seconds from first to before end. It skips seconds before the windows, so its
// cost does not depend on the length of a pause.
func (s *Series) missing(first, end int64, now time.Time) {
	for second := max(first, now.Add(-s.concurrency.stable.Length()).Unix()); second < end; second++ {
		s.concurrency.miss(time.Unix(second, 0))
		s.requests.miss(time.Unix(second, 0))
	}
}
