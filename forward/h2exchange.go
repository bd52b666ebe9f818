package forward

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// h2exchange is a request over HTTP/2 and its response. It does what an exchange.Machine asks for.
//
// All events are handled in the same way. The function for the event locks mu and calls
// performLocked, which calls the machine and writes to the two connections. Then it unlocks mu and
// calls follow for what must not be done with a lock held: call the Handler, or get a connection.
// Functions named ...Locked need mu and do not release it. They lock one connection at a time.
type h2exchange struct {
	srv    *h2server
	r      Request
	res    Result
	down   h2half                // on the client's connection
	h2head                       // of r
	space  [16]hpack.HeaderField // of its fields

	// Only the goroutine that calls the Handler uses these.
	reader   *h2conn // the connection that it reads, or nil
	question exchange.State
	seen     Response
	dialErr  error

	mu      sync.Mutex
	machine exchange.Machine
	account Account // see Request.Charge
	charged int64
	full    error // the account's, when a queue could not grow
	target  *Upstream
	up      *h2half // nil while there is no stream at the upstream
	body    h2body
	frame   *http2.MetaHeadersFrame // the response head that is being handled

	expected int64 // the response's Content-Length, or -1
	passed   int64
	bodiless bool // the response has no body, whatever its Content-Length

	// stalls is when the stream is reset if its answer has not left. It is set when the machine is
	// over and no timer of the request ends the stream any more.
	stalls time.Time
}

// admit begins the request. If keep is false, another goroutine reads the connection now.
func (x *h2exchange) admit(b *h2batch) (keep bool) {
	x.mu.Lock()
	do := x.performLocked(&exchange.Event{Kind: exchange.Begin}, b)
	x.mu.Unlock()
	return x.follow(do, x.down.c, b)
}

// follow does the rest of a step, without the lock. reader is the connection that this goroutine
// reads, or nil. If keep is false, another goroutine reads it now.
func (x *h2exchange) follow(do exchange.Do, reader *h2conn, b *h2batch) (keep bool) {
	keep = true
	for {
		switch {
		case do.Has(exchange.Finish):
			x.finish(b)
			return keep
		case do.Has(exchange.Connect):
			x.connect(reader, b)
			return keep
		case !do.Has(exchange.Ask):
			return keep
		}
		x.reader = reader
		d, e := x.ask()
		if reader != nil && x.reader == nil {
			keep, reader, b = false, nil, &h2batch{} // the new reader uses the old batch
			defer b.flush()
		}
		x.reader = nil
		x.mu.Lock()
		switch {
		case e.Choice != exchange.Pass:
			x.target, x.r.reply = d.Upstream, d.Reply
		case x.up == nil:
			e.Err = fmt.Errorf("the response of %s was dropped", x.target.addr)
		}
		do = x.performLocked(&e, b)
		x.mu.Unlock()
	}
}

// ask calls the method of the Handler that belongs to the machine's state. If it panics, the event
// is Panicked.
func (x *h2exchange) ask() (d Decision, e exchange.Event) {
	e = exchange.Event{Kind: exchange.Panicked, Err: errPanicked}
	defer x.srv.srv.catch()
	choice := exchange.Forward
	switch x.question {
	case exchange.Admitting:
		d = x.srv.srv.Handler.Admit(&x.r)
	case exchange.Redirecting:
		d = x.srv.srv.redirects.OnDialError(&x.r, x.dialErr)
	case exchange.Reviewing:
		again := false
		if d, again = x.srv.srv.reviews.OnResponse(&x.r, &x.seen); !again {
			choice = exchange.Pass
		}
	}
	if choice == exchange.Forward && d.Upstream == nil {
		choice = exchange.Reply
	}
	at := x.r.Started
	if x.r.ctx != nil {
		at = time.Now()
	}
	return d, exchange.Event{Kind: exchange.Decided, Choice: choice, At: at}
}

// performLocked gives the machine an event and does what concerns the connections. It returns what
// is left for follow.
func (x *h2exchange) performLocked(e *exchange.Event, b *h2batch) exchange.Do {
	do := x.stepLocked(e, b)
	return do | x.fullLocked(b) // a body that was sent may not have fit
}

