package main

import (
	"container/heap"
	"math"
	"math/rand"
	"time"

	"ebb.dev/ebb/activator/pick"
)

// writeTime is how long a scale takes from its decision to the pods' beginning to start.
const writeTime = 20 * time.Millisecond

// tickPeriod is the autoscaler's.
const tickPeriod = 2 * time.Second

// edge is how much a queue must have grown since it was reported last to be reported again out of turn.
const edge = 2

type kind uint8

const (
	arrive   kind = iota
	finish        // a request leaves its worker, or ends its wait
	ready         // a pod becomes ready
	second        // a second ends
	tick          // the autoscaler's clock
	apply         // a scale reaches the cluster
	segment2      // the load changes
)

type event struct {
	at       time.Duration
	order    int // of creation, for events at the same time
	kind     kind
	pod      *pod
	request  *request
	replicas int32
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
	arrived, began time.Duration
	closed         bool
	waits          bool // it is past its work and waits for others
}

type pod struct {
	started  time.Duration
	ready    bool
	leaving  bool
	working  int
	queue    []*request
	inFlight int
}

// turn is a request that waits for a processor, in its pod.
type turn struct {
	pod     *pod
	request *request
}

// world is one revision in virtual time.
type world struct {
	w       Workload
	scaler  scaler
	random  *rand.Rand
	service time.Duration
	minutes []float64

	now    time.Duration
	end    time.Duration
	queue  events
	orders int

	pods    []*pod
	held    []*request
	busy    int    // requests at work on the shared processors
	turns   []turn // those that have a worker and wait for a processor
	cursor  int
	told    int // the queue as it was reported last
	ready   int32
	inWorld int // requests that have arrived and not ended

	// of the second under way
	area, busyArea float64
	areaAt         time.Duration
	arrivals       int
	completed      int

	segment      int
	segmentBegan time.Duration
	target       int // of a closed load
	outstanding  int

	result *Result
}

var epoch = time.Unix(1_700_000_000, 0)

func (w *world) clock() time.Time { return epoch.Add(w.now) }

