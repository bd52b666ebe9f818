package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

type outcome uint8

const (
	outcomeKeep  outcome = iota // answered; the client connection goes on
	outcomeClose                // answered or failed; the client connection ends
	outcomeAgain                // Reconsider dropped the response; c.next is the new Verdict
	outcomeRetry                // a reused connection died before its first byte; send again on a fresh one
)

// exchange serves the request whose head was just read. It reports whether the connection can be used again.
func (c *conn) exchange() (keep bool) {
	r := &c.req
	c.clock = time.Now()
	r.begin(c.clock)
	c.res = Result{}
	c.lastWrite, c.started, c.lingering = time.Time{}, false, false
	c.bodyHeld, c.continued = false, false
	c.admitted = true
	v := c.srv.Handler.Admit(r)
	keep = c.run(v)
	c.stopWatch()
	r.endContext()
	c.clock = time.Now()
	c.res.Duration = c.clock.Sub(r.Started)
	c.admitted = false
	c.srv.done(r, &c.res)
	return keep && !c.gone.Load()
}

func (c *conn) run(v Verdict) bool {
	c.stopWatch()
	body, ok := c.takeBody()
	if !ok {
		return c.end(errChunk)
	}
	for tries := 0; ; {
		if c.req.ctx != nil { // it waited; did it wait too long?
			c.clock = time.Now()
			if err := c.interrupted(c.clock); err != nil {
				return c.end(err)
			}
		}
		if v.Upstream == nil {
			c.res.Cause = Replied
			c.lingering = body.stream
			return c.reply(&v.Reply)
		}
		up, err := c.connect(v.Upstream, body.stream)
		if err != nil {
			c.clock = time.Now()
			if why := c.interrupted(c.clock); why != nil {
				return c.end(why)
			}
			if rc, ok := c.srv.Handler.(Rechooser); ok && tries < 16 {
				tries++
				v = rc.Rechoose(&c.req, err)
				c.stopWatch()
				continue
			}
			return c.end(err)
		}
		switch c.attempt(up, body) {
		case outcomeKeep:
			return true
		case outcomeClose:
			return false
		case outcomeAgain:
			v = c.next
			c.stopWatch()
		case outcomeRetry:
			c.res.Retried = true
			c.stopWatch()
		}
	}
}

// body is what is known of the request body before it is forwarded.
type body struct {
	inline []byte // the whole body, when it came with the head
	stream bool   // more is to come: the pump moves it
}

