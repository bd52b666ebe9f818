// Package recall remembers what people ask for and no decision needs: how requests ended, the load
// of the last ten minutes, cold starts, refused requests and records of calls.
//
// Owns: one record for each revision, of bounded size. Reads: stats, scrapes and incidents, beside
// the loop; the loop's views, each five seconds. Writes: nothing. Never: holds a decision up, or
// remembers a revision that has no PodAutoscaler.
package recall

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/shares"
	"ebb.dev/ebb/wire"
)

const (
	step = v1alpha1.StepSeconds * time.Second
	// maxSeries bounds the revisions of which the last ten minutes are kept: 2.9 KB each, 12 MB
	// together. A revision that was at zero all the time needs none.
	maxSeries = 4096
	// maxCalled bounds the revisions of which there are records of calls: some 6 KB each, and
	// 20 KB with the longest texts. A namespace has at most half, and a share beside others.
	maxCalled = 1000
	// together is within what time equal refusals are one.
	together = time.Second
)

// Records is the memory of a replica. Its methods may be called from any goroutine.
type Records struct {
	// Known says whether there is such a revision.
	Known func(loop.Key) bool
	Clock func() time.Time

	mutex  sync.RWMutex
	all    map[loop.Key]*record
	series int // records with points
	// called are the records with calls, about: each Step counts them anew.
	called atomic.Pointer[shares.Pool]
}

// load are sums over reports of about a second each.
type load struct{ concurrency, requests, queued float64 }

func (l *load) add(concurrency, requests, queued float64) {
	l.concurrency += concurrency
	l.requests += requests
	l.queued += queued
}

// period is the time between two points, or the part of it that has passed.
type period struct {
	begin, end time.Time
	// A scrape stands for all pods, so scrapes are averaged. Reports of activators are added up.
	scrapes           float64
	scraped, reported load
	ended             wire.Outcomes
}

// Load is an average over some seconds.
type Load struct{ RequestsPerSecond, InFlight, Queued float64 }

func (p *period) load(seconds float64) (l Load) {
	if p.scrapes > 0 {
		l = Load{p.scraped.requests / p.scrapes, p.scraped.concurrency / p.scrapes, p.scraped.queued / p.scrapes}
	}
	l.RequestsPerSecond += p.reported.requests / seconds
	l.InFlight += p.reported.concurrency / seconds
	l.Queued += p.reported.queued / seconds
	return l
}

// Point is one step of a series.
type Point struct {
	Load, RequestsPerSecond, P50Ms, P99Ms float32 // percentiles are 0 if no request ended
	Wanted, Ready, Asleep                 uint16
}

// record is what is remembered of one revision.
type record struct {
	mutex       sync.Mutex
	now, before period
	points      []Point // a ring once it is full
	newest      int
	zeros       int // how many of the newest points are zero
	coldStarts  []v1alpha1.ColdStart
	refusals    []v1alpha1.Refusal
	calls       []v1alpha1.Call
	hasCalls    atomic.Bool
	missed      int // rounds in which the loop did not know the revision
}

