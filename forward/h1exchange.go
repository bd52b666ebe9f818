package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// This file does for HTTP/1.1 what an exchange.Machine asks for, one step at a time. The result of
// a step is the machine's next event.

// h1exchange is one request over HTTP/1.1 and its response. It is made new for each request, so
// that nothing is left in it of the one before. It belongs to the goroutine of serve.
type h1exchange struct {
	machine exchange.Machine
	res     Result
	account Account // see Request.Charge
	charged int64

	target     *Upstream // whom the Handler chose
	dialErr    error     // why there is no connection to it
	seen       Response
	up         *upConn
	bodyAhead  body
	pumped     bool // the request's body was given to the pump
	sent       int  // bytes of the head, and what TLS had written before it
	sentBefore int
	toSend     []byte // the request, while the first read is to send it

	rR, rW   int          // see conn.rb
	answered bool         // the final response's head has arrived
	kind     bodyKind     // of the response
	left     int64        // of a body of known length
	chunks   chunkScanner // follows the response's body
	clean    bool         // the upstream's connection can be used again

	keeps     bool      // the client's connection can be used again
	torn      bool      // a write to the client ended in the middle
	lingering bool      // unread request bytes remain: close politely
	endBy     time.Time // when the client must have taken the answer that ends the exchange
	partEnd   time.Time // until when the upstream may go on without the client
}

// exchange serves the request whose head was read last. It reports whether the connection can be
// used again.
func (c *conn) exchange() (keep bool) {
	r := &c.req
	c.clock = time.Now()
	r.Started = c.clock
	c.h1exchange = h1exchange{}
	c.machine.Init(c.srv.traits(exchange.Traits{
		Started: c.clock, Idempotent: idempotent(r.Method()), Expects: r.head.expect,
	}))
	e := exchange.Event{Kind: exchange.Begin}
	for {
		do := c.machine.Step(&e)
		switch {
		case do.Has(exchange.Finish):
			return c.finish(do) && !c.gone.Load()
		case do.Has(exchange.SeeOut):
			e = c.seeOut(c.part(do))
		default:
			e = c.perform(do)
		}
	}
}