// simulate runs one revision of a workload under a scaler.
func simulate(work Workload, index int, make func(Workload, time.Time) scaler, seed int64) *Result {
	w := &world{w: work, random: rand.New(rand.NewSource(seed + int64(index)*7919)), service: work.Service, end: work.Length(), result: newResult()}
	if len(work.Trace) > 0 {
		w.service, w.minutes = work.Trace[index].Service, work.Trace[index].Minutes
		w.spread()
	}
	w.scaler = make(work, epoch)
	w.scale(work.Initial)
	// Seconds and ticks of different revisions do not coincide.
	w.schedule(time.Second, event{kind: second})
	w.schedule(time.Duration(w.random.Int63n(int64(tickPeriod))), event{kind: tick})
	if len(work.Load) > 0 {
		w.schedule(0, event{kind: segment2})
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

// spread lets the arrivals of a trace's minutes come at random times in them, one minute ahead at a time.
func (w *world) spread() {
	for m, n := range w.minutes {
		for range int(n) {
			w.orders++
			at := time.Duration(m)*time.Minute + time.Duration(w.random.Int63n(int64(time.Minute)))
			w.queue = append(w.queue, event{at: at, order: w.orders, kind: arrive})
		}
	}
	heap.Init(&w.queue)
}

func (w *world) handle(e event) {
	switch e.kind {
	case arrive:
		closed := e.request != nil
		if !closed && len(w.minutes) == 0 {
			w.nextArrival()
		}
		w.arrive(closed)
	case finish:
		w.finish(e.pod, e.request)
	case ready:
		if !e.pod.leaving {
			e.pod.ready = true
			w.ready++
			w.drainHeld()
		}
	case second:
		w.endSecond()
		w.schedule(time.Second, event{kind: second})
	case tick:
		w.write(w.scaler.tick(w.clock(), w.ready))
		w.schedule(tickPeriod, event{kind: tick})
	case apply:
		w.scale(e.replicas)
	case segment2:
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
	w.schedule(s.For, event{kind: segment2})
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
		after += time.Duration(w.random.ExpFloat64() / most * float64(time.Second))
		in := w.now + after - w.segmentBegan
		if in >= s.For {
			return
		}
		if w.random.Float64()*most <= s.at(in) {
			break
		}
	}
	w.schedule(after, event{kind: arrive})
}

func (w *world) accrue() {
	elapsed := (w.now - w.areaAt).Seconds()
	w.area += elapsed * float64(w.inWorld)
	w.busyArea += elapsed * float64(w.inWorld-len(w.held))
	w.areaAt = w.now
}

func (w *world) arrive(closed bool) {
	w.accrue()
	w.inWorld++
	w.arrivals++
	w.result.Requests++
	if w.ready == 0 {
		w.result.ColdStarts++
	}
	r := &request{arrived: w.now, closed: closed}
	if !w.dispatch(r) {
		w.held = append(w.held, r)
	}
	// What production tells out of turn: a queue that forms or grows, and load that doubles.
	if n := len(w.held); n > 0 && n >= edge*w.told || w.inWorld >= 4 && w.inWorld >= edge*max(w.told, 1) {
		w.told = max(n, w.inWorld)
		w.write(w.scaler.pressed(w.clock(), float64(w.inWorld), n, w.ready))
	}
}

// view is what production's pick sees.
type view struct{ pods []*pod }

func (v view) Len() int           { return len(v.pods) }
func (v view) InFlight(i int) int { return v.pods[i].inFlight }
func (v view) State(i int) pick.State {
	return pick.Open
}

func (w *world) dispatch(r *request) bool {
	if w.ready == 0 {
		return false
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
		return false
	}
	w.cursor = i + 1
	p := open[i]
	p.inFlight++
	if w.w.Workers > 0 && p.working >= w.w.Workers {
		p.queue = append(p.queue, r)
		return true
	}
	w.begin(p, r)
	return true
}

func (w *world) begin(p *pod, r *request) {
	p.working++
	if w.w.Processors > 0 && w.busy >= w.w.Processors {
		w.turns = append(w.turns, turn{p, r})
		return
	}
	w.work(p, r)
}

func (w *world) work(p *pod, r *request) {
	w.busy++
	r.began = w.now
	w.result.wait(w.now - r.arrived)
	w.schedule(serviceTime(w.random, w.service, w.w.Spread), event{kind: finish, pod: p, request: r})
}

func (w *world) finish(p *pod, r *request) {
	if !r.waits {
		p.working--
		w.busy--
		if len(w.turns) > 0 {
			next := w.turns[0]
			w.turns = w.turns[1:]
			w.work(next.pod, next.request)
		}
		if len(p.queue) > 0 {
			next := p.queue[0]
			p.queue = p.queue[1:]
			w.begin(p, next)
		}
		if w.w.Wait > 0 {
			r.waits = true
			w.schedule(serviceTime(w.random, w.w.Wait, w.w.Spread), event{kind: finish, pod: p, request: r})
			return
		}
	}
	w.accrue()
	w.inWorld--
	w.completed++
	p.inFlight--
	w.result.response(w.now - r.arrived)
	w.drainHeld()
	if r.closed {
		switch {
		case w.outstanding > w.target:
			w.outstanding--
		case w.w.Think > 0:
			w.schedule(serviceTime(w.random, w.w.Think, w.w.Spread), event{kind: arrive, request: r})
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
	for len(w.held) > 0 && w.dispatch(w.held[0]) {
		w.held = w.held[1:]
	}
}

func (w *world) endSecond() {
	w.accrue()
	w.scaler.second(w.clock(), seen{concurrency: w.area, arrivals: float64(w.arrivals), queued: len(w.held),
		completed: float64(w.completed), busy: w.busyArea, ready: w.ready})
	w.told = max(len(w.held), int(w.area))
	w.result.second(w.area, w.scaler.wanted(), w.ready, len(w.pods))
	w.area, w.busyArea, w.arrivals, w.completed = 0, 0, 0, 0
}

func (w *world) write(replicas int32) {
	if replicas >= 0 {
		w.schedule(writeTime, event{kind: apply, replicas: replicas})
	}
}

// scale brings the pods to a number: new ones start, and of those there are the ones not ready go first, then the idle.
func (w *world) scale(replicas int32) {
	before := int32(len(w.pods))
	w.result.scaled(before, replicas)
	for int32(len(w.pods)) < replicas {
		p := &pod{started: w.now}
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
		if p.ready {
			p.ready = false
			w.ready--
		}
		w.pods = append(w.pods[:least:least], w.pods[least+1:]...)
	}
}
