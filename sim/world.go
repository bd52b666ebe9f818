package main

import (
	"container/heap"
	"math/rand"
	"slices"
	"time"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/wire"
)

// writeTime is the time from the decision on a scale until its pods begin to start.
const writeTime = 20 * time.Millisecond

// Activators and pods report out of turn if a queue forms or doubles, or if the requests in flight
// double and grow by at least leastGrowth since the last report.
const (
	edge        = 2
	leastGrowth = 5
)

type request struct {
	machine        bind.Machine
	arrived, began time.Duration
	// work and wait are the times it needs.
	work, wait time.Duration
	closed     bool
	proxied    bool // it came through the activator
	waits      bool // it is past its work and waits for others
}

// world is one revision in virtual time.
type world struct {
	w      Workload
	scaler scaler
	agenda
	demand
	// The load, the work of requests and the cluster have random numbers of their own, so that an
	// open load is the same under every autoscaler.
	work, random *rand.Rand

	pods    []*pod
	held    []*request
	busy    int    // requests at work on the shared CPUs
	turns   []turn // those that have a worker and wait for a CPU
	cursor  int
	ready   int32
	asleep  int32
	waking  int32
	named   int // pods so far
	inWorld int // requests that have arrived and not ended
	proxied int // of those, in or through the activator
	// toldQueue and toldLoad are the activator's last report.
	toldQueue int
	toldLoad  float64
	ringAt    time.Duration

	// all is every request of the second under way, activator those in or through it.
	all, activator load
	areaAt         time.Duration

	result *Result
}

var epoch = time.Unix(1_700_000_000, 0)

func (w *world) clock() time.Time { return epoch.Add(w.now) }

// simulate runs one revision of a workload under a scaler.
func simulate(work Workload, index int, create func(Workload, time.Time) scaler, seed int64) *Result {
	random := func(stream int64) *rand.Rand {
		return rand.New(rand.NewSource(seed + int64(index)*7919 + stream*1_000_003))
	}
	end := work.Length()
	work = work.of(index)
	w := &world{w: work, demand: demand{load: random(0)}, work: random(1), random: random(2), result: newResult()}
	if len(work.Trace) > 0 {
		w.minutes = work.Trace[0].Minutes
		w.spread()
		w.queue = slices.Grow(w.queue, len(work.Trace[0].Arrivals))
		for _, a := range work.Trace[0].Arrivals {
			w.schedule(a.At, event{kind: arrive, work: a.Work})
		}
	}
	// Seconds and ticks of different revisions do not coincide.
	w.ringAt = time.Duration(w.random.Int63n(int64(revision.TickPeriod)))
	w.scaler = create(work, epoch.Add(w.ringAt))
	w.scale(work.Initial)
	w.schedule(time.Second, event{kind: second})
	w.schedule(w.ringAt, event{kind: ring})
	if len(work.Load) > 0 {
		w.schedule(0, event{kind: change})
	}
	for len(w.queue) > 0 {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		if w.now > end {
			break
		}
		w.handle(e)
	}
	return w.result
}

func (w *world) handle(e event) {
	switch e.kind {
	case arrive:
		closed := e.request != nil
		if !closed && e.work == 0 && len(w.minutes) == 0 {
			w.nextArrival()
		}
		w.arrive(closed, e.work)
	case finish:
		w.finish(e.pod, e.request)
	case ready:
		if !e.pod.leaving {
			e.pod.ready, e.pod.at = true, w.now
			w.ready++
			if e.pod.waking {
				e.pod.waking = false
				w.waking--
			}
			w.changed()
			w.drainHeld()
		}
	case second:
		w.endSecond()
		w.schedule(time.Second, event{kind: second})
	case ring:
		if w.now == w.ringAt { // otherwise the clock was set since
			w.ringAt = -1
			w.write(w.scaler.ring(w.clock(), w.stats))
		}
	case apply:
		w.scale(e.replicas)
	case change:
		w.nextSegment()
	}
}

