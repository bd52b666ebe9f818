package forward

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

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

	keeps     bool        // the client's connection can be used again
	torn      bool        // a write to the client ended in the middle
	lingering bool        // unread request bytes remain: close politely
	ctxTimer  *time.Timer // cancels the request's context
	endBy     time.Time   // when the client must have taken the answer that ends the exchange
	partEnd   time.Time   // until when the upstream may go on without the client
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
	c.endContext()
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
	case exchange.Reviewing:
		c.seen = Response{Status: c.resp.status, Replayable: c.machine.Replayable(), head: &c.resp}
		again := false
		if d, again = c.srv.reviews.OnResponse(r, &c.seen); !again {
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
	// The machine keeps what came up meanwhile, and a bad body, until it gets the decision. All
	// that it asks for is an Interrupt, and the Handler no longer waits.
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

// workedOn implements carrier.
func (c *conn) workedOn() bool { return c.machine.WorkedOn() }

// charge implements carrier.
func (c *conn) charge(a Account, more int64) error {
	n := more + c.tlsBytes() + int64(cap(c.in)+cap(c.out)+cap(c.rb)) + int64(cap(c.req.head.fields)+cap(c.resp.fields))*int64(unsafe.Sizeof(field{}))
	if err := a.Take(n); err != nil {
		return err
	}
	c.account, c.charged = a, n
	return nil
}
