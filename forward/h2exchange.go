package forward

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// h2exchange is one request over HTTP/2 and its response: the shell around an exchange.Machine.
//
// Every event goes the same way: the function that learns of it takes mu, has performLocked tell
// the machine and do on the two connections what follows, releases mu, and has follow do what must
// not be done under a lock: ask the Handler, get a connection, tell the Handler of the end.
// Functions named ...Locked need mu and keep it. Each writes to at most one connection at a time,
// whose lock it takes itself.
type h2exchange struct {
	srv    *h2server
	r      Request
	res    Result
	down   h2half // on the client's connection
	fields []hpack.HeaderField
	space  [16]hpack.HeaderField

	method, path, authority string

	// These belong to the goroutine that asks the Handler, or is about to.
	reader   *h2conn // the connection that it would read; nil when it reads none
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
	frame   *http2.MetaHeadersFrame // the response head that is being dealt with

	expected int64 // the response's length, -1 when it was not said
	passed   int64

	// stalls is when the stream is reset if the answer made here has not left by then. It is set
	// once the machine is over, because then no timer of the request ends the stream.
	stalls time.Time
}

// admit has the request begin. keep false: the reading was handed on meanwhile.
func (x *h2exchange) admit(b *h2batch) (keep bool) {
	x.mu.Lock()
	do := x.performLocked(&exchange.Event{Kind: exchange.Begin}, b)
	x.mu.Unlock()
	return x.follow(do, x.down.c, b)
}

// follow does what is left of a step, without the lock. reader is the connection that this
// goroutine reads, nil for none. keep false: the reading was handed on meanwhile.
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
			keep, reader, b = false, nil, &h2batch{} // the reader's batch is the new reader's
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