// perform does what a step asks for, and returns the result.
func (c *conn) perform(do exchange.Do) exchange.Event {
	if do.Has(exchange.Drop) {
		c.stopPump(0)
		c.stopWatch()
		c.release()
	}
	if do.Has(exchange.SayContinue) {
		if err := c.writeClient([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return c.failed(err, "")
		}
	}
	switch {
	case do.Has(exchange.Ask):
		return c.ask()
	case do.Has(exchange.Connect):
		return c.connect()
	case do.Has(exchange.SendHead):
		if e, ok := c.sendHead(); !ok {
			return e
		}
	}
	if do.Has(exchange.SendBody) {
		c.stopWatch()
		c.pumped = true
		c.pump.start(c.up, &c.req.head)
	}
	switch {
	case do.Has(exchange.PassInterim) && c.req.head.minor >= 1:
		c.out = c.appendInterim(c.out[:0])
		if err := c.writeClient(c.out); err != nil {
			return c.failed(err, "")
		}
	case do.Has(exchange.PassHead):
		return c.relay()
	case do.Has(exchange.PassSwitch):
		return c.upgrade()
	}
	return c.readResponse()
}

// finish ends the exchange and calls the Handler's Done. It reports whether the connection can be
// used again, if the client is still there.
func (c *conn) finish(do exchange.Do) (keep bool) {
	defer c.over()
	c.stopPump(0)
	c.stopWatch()
	c.release()
	if c.parting.Swap(0) != 0 { // the client has its end
		c.clock = time.Now()
		c.res.Parted = c.clock.Sub(c.req.Started) - c.res.Duration
	} else {
		keep = c.endClient(do)
	}
	if c.machine.Ending().Cause == BadRequest {
		c.srv.rejected.Add(1)
	}
	return keep
}

// over gives back what the exchange has taken, and calls the Handler's Done. Neither may be lost by
// a panic in finish, or in the other: others wait for what the exchange holds.
func (c *conn) over() {
	defer c.srv.done(&c.req, &c.res)
	c.req.endContext()
	c.settleAccount()
}

// endClient gives the client the end of the exchange, and notes how it ended. It reports whether
// the connection can be used again.
func (c *conn) endClient(do exchange.Do) (keep bool) {
	ending := c.machine.Ending()
	c.res.ended(ending, c.clock.Sub(c.req.Started)) // in case that what follows panics
	// The unread rest of a body must not be read as the next request.
	unread := c.bodyAhead.stream && !(c.pumped && c.pump.consumed)
	switch {
	case ending.Cause == ClientGone:
		c.gone.Store(true)
	case do.Has(exchange.Answer):
		reply := c.srv.replyTo(ending, &c.req)
		// What follows a refused upgrade may be of the other protocol.
		last := c.parting.Load() != 0 || ending.Cause == TimedOut || ending.Cause == BadRequest || c.req.head.upgrades()
		reply.Close = reply.Close || last
		c.lingering = unread || last
		keep = c.reply(&reply)
		if c.inR < c.inW { // the next request has arrived, and nothing was waited for
			runtime.Gosched()
		}
	case do.Has(exchange.EndTrailer) && c.endResponse(ending.Timer):
		c.lingering = unread
	case do.Has(exchange.EndTrailer | exchange.Abort):
		c.abort()
	default:
		keep = c.keeps
	}
	c.clock = time.Now()
	c.res.ended(ending, c.clock.Sub(c.req.Started))
	return keep
}

// ask calls the method of the Handler that belongs to the machine's state.
func (c *conn) ask() exchange.Event {
	r := &c.req
	e := exchange.Event{Kind: exchange.Decided}
	var d Decision
	switch c.machine.State() {
	case exchange.Admitting:
		d = c.srv.Handler.Admit(r)
	case exchange.Redirecting:
		d = c.srv.redirects.OnDialError(r, c.dialErr)
	case exchange.Judging:
		c.seen = Response{Status: c.resp.status, Replayable: c.machine.Replayable(), head: &c.resp}
		again := false
		if d, again = c.srv.judges.OnResponse(r, &c.seen); !again {
			e.Choice = exchange.Pass
		} else {
			// If the whole response has arrived, the connection can be used again.
			c.clean = c.resp.keepsAlive() && !c.resp.chunked && c.resp.length >= 0 && int64(c.rW-c.rR) == c.resp.length && !c.machine.BodyKept()
		}
	}
	if e.At = c.clock; r.ctx != nil { // the Handler may have waited, so a timer may have fired
		c.stopWatch()
		c.clock = time.Now()
		e.At = c.clock
	}
	// The machine keeps what came up meanwhile until it gets the decision. It asks for an
	// Interrupt, but the Handler no longer waits.
	if c.gone.Load() {
		c.machine.Step(&exchange.Event{Kind: exchange.ClientLeft})
	}
	if e.Choice != exchange.Pass {
		c.machine.Configure(r.policy())
		c.target, r.reply = d.Upstream, d.Reply
		if d.Upstream == nil {
			e.Choice = exchange.Reply
		}
	}
	if !c.bodyAhead.taken {
		var err error
		if c.bodyAhead, err = c.takeBody(); err != nil {
			c.machine.Step(&exchange.Event{Kind: exchange.BadBody, Err: err})
		}
	}
	e.BodyFollows = c.bodyAhead.stream
	return e
}

// body is the request body before it is forwarded.
type body struct {
	taken  bool
	inline []byte // the whole body, if it arrived with the head
	stream bool   // more of it follows, and the pump moves it
}

// takeBody looks at what arrived with the head. A complete body is consumed. It stays in the
// buffer, so that it can be sent again.
func (c *conn) takeBody() (body, error) {
	h := &c.req.head
	b := body{taken: true}
	data := c.in[c.inR:c.inW]
	switch {
	case h.upgrades() && !h.chunked && h.length <= 0:
	case h.chunked:
		s := &c.pump.scanner
		s.reset()
		n, err := s.scan(data)
		if err != nil {
			b.stream = true
			return b, err
		}
		if s.done() {
			b.inline = data[:n]
			c.inR += n
		} else {
			s.reset()
			b.stream = true
		}
	case h.length > 0:
		if int64(len(data)) >= h.length {
			b.inline = data[:h.length]
			c.inR += int(h.length)
		} else {
			b.stream = true
		}
	}
	return b, nil
}

// connect takes an idle connection, or dials. After an attempt on an idle connection has failed, it
// always dials.
func (c *conn) connect() exchange.Event {
	u := c.target
	careful := c.bodyAhead.stream || !idempotent(c.req.Method())
	c.answered = false
	var up *upConn
	var err error
	if c.machine.NeedsFresh() {
		up, err = u.dialFor(c)
	} else {
		up, err = u.get(c, c.clock, careful)
	}
	if err != nil {
		c.clock, c.dialErr = time.Now(), err
		if c.gone.Load() {
			return exchange.Event{Kind: exchange.ClientLeft}
		}
		return exchange.Event{Kind: exchange.DialFailed, Err: err, At: c.clock}
	}
	c.up, c.clean = up, false
	c.upWake.Store(up)
	c.rR, c.rW = 0, 0
	e := exchange.Event{Kind: exchange.Connected, Reused: up.reused, BodyFollows: c.bodyAhead.stream, At: c.clock}
	if c.req.deferBody > 0 {
		e.At = time.Now()
	}
	return e
}

// release returns the upstream's connection to its pool, or closes it if it cannot be used again.
func (c *conn) release() {
	up := c.up
	if up == nil {
		return
	}
	c.upWake.Store(nil)
	c.up, c.toSend = nil, nil
	if c.clean && !c.gone.Load() && up.silent() {
		up.up.put(up, c.clock)
	} else {
		up.close()
	}
}

// sendHead writes the head, and a body that arrived with it. If ok is false, e says why it failed.
func (c *conn) sendHead() (e exchange.Event, ok bool) {
	up, before := c.up, cap(c.out)
	c.out = append(c.req.appendRequest(c.out[:0], c.bodyAhead.stream), c.bodyAhead.inline...)
	if err := c.grow(cap(c.out) - before); err != nil {
		return exchange.Event{Kind: exchange.Failed, Err: err}, false
	}
	c.sent, c.sentBefore = len(c.out), up.written()
	if up.unpeeked {
		up.unpeeked, c.toSend = false, c.out
	} else if err := c.writeUp(c.out); err != nil {
		if c.unsent(err) {
			return c.lostUnsent(err), false
		}
		return c.failed(err, "send the request to"), false
	}
	c.res.RequestBytes = int64(len(c.bodyAhead.inline))
	return e, true
}

// stopPump waits for the end of the request's body, at most for grace. forced reports whether it
// had to be stopped.
func (c *conn) stopPump(grace time.Duration) (forced bool) {
	if !c.pump.running {
		return false
	}
	forced = c.pump.join(grace)
	c.res.RequestBytes = c.pump.moved.Load()
	return forced
}

// writeUp writes to the upstream: the head, and a body that goes with it.
func (c *conn) writeUp(b []byte) error {
	up := c.up
	end, t := c.machine.Timer()
	if t == NoTimer {
		end = c.clock.Add(c.srv.StallTimeout)
	}
	if up.writeEnd.IsZero() || up.writeEnd.After(end) || 2*up.writeEnd.Sub(c.clock) < end.Sub(c.clock) {
		up.writeEnd = end
		up.SetWriteDeadline(end)
	}
	if c.gone.Load() {
		return ErrClientGone
	}
	for {
		n, err := up.Write(b)
		if err == nil {
			return nil
		}
		b = b[n:]
		now := time.Now()
		if !isTimeout(err) || !now.Before(end) || c.gone.Load() || up.raw == nil || up.tls != nil {
			return err
		}
		up.writeEnd = end
		up.SetWriteDeadline(end)
	}
}

// readResponse reads the next response head into c.resp.
func (c *conn) readResponse() exchange.Event {
	unused, err := c.readResponseHead()
	up := c.up
	whole, malformed := errors.AsType[brokenError](err)
	switch {
	case isUnsent(err):
		return c.lostUnsent(err)
	case unused && malformed:
		return exchange.Event{Kind: exchange.Lost, Loss: exchange.Unused, Err: whole.error}
	case err != nil && unused && !c.ours(err):
		e := exchange.Event{Kind: exchange.Lost, Loss: exchange.Unused, Err: fmt.Errorf("%s closed the connection without a response: %w", up.up.addr, err)}
		// What the pump wrote counts for none of these bytes, and it may still write.
		if !c.pumped && up.unreceived(err, max(c.sent, up.written()-c.sentBefore)) {
			e.Loss = exchange.Unseen
		}
		if up.reused && !c.machine.NeedsFresh() && (e.Loss == exchange.Unseen || idempotent(c.req.Method())) {
			up.up.learn(c.clock.Sub(up.since), c.clock)
		}
		return e
	case err != nil:
		return c.failed(err, "read the response head of")
	case c.resp.status == 101:
		if err := c.checkSwitch(); err != nil {
			return exchange.Event{Kind: exchange.Failed, Err: fmt.Errorf("%s %w", up.up.addr, err)}
		}
		return exchange.Event{Kind: exchange.Switched}
	case c.resp.status < 200:
		return exchange.Event{Kind: exchange.Interim, Status: c.resp.status}
	}
	if c.responseBody() == bodyChunked { // while nothing was sent, a malformed body is answered 502
		c.chunks.reset()
		if _, err := c.chunks.scan(c.rb[c.rR:c.rW]); err != nil {
			return exchange.Event{Kind: exchange.Failed, Err: fmt.Errorf("%s sent a malformed chunked body", up.up.addr)}
		}
	}
	c.clock, c.answered = time.Now(), true
	c.res.FirstByte = c.clock.Sub(c.req.Started)
	return exchange.Event{Kind: exchange.Head, Status: c.resp.status, At: c.clock}
}

// brokenError is a response that cannot be used. Its text needs no explanation.
type brokenError struct{ error }

// readResponseHead reads the next response head of the exchange into c.resp. unused reports whether
// the connection ended before the first byte, or had bytes of an earlier exchange that are no head.
func (c *conn) readResponseHead() (unused bool, err error) {
	h := &c.resp
	h.reset(false)
	fresh := c.rR == c.rW
	if fresh {
		c.rR, c.rW = 0, 0
	}
	for {
		if c.rW > c.rR {
			done, err := h.feed(c.rb[c.rR:c.rW])
			if err != nil {
				late := fresh && c.up.reused // it may not even be a response
				if late {
					c.up.up.overran(c.up.blame())
				}
				return late, brokenError{fmt.Errorf("%s sent a malformed response: %w", c.up.up.addr, err)}
			}
			if done {
				c.rR += h.size
				return false, nil
			}
			if c.rW-c.rR >= c.srv.MaxHeaderBytes {
				return false, brokenError{fmt.Errorf("%s sent a response head larger than %d bytes", c.up.up.addr, c.srv.MaxHeaderBytes)}
			}
		}
		before := len(c.rb)
		c.rb, c.rR, c.rW = makeRoom(c.rb, c.rR, c.rW)
		if err := c.grow(2 * (len(c.rb) - before)); err != nil { // it is copied for the client
			return false, brokenError{err}
		}
		n, err := c.readUp(c.rb[c.rW:])
		c.rW += n
		if err != nil {
			return fresh && c.rW == 0, err
		}
	}
}

// errTick means that a timer of the machine has fired, at c.clock.
var errTick = errors.New("a timer fired")

// ours reports whether err is our reason to stop, and not a failure of the upstream.
func (c *conn) ours(err error) bool {
	return err == ErrClientGone || err == errTick || err == error(errChunk)
}

// failed returns the event for an error of a read or a write.
func (c *conn) failed(err error, what string) exchange.Event {
	if !c.ours(err) {
		err = c.explain(err, what)
	}
	switch err {
	case ErrClientGone:
		return exchange.Event{Kind: exchange.ClientLeft}
	case errTick:
		return exchange.Event{Kind: exchange.Tick, At: c.clock}
	case error(errChunk):
		return exchange.Event{Kind: exchange.BadBody, Err: err}
	}
	_, full := errors.AsType[fullError](err)
	return exchange.Event{Kind: exchange.Failed, Err: err, Ours: full}
}

// explain says what failed at which upstream, unless the reason to stop was ours.
func (c *conn) explain(err error, what string) error {
	c.clock = time.Now()
	if why := c.interrupted(c.clock); why != nil {
		return why
	}
	if whole, ok := errors.AsType[brokenError](err); ok {
		return whole.error
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s %s: %w", what, c.up.up.addr, err)
}

// contextFor returns a context for a dial, which ends with the request's timers. A dial that takes
// longer than patience also ends when the client leaves: it can take many seconds if a node is gone
// or a container no longer accepts connections, and the request has a slot during that time.
func (c *conn) contextFor() (context.Context, context.CancelFunc) {
	parent := c.srv.base
	if c.req.ctx != nil {
		parent = c.req.ctx
	}
	ctx, leave := context.WithCancelCause(parent)
	if c.req.ctx == nil {
		c.req.leaveCtx.Store(&leave)
	}
	cancel := func() { leave(context.Canceled) }
	if end, t := c.machine.Timer(); t != NoTimer {
		ctx, cancel = context.WithDeadline(ctx, end)
	}
	watches := make(chan struct{})
	late := time.AfterFunc(patience, func() { // the caller waits for the dial, and then for watches
		c.startWatch()
		close(watches)
	})
	return ctx, func() {
		if !late.Stop() {
			<-watches
			c.stopWatch()
		}
		if c.req.ctx == nil {
			c.req.leaveCtx.Store(nil)
		}
		cancel()
		leave(context.Canceled)
	}
}

// abandon ends an exchange after a panic. Nothing is certain about its connection any more.
func (c *conn) abandon(value any) {
	defer c.srv.catch()
	e := exchange.Event{Kind: exchange.Panicked, Err: fmt.Errorf("%w: %v", errPanicked, value)}
	if do := c.machine.Step(&e); do.Has(exchange.Finish) {
		c.clean, c.lingering = false, true
		c.finish(do)
		c.linger()
	}
}

// grow takes n more bytes for the exchange.
func (c *conn) grow(n int) error {
	if c.account == nil || n <= 0 {
		return nil
	}
	err := take(c.account, int64(n))
	if err == nil {
		c.charged += int64(n)
	}
	return err
}

// settleAccount returns what the exchange has taken.
func (c *conn) settleAccount() {
	if c.account != nil {
		c.account.Give(c.charged)
		c.account, c.charged = nil, 0
	}
}
