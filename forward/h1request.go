package forward

import (
	"context"
	"errors"
	"fmt"
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
	if !c.machine.NeedsFresh() {
		up = u.takeIdle(c.clock, careful, !c.bodyAhead.stream)
	}
	if up == nil {
		up, err = c.dial(u)
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

func (c *conn) dial(u *Upstream) (*upConn, error) {
	ctx, cancel := c.contextFor()
	defer cancel()
	return u.dial(ctx)
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
		c.leaveCtx.Store(&leave)
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
			c.leaveCtx.Store(nil)
		}
		cancel()
		leave(context.Canceled)
	}
}

// receive reads from the upstream, and sends the request before if that is still to be done.
func (c *conn) receive(b []byte) (int, error) {
	if c.toSend == nil {
		return c.up.Read(b)
	}
	up, request := c.up, c.toSend
	found, sent, n, err := up.Conn.(*socket).ask(request, b)
	switch {
	case !up.heard(up.closing(found), c.clock):
		c.toSend = nil
		return 0, &unsentError{fmt.Errorf("the idle connection to %s has ended", up.up.addr)}
	case sent == len(request):
		c.toSend = nil
		return n, err
	case err != nil && isTimeout(err): // before anything was done
		return 0, err
	}
	c.toSend = nil
	if err == nil {
		err = c.writeUp(request[sent:])
	}
	if err != nil && c.unsent(err) {
		err = &unsentError{err}
	}
	return 0, err
}

// unsentError means that a kept connection did not take the whole request, so the upstream did
// nothing with it.
type unsentError struct{ error }

func isUnsent(err error) bool {
	_, is := errors.AsType[*unsentError](err)
	return is
}

// unsent reports whether a write of the request failed because a kept connection has ended.
func (c *conn) unsent(err error) bool {
	if !c.up.reused || c.gone.Load() || isTimeout(err) {
		return false
	}
	c.up.up.learn(c.clock.Sub(c.up.since), c.clock)
	return true
}

// lostUnsent returns the event for a kept connection that did not take the request.
func (c *conn) lostUnsent(err error) exchange.Event {
	return exchange.Event{Kind: exchange.Lost, Loss: exchange.Unseen, Err: c.explain(err, "send the request to")}
}

// appendRequest writes the request head for the upstream. streams says that a body follows that has
// not arrived yet.
func (r *Request) appendRequest(out []byte, streams bool) []byte {
	h := &r.head
	out = append(out, h.bytes(h.method)...)
	out = append(out, ' ')
	target := h.bytes(h.target)
	if len(target) == 0 || target[0] != '/' && target[0] != '*' {
		out = append(out, '/')
	}
	out = append(out, target...)
	out = append(out, " HTTP/1.1\r\n"...)
	if !r.edited("host") {
		out = append(out, "Host: "...)
		out = append(out, h.bytes(h.host)...)
		out = append(out, '\r', '\n')
	}
	for i := range r.edits {
		if e := &r.edits[i]; !e.remove {
			out = appendLine(out, e.name, e.value)
		}
	}
	upgrade := h.upgrades()
	for i := range h.fields {
		f := &h.fields[i]
		switch f.id {
		case otherHeader, trailerHeader:
		case expectHeader:
			if r.deferBody > 0 || r.continueNow {
				continue
			}
		case contentLengthHeader:
			if h.chunked {
				continue
			}
		default:
			continue
		}
		name := h.bytes(f.name)
		if r.edited(borrow(name)) {
			continue
		}
		if h.otherTokens && f.id == otherHeader && h.named(name) {
			continue
		}
		out = h.appendField(out, f)
	}
	if h.chunked {
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	if r.deferBody > 0 && streams {
		out = append(out, "Expect: 100-continue\r\n"...)
	}
	switch {
	case upgrade:
		out = h.appendUpgrade(out)
	case h.trailersOK:
		out = append(out, "Connection: TE\r\nTE: trailers\r\n"...)
	}
	return append(out, '\r', '\n')
}
