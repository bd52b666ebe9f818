package forward

import (
	"context"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// This file has a request's way to the upstream, over HTTP/1.1.

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