// takeBody looks at what came with the head. A body that is there whole is consumed; it stays in the buffer, so that it
// can be sent again.
func (c *conn) takeBody() (b body, ok bool) {
	h := &c.req.head
	data := c.in[c.inR:c.inW]
	switch {
	case h.upgrades() && !h.chunked && h.length <= 0:
		return b, true
	case h.chunked:
		s := &c.pump.scanner
		s.reset()
		n, err := s.scan(data)
		if err != nil {
			return b, false
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
	return b, true
}

// connect takes a pooled connection, or dials; after a failed attempt on a pooled one, always dials.
func (c *conn) connect(u *Upstream, stream bool) (*upConn, error) {
	if c.res.Retried {
		return u.dialFor(c)
	}
	careful := stream || !idempotent(c.req.head.bytes(c.req.head.method))
	return u.get(c, c.clock, careful)
}

// attempt sends the request on one connection and passes the response on.
func (c *conn) attempt(up *upConn, b body) (out outcome) {
	c.up = up
	c.upWake.Store(up)
	c.rR, c.rW = 0, 0
	reusable := false
	defer func() {
		c.upWake.Store(nil)
		c.up = nil
		if reusable {
			up.up.put(up, c.clock)
		} else {
			up.close()
		}
	}()
	if c.req.continueNow && c.req.head.expect && b.stream && !c.continued {
		c.continued = true
		if err := c.writeClient([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return c.endAs(err)
		}
	}
	c.out = append(c.req.appendRequest(c.out[:0], b.stream), b.inline...)
	size, before := len(c.out), up.written()
	if err := c.writeUp(c.out); err != nil {
		// Nothing whole arrived there, so nothing was done there.
		if up.reused && !c.gone.Load() && !isTimeout(err) {
			up.up.learn(c.clock.Sub(up.since), c.clock)
			return outcomeRetry
		}
		return c.endAs(c.explain(err, "send the request to"))
	}
	c.res.RequestBytes = int64(len(b.inline))
	if c.bodyHeld = b.stream && c.req.deferBody; c.bodyHeld {
		c.heldSince = time.Now()
	} else if b.stream {
		c.pump.start(up, &c.req.head)
	}
	for {
		if err := c.readResponseHead(); err != nil {
			died, unused := errors.AsType[*diedUnused](err)
			if unused && up.reused && (!b.stream || c.bodyHeld) &&
				(idempotent(c.req.head.bytes(c.req.head.method)) || up.unreceived(died.err, max(size, up.written()-before))) {
				up.up.learn(c.clock.Sub(up.since), c.clock)
				return outcomeRetry
			}
			if unused {
				err = fmt.Errorf("%s %w", up.up.addr, err)
			}
			return c.endAs(err)
		}
		status := c.resp.status
		if status == 101 {
			if err := c.checkSwitch(); err != nil {
				return c.endAs(fmt.Errorf("%s %w", up.up.addr, err))
			}
			return c.upgrade()
		}
		if status >= 200 {
			break
		}
		if status == 100 && c.bodyHeld {
			c.releaseBody()
			if !c.req.head.expect {
				continue // it answers our question, not the client's
			}
		}
		if c.req.head.minor >= 1 {
			c.out = c.appendInterim(c.out[:0])
			if err := c.writeClient(c.out); err != nil {
				return c.endAs(err)
			}
		}
	}
	c.clock = time.Now()
	c.res.FirstByte = c.clock.Sub(c.req.Started)
	if rc, ok := c.srv.Handler.(Reconsiderer); ok {
		replayable := !b.stream || c.bodyHeld
		c.seen = Response{Status: c.resp.status, Replayable: replayable, head: &c.resp}
		v, again := rc.Reconsider(&c.req, &c.seen)
		if again && replayable {
			c.next = v
			// A small answer is here whole already, so the connection stays good.
			reusable = c.resp.keepsAlive() && !c.resp.chunked && c.resp.length >= 0 && int64(c.rW-c.rR) == c.resp.length && !c.bodyHeld
			return outcomeAgain
		}
	}
	whole, clientKeeps, err := c.relay()
	if err != nil {
		return c.endAs(err)
	}
	pumpDone := !c.bodyHeld
	if c.bodyHeld {
		clientKeeps = false
		c.lingering = !c.gone.Load()
	}
	if c.pump.running {
		grace := patience
		if c.req.head.expect && c.pump.moved.Load() == 0 {
			grace = 0
		}
		forced := c.pump.join(grace)
		c.res.RequestBytes = c.pump.moved.Load()
		pumpDone = c.pump.sent && !forced
		if !c.pump.consumed {
			clientKeeps = false
			c.lingering = !c.gone.Load()
		}
	}
	c.stopWatch()
	reusable = whole && pumpDone && c.resp.keepsAlive() && !c.gone.Load()
	c.res.Cause = Completed
	if !clientKeeps {
		return outcomeClose
	}
	return outcomeKeep
}

// releaseBody starts the body that DeferBody held back.
func (c *conn) releaseBody() {
	c.stopWatch()
	c.bodyHeld = false
	c.pump.start(c.up, &c.req.head)
}

// writeUp writes the head (and what of the body goes with it).
func (c *conn) writeUp(b []byte) error {
	up := c.up
	end, t := c.req.deadline(c.lastWrite, false)
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

// diedUnused: the upstream connection died before the first byte of a response.
type diedUnused struct{ err error }

func (e *diedUnused) Error() string { return "closed the connection without a response" }
func (e *diedUnused) Unwrap() error { return e.err }

// readResponseHead reads the next response head of the exchange into c.resp.
func (c *conn) readResponseHead() error {
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
				return fmt.Errorf("%s sent a malformed response: %w", c.up.up.addr, err)
			}
			if done {
				c.rR += h.size
				return nil
			}
			if c.rW-c.rR >= c.srv.MaxHeaderBytes {
				return fmt.Errorf("%s sent a response head larger than %d bytes", c.up.up.addr, c.srv.MaxHeaderBytes)
			}
		}
		if c.rW == len(c.rb) {
			if c.rR > 0 {
				copy(c.rb, c.rb[c.rR:c.rW])
				c.rW -= c.rR
				c.rR = 0
			} else {
				grown := make([]byte, 2*len(c.rb))
				copy(grown, c.rb[:c.rW])
				c.rb = grown
			}
		}
		n, err := c.readUp(c.rb[c.rW:])
		c.rW += n
		if err != nil {
			if own(err) {
				return err
			}
			if fresh && c.rW == 0 {
				return &diedUnused{err}
			}
			return c.explain(err, "read the response head of")
		}
	}
}

// own reports whether err is this side's reason to stop rather than the upstream's failure.
func own(err error) bool {
	if err == ErrClientGone {
		return true
	}
	switch err.(type) {
	case *TimerError, *syntaxError:
		return true
	}
	return false
}

// explain makes an upstream's error a sentence, unless the reason to stop was ours.
func (c *conn) explain(err error, what string) error {
	if own(err) {
		return err
	}
	if why := c.interrupted(time.Now()); why != nil {
		return why
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%s %s: %w", what, c.up.up.addr, err)
}

// endAs is end for attempt.
func (c *conn) endAs(err error) outcome {
	if c.end(err) {
		return outcomeKeep
	}
	return outcomeClose
}

// end is the one place where an error becomes an answer: 504 for a timer, 400 for a broken body, 502 for the upstream;
// nothing for a client that is gone, and nothing but the cut once the response has started.
func (c *conn) end(err error) (keep bool) {
	streaming := c.pump.running
	if streaming {
		c.pump.join(0)
		c.res.RequestBytes = c.pump.moved.Load()
	}
	c.stopWatch()
	c.res.Err = err
	var reply Reply
	var timer *TimerError
	switch {
	case err == ErrClientGone || c.gone.Load():
		c.res.Cause = ClientGone
		c.gone.Store(true)
		return false
	case errors.As(err, &timer):
		c.res.Cause, c.res.Timer = TimedOut, timer.Timer
		reply = c.srv.timeoutReply(timer)
		reply.Close = true
		c.lingering = true
	case err == error(errChunk):
		c.res.Cause = BadRequest
		c.srv.rejected.Add(1)
		reply = Reply{Status: errChunk.status, Body: errChunk.text, Close: true}
		c.lingering = true
	default:
		c.res.Cause = UpstreamFailed
		reply = c.srv.failureReply(err)
		if streaming && !c.pump.consumed {
			c.lingering = true
		}
	}
	if c.started {
		c.lingering = false
		return false
	}
	// A timer that fired must not cut the answer that says so.
	c.req.Timeouts = Timeouts{}
	return c.reply(&reply)
}

// contextFor bounds a dial by the request's timers. A dial that takes longer than patience ends when the client leaves: it may take many
// seconds to a pod whose node is gone, or to a container that no longer accepts, and the request holds a slot meanwhile.
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
	if end, t := c.req.deadline(c.lastWrite, c.started); t != NoTimer {
		ctx, cancel = context.WithDeadline(ctx, end)
	}
	watches := make(chan struct{})
	late := time.AfterFunc(patience, func() { // this goroutine waits for the dial, and then for watches
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