func (w *world) accrue() {
	elapsed := (w.now - w.areaAt).Seconds()
	w.all.concurrency += elapsed * float64(w.inWorld)
	w.activator.concurrency += elapsed * float64(w.proxied)
	w.areaAt = w.now
}

// arrive lets a request come that works for a time, 0 to draw it.
func (w *world) arrive(closed bool, works time.Duration) {
	w.accrue()
	w.inWorld++
	w.all.arrivals++
	w.result.Requests++
	if w.ready+w.asleep+w.waking == 0 {
		w.result.ColdStarts++
	}
	r := &request{arrived: w.now, closed: closed, proxied: w.scaler.proxied() || w.ready == 0, work: works}
	if works == 0 {
		r.work = serviceTime(w.work, w.w.Service, w.w.Spread)
	}
	if w.w.Wait > 0 {
		r.wait = serviceTime(w.work, w.w.Wait, w.w.Spread)
	}
	r.machine.Step(&bind.Event{Kind: bind.Begin, At: w.clock()})
	p := w.dispatch(r)
	if p == nil {
		r.proxied = true // it waits where the activator counts it
		w.held = append(w.held, r)
		if w.waking < int32(len(w.held)) {
			w.wake()
		}
	}
	if r.proxied {
		w.proxied++
		w.activator.arrivals++
		w.press()
	} else if own := float64(p.inFlight - p.proxied); own >= edge*p.told && own >= p.told+leastGrowth {
		p.told = own
		w.write(w.scaler.pressed(w.clock(), p.name, load{concurrency: own}))
	}
}

// press reports for the activator out of turn.
func (w *world) press() {
	n, now := len(w.held), float64(w.proxied)
	if n == 0 || n < edge*w.toldQueue {
		if now < edge*w.toldLoad || now < w.toldLoad+leastGrowth {
			return
		}
	}
	w.toldQueue, w.toldLoad = max(n, w.toldQueue), max(now, w.toldLoad)
	w.write(w.scaler.pressed(w.clock(), "", load{concurrency: now, queued: n}))
}

// stats is what a sample of the ready pods answers to a scrape.
func (w *world) stats() []wire.Stat {
	var ready []*pod
	for _, p := range w.pods {
		if p.ready {
			ready = append(ready, p)
		}
	}
	revision.OldestFirst(ready, func(p **pod) time.Time { return epoch.Add((*p).started) }, w.clock().Add(-w.w.Window), w.random.Shuffle)
	var stats []wire.Stat
	for _, p := range ready[:revision.SampleSize(len(ready))] {
		s := p.last
		for place, m := range w.w.Metrics {
			s.Told.Set(place, m.of(p))
		}
		stats = append(stats, s)
	}
	return stats
}

func (w *world) endSecond() {
	w.accrue()
	for _, p := range w.pods {
		p.accrue(w.now)
		p.last, p.now = p.now, wire.Stat{}
		p.told = p.last.AverageConcurrent - p.last.AverageProxiedConcurrent
	}
	w.all.queued, w.activator.queued = len(w.held), len(w.held)
	w.toldQueue, w.toldLoad = len(w.held), w.activator.concurrency
	w.result.second(w.all.concurrency, w.scaler.wanted(), w.ready, len(w.pods))
	w.remember()
	all, activator := w.all, w.activator
	w.all, w.activator = load{}, load{}
	w.write(w.scaler.second(w.clock(), activator, all))
}

// changed tells the autoscaler of the pods.
func (w *world) changed() {
	w.write(w.scaler.changed(w.clock(), revision.Counts{Ready: w.ready, Asleep: w.asleep, NotReady: int32(len(w.pods)) - w.ready - w.asleep}))
}

// write schedules a scale, and the autoscaler's clock, which any call may have changed.
func (w *world) write(replicas int32) {
	w.stand(w.scaler.awake())
	if replicas != noChange {
		w.schedule(writeTime, event{kind: apply, replicas: replicas})
	}
	due := max(w.scaler.due().Sub(epoch), w.now)
	if w.ringAt < 0 || due < w.ringAt {
		w.ringAt = due
		w.schedule(due-w.now, event{kind: ring})
	}
}
