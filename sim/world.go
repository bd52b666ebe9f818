package main

import (
	"container/heap"
	"math"
	"math/rand"
	"slices"
	"strconv"
	"time"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/pick"
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

type happening uint8

const (
	arrive happening = iota
	finish           // a request leaves its worker, or ends its wait
	ready            // a pod becomes ready
	second           // a second ends
	ring             // the autoscaler's clock
	apply            // a scale reaches the cluster
	change           // the next segment of the load begins
)

type event struct {
	at       time.Duration
	order    int // of creation, for events at the same time
	kind     happening
	pod      *pod
	request  *request
	replicas int32
	work     time.Duration // of an arrival, 0 to draw it
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	if h[i].at != h[j].at {
		return h[i].at < h[j].at
	}
	return h[i].order < h[j].order
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	old := *h
	e := old[len(old)-1]
	*h = old[:len(old)-1]
	return e
}

type request struct {
	machine        bind.Machine
	arrived, began time.Duration
	// work and wait are the times it needs.
	work, wait time.Duration
	closed     bool
	proxied    bool // it came through the activator
	waits      bool // it is past its work and waits for others
}

type pod struct {
	name    string
	started time.Duration
	ready   bool
	leaving bool
	// asleep says since when it sleeps, if it does; waking that it is about to be ready again.
	asleep   bool
	waking   bool
	since    time.Duration
	working  int
	queue    []*request
	inFlight int
	proxied  int // of those in flight
	// told is the number of direct requests in flight that it reported last.
	told float64
	// now is the second under way, last the one before, as a scrape sees it.
	now, last wire.Stat
	at        time.Duration
}

// accrue adds the time since the last change to the second under way.
func (p *pod) accrue(now time.Duration) {
	elapsed := (now - p.at).Seconds()
	p.now.AverageConcurrent += elapsed * float64(p.inFlight)
	p.now.AverageProxiedConcurrent += elapsed * float64(p.proxied)
	p.now.BusySeconds += elapsed * float64(p.inFlight)
	p.at = now
}

// turn is a request that waits for a CPU, in its pod.
type turn struct {
	pod     *pod
	request *request
}

// world is one revision in virtual time.
type world struct {
	w      Workload
	scaler scaler
	// The load, the work of requests and the cluster have random numbers of their own, so that an
	// open load is the same under every autoscaler.
	load, work, random *rand.Rand
	minutes            []float64

	now    time.Duration
	end    time.Duration
	queue  events
	orders int

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

	segment      int
	segmentBegan time.Duration
	target       int // of a closed load
	outstanding  int

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
	w := &world{w: work, load: random(0), work: random(1), random: random(2), end: end, result: newResult()}
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
		if w.now > w.end {
			break
		}
		w.handle(e)
	}
	return w.result
}

func (w *world) schedule(after time.Duration, e event) {
	w.orders++
	e.at, e.order = w.now+after, w.orders
	heap.Push(&w.queue, e)
}