func (x *h2exchange) stepLocked(e *exchange.Event, b *h2batch) (left exchange.Do) {
	if e.Kind == exchange.Decided {
		e.BodyFollows = !x.body.whole
		x.machine.Configure(x.r.policy())
	}
	do := x.machine.Step(e)
	if do.Has(exchange.Interrupt) && x.r.ctxCancel != nil {
		x.r.ctxCancel(x.machine.Pending())
	}
	if do.Has(exchange.Drop) {
		code := http2.ErrCodeCancel
		if e.Kind == exchange.Failed && e.Code != 0 {
			code = http2.ErrCode(e.Code)
		}
		x.dropLocked(code, b)
	}
	if do.Has(exchange.Rewind) {
		x.body.rewind()
		x.res.RequestBytes = 0
	}
	if do.Has(exchange.Ask) {
		x.question = x.machine.State()
		if x.question == exchange.Reviewing {
			x.seen = Response{Status: e.Status, Replayable: x.machine.Replayable(), h2: x.frame.Fields}
		}
	}
	if do.Has(exchange.SendBody) {
		x.pushLocked(b)
	}
	if do.Has(exchange.PassInterim) {
		x.interimLocked(e.Status, x.frame.RegularFields(), b)
	}
	if e.Kind == exchange.Decided {
		x.armLocked()
	}
	switch {
	case do.Has(exchange.PassHead):
		return x.respondLocked(b)
	case do.Has(exchange.Answer):
		reply := x.srv.srv.replyTo(x.machine.Ending(), &x.r)
		x.res.Status, x.res.ResponseBytes = x.writeLocked(&reply, b)
	case do.Has(exchange.EndTrailer):
		x.endLocked(b)
	case do.Has(exchange.Abort):
		x.down.c.drop(&x.down, http2.ErrCode(x.machine.Ending().Code), b)
	case do.Has(exchange.Finish):
		x.closeDownLocked(b)
	}
	if do.Has(exchange.Finish) {
		x.settleBodyLocked()
		x.body = h2body{}
		x.settleLocked()
		if x.r.ctxCancel != nil {
			x.r.ctxCancel(context.Canceled)
		}
	}
	return do
}

// finish calls the Handler's Done. The exchange is over, so no other goroutine uses r and res.
func (x *h2exchange) finish(b *h2batch) {
	now := time.Now()
	x.res.ended(x.machine.Ending(), now.Sub(x.r.Started))
	x.srv.srv.done(&x.r, &x.res)
	x.srv.running.Add(-1)
	x.mu.Lock()
	x.forgetLocked(now)
	x.mu.Unlock()
	x.rest(b)
}

// forgetLocked frees what is no longer needed. If the client opens no window, the stream of a local
// answer stays until stalls, and with it could stay a thousand heads. Such an answer is short, so
// it gets no more time than a head.
func (x *h2exchange) forgetLocked(now time.Time) {
	x.r = Request{}
	x.h2head, x.space, x.seen = h2head{}, [len(x.space)]hpack.HeaderField{}, Response{}
	x.frame, x.dialErr = nil, nil
	c := x.down.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.down.removed {
		x.stalls = now.Add(min(x.srv.srv.StallTimeout, x.srv.srv.HeaderTimeout))
		c.armLocked(x.stalls, x.srv.tick)
	}
}

// connect sends the request to target. If the body may be in the reader's buffer, the request waits
// until that has been read: then the upstream need not be asked whether to send it.
func (x *h2exchange) connect(reader *h2conn, b *h2batch) {
	x.mu.Lock()
	u := x.target
	later := reader == x.down.c && x.r.deferBody > 0 && !x.body.whole
	x.mu.Unlock()
	if later {
		x.srv.later = append(x.srv.later, x)
		return
	}
	u.streams.(*h2Pool).send(x, b)
}

// armLocked sets the timer of the client's connection for the exchange's next deadline.
func (x *h2exchange) armLocked() {
	at := x.machine.TickAt()
	if at.IsZero() {
		return
	}
	c := x.down.c
	c.mu.Lock()
	c.armLocked(at, x.srv.tick)
	c.mu.Unlock()
}

