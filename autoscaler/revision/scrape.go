package revision

import (
	"math"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/wire"
)

// Scrape is the outcome of one scrape of a revision's pods.
type Scrape struct {
	// Failed says that too few pods answered; nothing else counts then.
	Failed bool
	Report decide.Report
	// Completed and BusySeconds are for all pods, as Report is.
	Completed, BusySeconds float64
	// Busy is how many pods have a program that says that it is busy, for a sample about how many.
	Busy int32
	// Told is what each pod of the sample tells, nil if none tells anything.
	Told []wire.Told
	// Ready is how many pods the sample stands for.
	Ready int
}

// SampleSize is how many of n pods are scraped to stand for all of them: 95 % confidence over a
// population of n.
func SampleSize(n int) int {
	if n <= 3 {
		return n
	}
	const x = 1.96 * 1.96 * 100 / 25
	return int(math.Ceil(float64(n) * x / (float64(n) + x - 1)))
}

// OldestFirst puts pods in the order of the scrape: in random order, and those that started before
// since first. Younger pods only fill the sample.
func OldestFirst[P any](pods []P, started func(*P) time.Time, since time.Time, shuffle func(n int, swap func(i, j int))) {
	shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	old := 0
	for i := range pods {
		if started(&pods[i]).Before(since) {
			pods[old], pods[i] = pods[i], pods[old]
			old++
		}
	}
}

// Extrapolate turns the answers of a sample into the load of all ready pods. The load that
// activators report is kept apart.
func Extrapolate(sample []wire.Stat, ready int) Scrape {
	if len(sample) == 0 {
		return Scrape{}
	}
	var s Scrape
	busy := 0
	for i := range sample {
		one := &sample[i]
		s.Report.Concurrency += math.Max(0, one.AverageConcurrent-one.AverageProxiedConcurrent)
		s.Report.RequestsPerSecond += math.Max(0, one.Requests-one.ProxiedRequests)
		s.Report.ProxiedConcurrency += math.Min(one.AverageConcurrent, one.AverageProxiedConcurrent)
		s.Report.ProxiedRequests += math.Min(one.Requests, one.ProxiedRequests)
		s.Report.Queued += one.Queued
		s.Completed += one.Completed
		s.BusySeconds += one.BusySeconds
		if one.Busy == wire.BusyTold {
			busy++
		}
		if one.Told.Known != 0 && s.Told == nil {
			s.Told = make([]wire.Told, len(sample))
		}
		if s.Told != nil {
			s.Told[i] = one.Told
		}
	}
	s.Ready = ready
	factor := float64(ready) / float64(len(sample))
	s.Busy = int32(math.Ceil(float64(busy) * factor))
	for _, f := range [...]*float64{&s.Report.Concurrency, &s.Report.RequestsPerSecond, &s.Report.ProxiedConcurrency,
		&s.Report.ProxiedRequests, &s.Report.Queued, &s.Completed, &s.BusySeconds} {
		*f *= factor
	}
	return s
}

// Scraped takes the outcome of the scrape that Ring asked for. It returns how many values that pods
// told were no load, or more than counts.
func (r *Revision) Scraped(s Scrape, now time.Time) (wrong int) {
	r.wake()
	r.scraping = false
	// A scrape reports the second in which it ends.
	r.series.Await(r.scrapeDue, now.Add(-time.Second))
	if s.Failed || !r.series.Add(now, decide.ScrapeReporter, s.Report) {
		r.series.Miss(now)
		return 0
	}
	wrong = r.tell(s, now)
	r.occupy(s, now)
	r.noteQueue(s.Report)
	formula := &r.config.Formula
	if r.config.Adaptive && formula.Metric == decide.Concurrency {
		r.adaptive = r.adaptive.Learn(now, formula.Target, formula.Share(), decide.Work{Completed: s.Completed,
			BusySeconds: s.BusySeconds, Ready: r.counts.Ready, Wanted: max(r.ordered, 0)})
		if learned, ok := r.adaptive.Learned(); ok {
			r.learned = learned
		}
	}
	return wrong
}

// tell takes what the pods tell.
func (r *Revision) tell(s Scrape, now time.Time) (wrong int) {
	formula := &r.config.Formula
	for i := range formula.Others {
		o := &formula.Others[i]
		if o.Metric != decide.Told || o.Place >= wire.MaxTold {
			continue
		}
		var values []float64
		for _, one := range s.Told {
			if value, known := one.At(o.Place); known {
				values = append(values, value)
			}
		}
		load, invalid, bounded, ok := o.All(values, len(s.Told), s.Ready, formula.MaxScaleUpRate)
		if wrong += invalid + bounded; ok {
			r.series.Tell(now, o.Place, load, bounded)
		}
	}
	return wrong
}

// awaitScrape marks the seconds that the next scrape has yet to report: since it was due, while it
// is under way; otherwise the present second. Activators that report meanwhile know only a part of
// the load.
func (r *Revision) awaitScrape(now time.Time) {
	switch {
	case !r.config.Scraped || r.counts.Ready == 0:
	case r.scraping:
		r.series.Await(r.scrapeDue, now)
	case r.config.PanicWindow <= ScrapePeriod:
		// The panic window has only this second; what activators report of it is better than
		// nothing.
	case r.series.ScrapedSince(now.Add(-2 * ScrapePeriod)):
		r.series.Await(now, now)
	}
}
