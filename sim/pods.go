package main

import (
	"strconv"
	"time"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/pick"
	"ebb.dev/ebb/wire"
)

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
