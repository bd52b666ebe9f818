package chain

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/tracing"
	"ebb.dev/ebb/internal/turns"
	"ebb.dev/ebb/queue-proxy/internal/stat"
	"ebb.dev/ebb/queue-proxy/limit"
	"ebb.dev/ebb/wire"
)

// Gate is the limit, the refused activators' turns and the load ledger under one lock: a request
// takes it once when it comes and once when it goes.
type Gate struct {
	pod      string
	offer    func(caller string)
	pressure chan struct{}
	// asked is when a judge of rollouts last asked, in nanoseconds since 1970.
	asked atomic.Int64

	mu    sync.Mutex
	limit limit.Limit
	turns turns.Turns
	load  *stat.Load
	lapse *time.Timer // set while a slot is kept
	shut  bool        // the pod sleeps
}

// GateOptions are what a Gate holds requests to.
type GateOptions struct {
	Slots      int   // requests at once; 0 is no limit
	MaxWaiting int   // requests that wait for a slot
	MaxBytes   int64 // of memory that they take; 0 is no limit
	Pod        string
	Now        time.Time // when the pod started
	WarmUp     time.Duration
	// Offer is called, on a goroutine of its own, when a slot is kept for a refused caller.
	Offer func(caller string)
}

// NewGate makes a Gate.
func NewGate(o GateOptions) *Gate {
	g := &Gate{
		pod:      o.Pod,
		offer:    o.Offer,
		pressure: make(chan struct{}, 1),
		limit:    limit.Limit{Slots: o.Slots, MaxWaiting: o.MaxWaiting, MaxBytes: o.MaxBytes},
		turns:    turns.Turns{Keep: wire.TurnMilliseconds * time.Millisecond},
		load:     stat.New(o.Now, o.WarmUp),
	}
	// The first question about a new pod comes after its first requests.
	g.asked.Store(o.Now.UnixNano())
	return g
}

// pass is one request's state between Admit and Done.
type pass struct {
	waiter    limit.Waiter
	proxied   bool
	inside    bool // counted by the ledger
	running   bool // has a slot
	probe     bool
	down      bool      // no connection to the container could be made
	elsewhere bool      // so an activator sends it to another pod
	outgrew   bool      // it waited, and there was no room for what it takes
	sent      time.Time // to the container
	span      *tracing.Span

	forwarded []byte // the field's value
}

// renew makes it the state of a request that just came. What can be used again stays.
func (p *pass) renew() {
	*p = pass{waiter: limit.Waiter{Ready: p.waiter.Ready}, forwarded: p.forwarded[:0]}
}

type entry uint8

const (
	entered entry = iota
	queued
	full
	refused
	asleep
)

// enter lets a request in, queues it, or turns it away. caller is set for one that would rather be
// refused than wait.
func (g *Gate) enter(p *pass, now time.Time, weight int64, caller string) entry {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return asleep
	}
	if caller != "" && g.limit.Slots > 0 {
		free := g.limit.Free()
		if g.limit.Waiting() > 0 {
			free = 0
		}
		if !g.turns.Take(strings.Clone(caller), free, now) { // caller shares the connection's buffer
			return refused
		}
	}
	switch g.limit.Enter(&p.waiter, weight) {
	case limit.Admitted:
		g.load.Arrive(now, p.proxied)
		g.load.Run(now)
		p.inside, p.running, p.sent = true, true, now
		if g.load.Grew() || g.limit.Slots > 0 && g.limit.Free() == 0 {
			g.press()
		}
		return entered
	case limit.Queued:
		g.load.Arrive(now, p.proxied)
		p.inside = true
		if g.load.Grew() || g.limit.Waiting() == 1 {
			g.press()
		}
		return queued
	}
	g.load.Arrive(now, p.proxied)
	g.load.Refuse(now, p.proxied, statusFull)
	g.press()
	return full
}

// Press has the load reported at once.
func (g *Gate) Press() { g.press() }

// press is the edge of pressure; it never blocks.
func (g *Gate) press() {
	select {
	case g.pressure <- struct{}{}:
	default:
	}
}

// account charges a request for its memory while it waits. One that is in flight in its own pod
// harms nobody else.
type account struct {
	*Gate
	p *pass
}

var errFull = errors.New(bodyQueueFull)

// Take implements forward.Account. A request that waits is rejected if there is no room for n more
// bytes than the weight that it entered with.
func (a account) Take(n int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.p.outgrew && !a.limit.Grow(&a.p.waiter, n) {
		a.limit.Cancel(&a.p.waiter)
		a.p.outgrew = true
		a.p.waiter.Ready <- struct{}{}
		a.press()
	}
	if a.p.outgrew {
		return errFull
	}
	return nil
}

