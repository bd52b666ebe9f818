package decide

import (
	"math"
	"time"
)

// An activator that becomes idle says so once. So whoever has said that there is load, and then
// nothing for longer than the freshness time, was cut off or is gone, and what it carries is still
// in the pods, which count apart what came through activators. That share is of all activators
// together, those included that go on reporting: what passes through activators is therefore at
// least the larger of the two, what the reporting ones say and what the pods see. Never their sum,
// and never less than what is reported, because the pods do not see what waits in an activator.

// lateness is from when the report of an activator with load is late: half a period more than one.
const lateness = 1500 * time.Millisecond

// kept is by how much the pods' share must exceed what activators tell, over a stable window, for
// silent ones to be still at work; less is a difference between the moments at which both count.
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

// owed are the reports that activators with load owe.
type owed struct {
	// since is the last regular report of each, all of which said that there is load. Under the
	// empty name stands whoever carries what the pods see while no activator says anything: this
	// process may have begun after the silence.
	since map[string]time.Time
	// noticed are how many of them were silent at the last scrape. From when that many were,
	// scrapes, seen and told sum what the pods and the reporting activators said.
	noticed, scrapes int
	seen, told       figures
}

// owes takes in an activator's regular report.
func (s *Series) owes(now time.Time, reporter string, r Report) {
	if at, owes := s.owed.since[reporter]; owes && s.owed.noticed == 0 && now.Sub(at) > freshness && now.Sub(at) <= s.concurrency.stable.Length() {
		s.missing(at.Unix()+1, now.Unix(), now) // no scrape has counted for it meanwhile
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

// silent returns how many owe a report for longer than the freshness time, and when the latest of
// them was heard last.
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

// excuse leaves a time out of every silence.
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

// claim returns what of the pods' proxied share no activator tells, and whether one is silent. If
// one has just become so, what the seconds since its last report lack is missing from since on.
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
			o.forget(now, freshness) // gone, or idle: nothing is in the pods that nobody tells of
		}
		o.scrapes, o.seen, o.told = 0, figures{}, figures{}
	}
	return share.beyond(told), true, since
}

// back takes out of this second's load what the scrape counted of an activator that now tells of it
// itself.
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

// late marks the seconds of which an activator that is late has not told; scraped says that the
// pods tell of them once it has been silent. Where no pod is asked, it reports whether one is
// silent, which after a stable window is taken for gone: nobody else could say that it is not.
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

// missing marks the seconds from first to before end. What came before the windows is no matter,
// however long this process stood still.
func (s *Series) missing(first, end int64, now time.Time) {
	for second := max(first, now.Add(-s.concurrency.stable.Length()).Unix()); second < end; second++ {
		s.concurrency.miss(time.Unix(second, 0))
		s.requests.miss(time.Unix(second, 0))
	}
}