// tick handles what is due now, and returns when it must be called again.
func (x *h2exchange) tick(now time.Time, b *h2batch) time.Time {
	x.mu.Lock()
	do := x.performLocked(&exchange.Event{Kind: exchange.Tick, At: now}, b)
	at := x.machine.TickAt()
	stalled := !x.stalls.IsZero() && !now.Before(x.stalls)
	switch {
	case stalled:
		x.down.c.drop(&x.down, http2.ErrCodeCancel, b)
	case !x.stalls.IsZero():
		at = x.stalls
	}
	x.mu.Unlock()
	if stalled {
		x.rest(b)
	}
	x.follow(do, nil, b)
	return at
}

// clientGone handles that the client has reset the stream or left.
func (x *h2exchange) clientGone(b *h2batch) {
	x.mu.Lock()
	x.down.c.mu.Lock()
	x.down.c.removeLocked(&x.down, b)
	x.down.c.mu.Unlock()
	over := !x.machine.Live()
	do := x.performLocked(&exchange.Event{Kind: exchange.ClientLeft}, b)
	x.mu.Unlock()
	if over {
		x.rest(b)
	}
	x.follow(do, nil, b)
}

// malformed handles a malformed frame of a stream: the stream is reset.
func (x *h2exchange) malformed(h *h2half, code http2.ErrCode, b *h2batch) {
	x.mu.Lock()
	over := false
	var e exchange.Event
	switch {
	case h == &x.down:
		x.down.c.drop(&x.down, code, b)
		over = !x.machine.Live()
		if !over {
			x.srv.srv.rejected.Add(1)
		}
		e = exchange.Event{Kind: exchange.BadBody, Err: errH2Malformed, Code: uint32(code)}
	case h == x.up:
		e = malformedBy(h, fmt.Sprintf("sent a malformed frame (%s)", code))
		e.Code = uint32(code)
	default:
		x.mu.Unlock()
		return
	}
	do := x.performLocked(&e, b)
	x.mu.Unlock()
	if over {
		x.rest(b)
	}
	x.follow(do, nil, b)
}

// refuse answers a request without calling the Handler. The machine stays New and ignores all
// events.
func (x *h2exchange) refuse(bad *syntaxError, b *h2batch) {
	x.mu.Lock()
	x.writeLocked(&Reply{Status: bad.status, Body: bad.text}, b)
	x.forgetLocked(time.Now())
	x.mu.Unlock()
	x.rest(b)
}

// context implements carrier.
func (x *h2exchange) context() context.Context {
	x.mu.Lock()
	if x.r.ctx == nil {
		x.r.ctx, x.r.ctxCancel = context.WithCancelCause(x.srv.srv.base)
		if cause := x.machine.Pending(); cause != nil {
			x.r.ctxCancel(cause)
		}
	}
	ctx := x.r.ctx
	x.machine.Configure(x.r.policy())
	x.armLocked()
	reviewing := x.machine.State() == exchange.Reviewing
	hand := x.reader
	if reviewing && !x.machine.Replayable() {
		hand = nil // nothing may be read while OnResponse has the response
	}
	x.mu.Unlock()
	if hand == nil {
		return ctx
	}
	// The caller will wait, so another goroutine has to read.
	x.reader = nil
	if reviewing {
		var b h2batch
		x.mu.Lock()
		x.dropLocked(http2.ErrCodeCancel, &b)
		x.mu.Unlock()
		b.flush()
	}
	hand.peer.beforeRead()
	hand.batch.flush()
	*hand.handed = true
	go hand.read()
	return ctx
}

// workedOn implements carrier.
func (x *h2exchange) workedOn() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.machine.WorkedOn()
}

// dropLocked resets the upstream's stream if there is one.
func (x *h2exchange) dropLocked(code http2.ErrCode, b *h2batch) {
	if up := x.up; up != nil {
		x.up = nil
		up.c.drop(up, code, b)
		up.c.peer.(*h2client).released(b)
	}
}