// Give, Borrow and Return implement forward.Account. What a waiting request took is counted until
// it waits no longer.
func (a account) Give(int64)        {}
func (a account) Borrow(int64) bool { return true }
func (a account) Return(int64)      {}

// await waits for the slot of a queued request. It reports false when ctx ended first, or when the
// request took too much memory.
func (g *Gate) await(ctx context.Context, p *pass) bool {
	select {
	case <-p.waiter.Ready:
	case <-ctx.Done():
		g.mu.Lock()
		if g.limit.Cancel(&p.waiter) {
			g.mu.Unlock()
			return false
		}
		g.mu.Unlock()
		<-p.waiter.Ready // it was promoted at the same moment; leave gives the slot back
		if p.outgrew {
			return false
		}
		p.running = true
		g.mu.Lock()
		g.load.Run(time.Now())
		g.mu.Unlock()
		return false
	}
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.outgrew {
		return false
	}
	p.running, p.sent = true, now
	g.load.Run(now)
	return true
}

// leave ends a request, whatever became of it, and hands its slot on. sender is the drawer of its
// sender, unknown, or tagged.
func (g *Gate) leave(p *pass, now time.Time, res *forward.Result, who blame, sender int) {
	if !p.inside {
		return
	}
	g.mu.Lock()
	g.load.Leave(now, p.proxied, p.running)
	g.load.End(p.proxied, res.Status, res.Duration)
	switch {
	case who == nobody:
	case who == left:
		if sender != tagged {
			g.load.Left(p.sent, now.Add(-res.Parted).Sub(p.sent), !res.Upgraded)
		}
	case sender == tagged:
		g.load.Tagged(who == program)
	default:
		g.load.Judge(p.sent, now.Add(-res.Parted).Sub(p.sent), who == program, !res.Upgraded)
		if sender != unknown {
			g.load.Sender(sender, who == program)
		}
	}
	var next *limit.Waiter
	if p.running {
		next = g.limit.Leave(&p.waiter)
		if next == nil {
			g.nextTurnLocked(now)
		}
	}
	g.mu.Unlock()
	if next != nil {
		next.Ready <- struct{}{}
	}
}

// nextTurnLocked keeps a free slot for the refused caller whose turn it is, and looks again when
// that lapses.
func (g *Gate) nextTurnLocked(now time.Time) {
	if g.limit.Slots <= 0 || g.turns.Waiting() == 0 {
		return
	}
	caller := g.turns.Next(g.limit.Free(), now)
	if caller == "" {
		return
	}
	go g.offer(caller)
	if g.lapse == nil {
		g.lapse = time.AfterFunc(g.turns.Keep+time.Millisecond, g.lapsed)
	} else {
		g.lapse.Reset(g.turns.Keep + time.Millisecond)
	}
}

func (g *Gate) lapsed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextTurnLocked(time.Now())
}

// Decline is called when caller does not want the slot that is kept for it.
func (g *Gate) Decline(caller string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turns.Decline(caller)
	g.nextTurnLocked(time.Now())
}

// Shut keeps requests out, if none is inside. It reports whether it did.
func (g *Gate) Shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = g.load.Inside() == 0
	return g.shut
}

// Open lets requests in again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		g.load.Cool() // what slept has to be read into memory again
	}
	g.shut = false
}

// Inside is the number of requests in the pod, those that wait included.
func (g *Gate) Inside() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Inside()
}

// Waiting is the number of requests that wait for a slot.
func (g *Gate) Waiting() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limit.Waiting()
}

// ClosePeriod, Pressure, PressureNow, Rising and Judged make Gate a stat.Source.
func (g *Gate) ClosePeriod(now time.Time) wire.Stat {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Close(now, g.pod, g.limit.Waiting())
}

func (g *Gate) Pressure() <-chan struct{} { return g.pressure }

func (g *Gate) PressureNow(now time.Time) wire.Stat {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Now(now, g.pod, g.limit.Waiting())
}

// Rising says that the load is more than what was last reported.
func (g *Gate) Rising() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Rising()
}

// asksFor is for how long after a question senders are looked for.
const asksFor = 30 * time.Second

// isAsked reports whether a judge of rollouts asks.
func (g *Gate) isAsked(now time.Time) bool { return now.UnixNano()-g.asked.Load() < int64(asksFor) }

// Judged is what a judge of rollouts counts, who asks for it.
func (g *Gate) Judged() wire.Judged {
	g.asked.Store(time.Now().UnixNano())
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Judged()
}

// weight is what a waiting request takes in memory besides what forward.Request.Charge counts:
// goroutines, a connection.
const weight = 12 << 10

var _ forward.Handler = (*Chain)(nil)