// spread lets the arrivals of a trace's minutes come at random times in them, one minute ahead at a
// time.
func (w *world) spread() {
	for m, n := range w.minutes {
		for range int(n) {
			w.orders++
			at := time.Duration(m)*time.Minute + time.Duration(w.load.Int63n(int64(time.Minute)))
			w.queue = append(w.queue, event{at: at, order: w.orders, kind: arrive})
		}
	}
	heap.Init(&w.queue)
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

func (w *world) nextSegment() {
	if w.now > 0 {
		w.segment++
	}
	if w.segment >= len(w.w.Load) {
		return
	}
	s := w.w.Load[w.segment]
	w.segmentBegan = w.now
	w.schedule(s.For, event{kind: change})
	w.target = 0
	if s.Closed {
		w.target = int(s.From)
		for w.outstanding < w.target {
			w.outstanding++
			w.handle(event{kind: arrive, request: &request{}})
		}
	} else {
		w.nextArrival()
	}
}

// nextArrival draws the next arrival of an open load, by thinning where the rate changes.
func (w *world) nextArrival() {
	if w.segment >= len(w.w.Load) {
		return
	}
	s := w.w.Load[w.segment]
	most := math.Max(s.From, s.To)
	if s.Closed || most <= 0 {
		return
	}
	after := time.Duration(0)
	for {
		after += time.Duration(w.load.ExpFloat64() / most * float64(time.Second))
		in := w.now + after - w.segmentBegan
		if in >= s.For {
			return
		}
		if w.load.Float64()*most <= s.at(in) {
			break
		}
	}
	w.schedule(after, event{kind: arrive})
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

// view is what production's pick sees.
type view struct{ pods []*pod }

func (v view) Len() int           { return len(v.pods) }
func (v view) InFlight(i int) int { return v.pods[i].inFlight }
func (v view) State(i int) pick.State {
	return pick.Open
}

// free is a pod with a free slot, nil if there is none.
func (w *world) free() *pod {
	if w.ready == 0 {
		return nil
	}
	open := w.pods
	if int(w.ready) != len(open) {
		open = nil
		for _, p := range w.pods {
			if p.ready {
				open = append(open, p)
			}
		}
	}
	i, _ := pick.Choose(view{open}, w.w.Concurrency, w.cursor, w.random.Uint64())
	if i < 0 {
		return nil
	}
	w.cursor = i + 1
	return open[i]
}

// dispatch tells a request's machine whether there is a free slot, and sends the request there if
// the machine says so. Otherwise the request waits, and the pod is nil.
func (w *world) dispatch(r *request) *pod {
	p, e := w.free(), bind.Event{Kind: bind.Slot}
	if p == nil {
		e.Kind = bind.NoSlot
	}
	if !r.machine.Step(&e).Has(bind.Send) {
		return nil
	}
	p.accrue(w.now)
	p.inFlight++
	p.now.Requests++
	if r.proxied {
		p.proxied++
		p.now.ProxiedRequests++
	}
	if w.w.Workers > 0 && p.working >= w.w.Workers {
		p.queue = append(p.queue, r)
	} else {
		w.begin(p, r)
	}
	return p
}

func (w *world) begin(p *pod, r *request) {
	p.working++
	if w.w.Processors > 0 && w.busy >= w.w.Processors {
		w.turns = append(w.turns, turn{p, r})
		return
	}
	w.start(p, r)
}

func (w *world) start(p *pod, r *request) {
	w.busy++
	r.began = w.now
	w.result.wait(w.now - r.arrived)
	w.schedule(r.work, event{kind: finish, pod: p, request: r})
}

func (w *world) finish(p *pod, r *request) {
	if !r.waits {
		p.working--
		w.busy--
		if len(w.turns) > 0 {
			next := w.turns[0]
			w.turns = w.turns[1:]
			w.start(next.pod, next.request)
		}
		if len(p.queue) > 0 {
			next := p.queue[0]
			p.queue = p.queue[1:]
			w.begin(p, next)
		}
		if r.wait > 0 {
			r.waits = true
			w.schedule(r.wait, event{kind: finish, pod: p, request: r})
			return
		}
	}
	w.accrue()
	p.accrue(w.now)
	w.inWorld--
	if r.machine.Step(&bind.Event{Kind: bind.Done}).Has(bind.SlotDone) {
		p.inFlight--
	}
	p.now.Completed++
	if r.proxied {
		w.proxied--
		p.proxied--
	}
	w.result.response(w.now - r.arrived)
	w.drainHeld()
	if r.closed {
		switch {
		case w.outstanding > w.target:
			w.outstanding--
		case w.w.Think > 0:
			w.schedule(serviceTime(w.load, w.w.Think, w.w.Spread), event{kind: arrive, request: r})
		default:
			w.handle(event{kind: arrive, request: r})
		}
	}
}

func (w *world) drainHeld() {
	if len(w.held) == 0 {
		return
	}
	w.accrue()
	for len(w.held) > 0 && w.dispatch(w.held[0]) != nil {
		w.held = w.held[1:]
	}
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

// scale changes the number of pods. New pods start. Pods that are not ready are removed first, then
// idle ones.
func (w *world) scale(replicas int32) {
	before := int32(len(w.pods))
	w.result.scaled(before, replicas)
	for int32(len(w.pods)) < replicas {
		w.named++
		p := &pod{name: "pod-" + strconv.Itoa(w.named), started: w.now, at: w.now}
		w.pods = append(w.pods, p)
		// Starts differ a little, as images, nodes and runtimes do.
		w.schedule(time.Duration(float64(w.w.Start)*(0.9+0.2*w.random.Float64())), event{kind: ready, pod: p})
	}
	for int32(len(w.pods)) > replicas {
		least := 0
		for i, p := range w.pods {
			q := w.pods[least]
			if !p.ready && q.ready || p.ready == q.ready && p.inFlight < q.inFlight {
				least = i
			}
		}
		p := w.pods[least]
		p.leaving = true // what it has in flight it finishes
		switch {
		case p.ready:
			p.ready = false
			w.ready--
		case p.asleep:
			w.asleep--
		case p.waking:
			w.waking--
		}
		w.pods = append(w.pods[:least:least], w.pods[least+1:]...)
	}
	w.changed()
}