// ask asks the Handler what its state says. The event is a panic unless the Handler returns.
func (x *h2exchange) ask() (d Decision, e exchange.Event) {
	e = exchange.Event{Kind: exchange.Panicked, Err: errPanicked}
	defer x.srv.srv.catch()
	choice := exchange.Forward
	switch x.question {
	case exchange.Admitting:
		d = x.srv.srv.Handler.Admit(&x.r)
	case exchange.Redirecting:
		d = x.srv.srv.redirects.OnDialError(&x.r, x.dialErr)
	case exchange.Judging:
		again := false
		if d, again = x.srv.srv.judges.OnResponse(&x.r, &x.seen); !again {
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

// performLocked tells the machine what happened and does what concerns the connections. It returns
// what is left for follow.
func (x *h2exchange) performLocked(e *exchange.Event, b *h2batch) (left exchange.Do) {
	if e.Kind == exchange.Decided {
		e.BodyFollows = !x.body.whole
		x.machine.Configure(x.r.policy())
	}
	do := x.machine.Step(e)
	if do.Has(exchange.Interrupt) && x.r.ctxCancel != nil {
		x.r.ctxCancel(x.machine.Pending())
	}
	if do.Has(exchange.Drop) {
		x.dropLocked(b)
	}
	if do.Has(exchange.Rewind) {
		x.body.rewind()
		x.res.RequestBytes = 0
	}
	if do.Has(exchange.SayContinue) {
		x.interimLocked(100, nil, b)
	}
	if do.Has(exchange.Ask) {
		x.question = x.machine.State()
		if x.question == exchange.Judging {
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
		x.down.c.credit(nil, x.body.unpaid(), b)
		x.settleBodyLocked()
		x.body = h2body{}
		if x.r.ctxCancel != nil {
			x.r.ctxCancel(context.Canceled)
		}
	}
	return do
}

// finish tells the Handler. The exchange is over, so nobody else touches r and res.
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

// forgetLocked frees what nobody asks for any more. A client that opens no window keeps the stream
// of an answer until stalls, and could make a thousand heads stay with it.
func (x *h2exchange) forgetLocked(now time.Time) {
	x.r = Request{}
	x.fields, x.space, x.seen = nil, [len(x.space)]hpack.HeaderField{}, Response{}
	x.method, x.path, x.authority = "", "", ""
	x.frame, x.dialErr = nil, nil
	c := x.down.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !x.down.removed {
		x.stalls = now.Add(x.srv.srv.StallTimeout)
		c.armLocked(x.stalls, x.srv.tick)
	}
}

// connect has the request sent to target. While the body may be in the reader's buffer it is worth
// looking there before asking for permission to send it.
func (x *h2exchange) connect(reader *h2conn, b *h2batch) {
	x.mu.Lock()
	u := x.target
	later := reader == x.down.c && x.r.deferBody && !x.body.whole
	x.mu.Unlock()
	if later {
		x.srv.later = append(x.srv.later, x)
		return
	}
	u.h2.send(u, x, b)
}

// armLocked makes the client's connection look after the exchange's next deadline.
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

// tick does what is due now and returns when to look again.
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

// clientGone: the client reset the stream or left.
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

// malformed: a frame of the stream was, so the stream was or is to be reset.
func (x *h2exchange) malformed(h *h2half, code http2.ErrCode, b *h2batch) {
	x.mu.Lock()
	var e exchange.Event
	switch {
	case h == &x.down:
		x.down.c.drop(&x.down, code, b)
		if x.machine.Live() {
			x.srv.srv.rejected.Add(1)
		}
		e = exchange.Event{Kind: exchange.BadBody, Err: errH2Malformed, Code: uint32(code)}
	case h == x.up:
		e = exchange.Event{Kind: exchange.Failed, Err: fmt.Errorf("%s sent a malformed frame (%s)", h.addr(), code)}
	default:
		x.mu.Unlock()
		return
	}
	do := x.performLocked(&e, b)
	x.mu.Unlock()
	x.follow(do, nil, b)
}

// refuse answers a request that the Handler does not get to see: its machine stays New, so whatever
// comes of it is ignored.
func (x *h2exchange) refuse(bad *syntaxError, b *h2batch) {
	x.mu.Lock()
	x.writeLocked(&Reply{Status: bad.status, Body: bad.text}, b)
	x.forgetLocked(time.Now())
	x.mu.Unlock()
	x.rest(b)
}

// context is Request.Context.
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
	judging := x.machine.State() == exchange.Judging
	hand := x.reader
	if judging && !x.machine.Replayable() {
		hand = nil // the response must not pass while OnResponse has it
	}
	x.mu.Unlock()
	if hand == nil {
		return ctx
	}
	// The caller is about to wait: somebody else has to read what comes meanwhile.
	x.reader = nil
	if judging {
		var b h2batch
		x.mu.Lock()
		x.dropLocked(&b)
		x.mu.Unlock()
		b.flush()
	}
	hand.peer.beforeRead()
	hand.batch.flush()
	*hand.handed = true
	go hand.read()
	return ctx
}

// dropLocked resets the upstream's stream, if there is one.
func (x *h2exchange) dropLocked(b *h2batch) {
	if up := x.up; up != nil {
		x.up = nil
		up.c.drop(up, http2.ErrCodeCancel, b)
		up.c.peer.(*h2client).released(b)
	}
}

// writeLocked sends a whole response and ends the stream.
func (x *h2exchange) writeLocked(p *Reply, b *h2batch) (status int, n int64) {
	status = p.status()
	c := x.down.c
	body := p.Body
	if x.asksForHead() {
		body = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.down.removed {
		return 0, 0
	}
	c.fieldLocked(":status", statusDigits(status), false)
	c.fieldLocked("content-type", clean(p.contentType()), false)
	c.fieldLocked("content-length", strconv.Itoa(len(p.Body)), false)
	for _, f := range p.Header {
		c.fieldLocked(strings.ToLower(f.Name), clean(f.Value), false)
	}
	c.headersLocked(x.down.id, body == "")
	if body == "" {
		x.down.sentEnd = true
	} else if moved, ended := c.dataLocked(&x.down, []byte(body), true); !ended {
		// The client's window is small: the rest goes when it opens.
		x.down.queue, x.down.queuedEnd = append(x.down.queue, body[moved:]...), true
		c.listLocked(&x.down)
	}
	b.add(c)
	if x.down.sentEnd {
		x.srv.closeStreamLocked(&x.down, b)
	}
	return status, int64(len(body))
}

// endLocked ends a response in the middle, cleanly: with a trailer that names the timer. What waits
// for the client's window is dropped. A response whose length was said is reset instead.
func (x *h2exchange) endLocked(b *h2batch) {
	c := x.down.c
	if x.expected >= 0 {
		c.drop(&x.down, http2.ErrCodeInternal, b)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.down.removed || x.down.sentEnd || c.broken {
		return
	}
	x.down.emptyLocked(b)
	c.trailersLocked(&x.down, []hpack.HeaderField{{Name: strings.ToLower(TimeoutTrailer), Value: x.machine.Ending().Timer.String()}})
	b.add(c)
	x.srv.closeStreamLocked(&x.down, b)
}

// closeDownLocked takes a stream whose response is complete off the connection.
func (x *h2exchange) closeDownLocked(b *h2batch) {
	c := x.down.c
	c.mu.Lock()
	x.srv.closeStreamLocked(&x.down, b)
	c.mu.Unlock()
}

// left is told that bytes which waited in a queue left; end: the last ones.
func (x *h2exchange) left(h *h2half, end bool, b *h2batch) {
	if h != &x.down {
		return
	}
	x.mu.Lock()
	x.machine.Wrote(time.Now())
	over := !x.machine.Live()
	var do exchange.Do
	switch {
	case end && over:
		x.closeDownLocked(b)
	case end:
		do = x.performLocked(&exchange.Event{Kind: exchange.Ended}, b)
	}
	x.mu.Unlock()
	if end && over {
		x.rest(b)
	}
	x.follow(do, nil, b)
}

func (x *h2exchange) asksForHead() bool { return x.method == http.MethodHead }

func statusDigits(status int) string {
	switch status {
	case http.StatusOK:
		return "200"
	case http.StatusServiceUnavailable:
		return "503"
	}
	return strconv.Itoa(status)
}