// find returns the record of a revision, nil if there is no such revision.
func (r *Records) find(key loop.Key) *record {
	r.mutex.RLock()
	one := r.all[key]
	r.mutex.RUnlock()
	if one != nil || !r.Known(key) {
		return one
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if one = r.all[key]; one == nil {
		if r.all == nil {
			r.all = map[loop.Key]*record{}
		}
		one = &record{now: period{begin: r.Clock()}}
		r.all[key] = one
	}
	return one
}

// Scraped takes a scrape of all pods, and how the requests of the asked ones ended, nil if none
// did. full are the pods that refused requests.
func (r *Records) Scraped(key loop.Key, s revision.Scrape, ended *wire.Outcomes, full map[string]uint32) {
	one := r.find(key)
	if one == nil {
		return
	}
	now := r.Clock()
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.now.scrapes++
	one.now.scraped.add(s.Report.Concurrency, s.Report.RequestsPerSecond, s.Report.Queued)
	if ended != nil {
		one.now.ended.Merge(ended)
	}
	for pod, n := range full {
		one.refused(v1alpha1.Refusal{At: now, Revision: key.Name, By: "pod", Name: pod, Status: 503, Reason: "pending request queue full", Count: int64(n)})
	}
}

// Reported takes the regular report of an activator.
func (r *Records) Reported(key loop.Key, stat *wire.Stat) {
	one := r.find(key)
	if one == nil {
		return
	}
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.now.reported.add(stat.AverageConcurrent, stat.Requests, stat.Queued)
	if stat.Ended != nil {
		one.now.ended.Merge(stat.Ended)
	}
}

// ColdStart takes a cold start.
func (r *Records) ColdStart(c *wire.ColdStarted) {
	one := r.find(loop.Key{Namespace: c.Namespace, Name: c.Revision})
	if one == nil {
		return
	}
	told := v1alpha1.ColdStart{At: c.At.UTC(), Revision: c.Revision, Pod: c.Pod, TraceID: c.Trace, Complete: c.Complete, Pulled: c.Pulled, Phases: []v1alpha1.Phase{}}
	for _, p := range c.Phases {
		took := v1alpha1.Rounded(milliseconds(p.Took))
		told.Phases = append(told.Phases, v1alpha1.Phase{Name: p.Name, StartMs: told.TotalMs, DurationMs: took})
		told.TotalMs += took
	}
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.coldStarts = appendNewest(one.coldStarts, told, v1alpha1.MaxColdStarts)
}

// Refused takes refusals of an activator.
func (r *Records) Refused(x *wire.Refused) {
	one := r.find(loop.Key{Namespace: x.Namespace, Name: x.Revision})
	if one == nil {
		return
	}
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.refused(v1alpha1.Refusal{At: x.At, Revision: x.Revision, By: "activator", Name: x.By, Status: x.Status, Reason: x.Reason, Count: x.Count})
}

// Called takes the record of a request. A sender that did not hear of it sends it again.
func (r *Records) Called(c *wire.Called) {
	one := r.find(loop.Key{Namespace: c.Namespace, Name: c.Revision})
	if one == nil {
		return
	}
	told := v1alpha1.Call{At: c.At.UTC(), Revision: c.Revision, Pod: c.Pod, Method: c.Method, Path: c.Path, Status: c.Status,
		WaitedMs: v1alpha1.Rounded(milliseconds(c.Waited)), RanMs: v1alpha1.Rounded(milliseconds(c.Ran)), TraceID: c.Trace, ID: c.Call, Attempt: c.Attempt}
	if !c.Accepted.IsZero() {
		told.At = c.Accepted.UTC()
		told.WaitedMs = v1alpha1.Rounded(milliseconds(c.At.Add(c.Waited).Sub(c.Accepted)))
	}
	one.mutex.Lock()
	defer one.mutex.Unlock()
	if slices.Contains(one.calls, told) {
		return
	}
	if one.calls == nil && !r.countCalled().Take(c.Namespace, 1) {
		return
	}
	one.hasCalls.Store(true)
	one.calls = appendNewest(one.calls, told, v1alpha1.MaxCalls)
}

// refused counts equal refusals of a moment as one.
func (one *record) refused(x v1alpha1.Refusal) {
	x.At = x.At.UTC()
	for i := range one.refusals {
		known := &one.refusals[i]
		same := *known
		same.At, same.Count = x.At, x.Count
		if same == x && x.At.Sub(known.At).Abs() <= together {
			known.Count += x.Count
			if x.At.After(known.At) {
				known.At = x.At
			}
			return
		}
	}
	one.refusals = appendNewest(one.refusals, x, v1alpha1.MaxRefusals)
}

func appendNewest[T any](all []T, one T, most int) []T {
	if len(all) == most {
		all = slices.Delete(all, 0, 1)
	}
	return append(all, one)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Run adds a point each step until ctx ends.
func (r *Records) Run(ctx context.Context, each func(func(loop.View))) error {
	return run.Every(ctx, step, func(time.Time) error {
		r.Step(each)
		return nil
	})
}

// Step ends the period of every revision, and forgets those that the loop no longer knows.
func (r *Records) Step(each func(func(loop.View))) {
	now := r.Clock()
	alive := map[loop.Key]bool{}
	each(func(v loop.View) {
		if one := r.find(v.Key); one != nil {
			alive[v.Key] = true
			r.point(one, v, now)
		}
	})
	r.mutex.Lock()
	defer r.mutex.Unlock()
	called := shares.New(maxCalled)
	for key, one := range r.all {
		if alive[key] {
			one.missed = 0
		} else if one.missed++; one.missed > 1 {
			if one.points != nil {
				r.series--
			}
			delete(r.all, key)
		}
		if one.hasCalls.Load() && r.all[key] != nil {
			called.Add(key.Namespace, 1)
		}
	}
	r.called.Store(called)
}

// countCalled returns the count of records with calls.
func (r *Records) countCalled() *shares.Pool {
	if r.called.Load() == nil {
		r.called.CompareAndSwap(nil, shares.New(maxCalled))
	}
	return r.called.Load()
}

func (r *Records) point(one *record, v loop.View, now time.Time) {
	one.mutex.Lock()
	defer one.mutex.Unlock()
	one.now.end = now
	l := one.now.load(max(now.Sub(one.now.begin).Seconds(), 1))
	p := Point{Load: float32(l.InFlight), RequestsPerSecond: float32(l.RequestsPerSecond),
		Wanted: narrow(v.Status.Desired), Ready: narrow(v.Counts.Ready), Asleep: narrow(v.Counts.Asleep)}
	if d, ok := one.now.ended.Latency.Percentile(0.5); ok {
		p.P50Ms = float32(milliseconds(d))
	}
	if d, ok := one.now.ended.Latency.Percentile(0.99); ok {
		p.P99Ms = float32(milliseconds(d))
	}
	one.before, one.now = one.now, period{begin: now}
	if p != (Point{}) {
		one.zeros = 0
	} else if one.zeros++; one.zeros >= v1alpha1.MaxPoints && one.points != nil {
		one.points = nil
		r.count(-1)
	}
	switch {
	case one.points == nil && p == (Point{}):
	case one.points == nil:
		if !r.count(1) {
			return
		}
		one.points, one.newest = append(make([]Point, 0, 8), p), 0
	case len(one.points) < v1alpha1.MaxPoints:
		one.points = append(one.points, p)
		one.newest = len(one.points) - 1
	default:
		one.newest = (one.newest + 1) % len(one.points)
		one.points[one.newest] = p
	}
}

// count notes a record that begins or ceases to have points. It reports false if there is no room.
func (r *Records) count(change int) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.series+change > maxSeries {
		return false
	}
	r.series += change
	return true
}

func narrow(n int32) uint16 { return uint16(min(max(n, 0), math.MaxUint16)) }

// Recollection is what is remembered of a revision.
type Recollection struct {
	Load  Load
	Ended wire.Outcomes // of the last ten seconds
	// Points are the oldest first, Until is the time of the newest.
	Points     []Point
	Until      time.Time
	ColdStarts []v1alpha1.ColdStart
	Refusals   []v1alpha1.Refusal
	Calls      []v1alpha1.Call
}

// Get returns what is remembered of a revision, with the newest most points.
func (r *Records) Get(key loop.Key, most int) Recollection {
	r.mutex.RLock()
	one := r.all[key]
	r.mutex.RUnlock()
	if one == nil {
		return Recollection{}
	}
	now := r.Clock()
	one.mutex.Lock()
	defer one.mutex.Unlock()
	both := one.before
	both.scrapes += one.now.scrapes
	both.scraped.add(one.now.scraped.concurrency, one.now.scraped.requests, one.now.scraped.queued)
	both.reported.add(one.now.reported.concurrency, one.now.reported.requests, one.now.reported.queued)
	both.ended.Merge(&one.now.ended)
	begin := one.now.begin
	if !one.before.begin.IsZero() {
		begin = one.before.begin
	}
	found := Recollection{Load: both.load(max(now.Sub(begin).Seconds(), 1)), Ended: both.ended, Until: one.now.begin,
		ColdStarts: slices.Clone(one.coldStarts), Refusals: slices.Clone(one.refusals), Calls: slices.Clone(one.calls)}
	n := len(one.points)
	for i := n - min(n, most); i < n; i++ {
		found.Points = append(found.Points, one.points[(one.newest+1+i)%n])
	}
	return found
}
