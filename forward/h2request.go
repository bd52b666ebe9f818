package forward

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// This file has a request's way to the upstream.

// h2Replay is the largest request body that is kept so that it can be sent again.
const h2Replay = 4 << 10

// h2body is a request's body as far as it has arrived. Until the request is sent to an upstream,
// all of it is held: at most the stream's window.
type h2body struct {
	got      int64
	whole    bool // the end of the request has arrived
	trailers []hpack.HeaderField
	held     []byte
	paid     int    // how many of held's first bytes were sent before, and so credited to the stream's window
	replay   []byte // what was sent, if it is kept
	charged  int64  // taken from the account for held
	stuck    int64  // counted in Server.stuck for held, if there is no account
	sentEnd  bool
}

// countLocked counts the next piece of the body. It reports whether that still fits its
// Content-Length.
func (x *h2exchange) countLocked(n int, end bool) bool {
	x.body.got += int64(n)
	return x.length < 0 || x.body.got <= x.length && (!end || x.body.got == x.length)
}

// rewind restores the body as it was before it was sent.
func (y *h2body) rewind() {
	y.paid += len(y.replay)
	y.held = append(y.replay, y.held...)
	y.replay, y.sentEnd = nil, false
}

// open starts the request on a connection. It reports false if the connection takes no more
// requests.
func (x *h2exchange) open(u *Upstream, c *h2conn, b *h2batch) bool {
	x.mu.Lock()
	ok := x.openLocked(u, c, b)
	do := x.fullLocked(b)
	x.mu.Unlock()
	x.follow(do, nil, b)
	return ok
}

func (x *h2exchange) openLocked(u *Upstream, c *h2conn, b *h2batch) bool {
	if x.machine.State() != exchange.Connecting || x.target != u {
		return true // no longer needed
	}
	client := c.peer.(*h2client)
	h := &h2half{c: c, x: x, left: c.windows.first, paid: x.body.paid}
	end := x.body.whole && len(x.body.held) == 0 && x.body.trailers == nil
	e := exchange.Event{Kind: exchange.Connected, At: x.connectedAt(), BodyFollows: !x.body.whole && x.length != 0}
	c.mu.Lock()
	if !client.takesLocked() {
		c.mu.Unlock()
		return false
	}
	client.openLocked(h)
	if x.account != nil {
		x.full = c.chargeLocked(h, x.account)
	}
	e.Reused = h.reused
	// The head follows under the same lock, because streams are opened in order. A body that is
	// whole goes with it. Of one that follows, the machine says whether it waits.
	do := x.machine.Step(&e)
	waits := e.BodyFollows && !do.Has(exchange.SendBody)
	x.requestLocked(c, client.scheme, waits)
	c.headersLocked(h.id, end)
	h.sentEnd = end
	client.armLocked()
	c.mu.Unlock()
	b.add(c)
	if do.Has(exchange.SayContinue) {
		x.interimLocked(100, nil, b)
	}
	x.up, x.body.sentEnd = h, end
	if waits {
		x.armLocked()
	} else {
		x.pushLocked(b)
	}
	return true
}

// connectedAt returns the time, exactly only where that matters.
func (x *h2exchange) connectedAt() time.Time {
	if x.r.deferBody > 0 {
		return time.Now()
	}
	return x.r.Started
}

// requestData handles a piece of the body. ok reports whether it fits the Content-Length.
func (x *h2exchange) requestData(data []byte, end bool, b *h2batch) (ok bool) {
	x.mu.Lock()
	live := x.machine.Live()
	ok = !live || x.countLocked(len(data), end)
	var do exchange.Do
	if live && ok && x.machine.Pending() == nil {
		x.body.whole = x.body.whole || end
		if x.up == nil || x.machine.BodyKept() {
			before := cap(x.body.held)
			x.body.held = append(x.body.held, data...)
			do = x.growLocked(int64(cap(x.body.held)-before), b)
		} else {
			x.passLocked(data, b)
			do = x.fullLocked(b)
		}
	}
	x.mu.Unlock()
	if !ok {
		x.malformed(&x.down, http2.ErrCodeProtocol, b)
	}
	x.follow(do, nil, b)
	return ok
}

// requestTrailers handles the trailers that end the body. ok reports whether they may be trailers
// and the body fits the Content-Length.
func (x *h2exchange) requestTrailers(fields []hpack.HeaderField, b *h2batch) (ok bool) {
	x.mu.Lock()
	live := x.machine.Live()
	ok = !live || !slices.ContainsFunc(fields, h2NoTrailer) && x.countLocked(0, true)
	var do exchange.Do
	if live && ok {
		x.body.whole = true
		if kept := trailersOf(fields); len(kept) > 0 {
			x.body.trailers = kept
			do = x.growLocked(fieldBytes(kept), b)
		}
		if x.up != nil && !x.machine.BodyKept() {
			x.passLocked(nil, b)
		}
	}
	x.mu.Unlock()
	if !ok {
		x.malformed(&x.down, http2.ErrCodeProtocol, b)
	}
	x.follow(do, nil, b)
	return ok
}

// pushLocked sends the held part of the body.
func (x *h2exchange) pushLocked(b *h2batch) {
	held := x.body.held
	x.body.held, x.body.paid = nil, 0
	x.settleBodyLocked()
	if x.up != nil {
		x.passLocked(held, b)
	}
}

// passLocked sends a piece of the body to the upstream.
func (x *h2exchange) passLocked(data []byte, b *h2batch) {
	y := &x.body
	if y.sentEnd {
		return
	}
	if x.machine.Replayable() {
		if len(y.replay)+len(data) <= h2Replay {
			y.replay = append(y.replay, data...)
		} else {
			x.machine.ForgetBody()
			y.replay = nil
		}
	}
	up := x.up
	end := y.whole && y.trailers == nil
	if len(data) > 0 || end {
		moved, _ := up.c.send(up, data, end, &x.down, b)
		x.res.RequestBytes += int64(len(data))
		x.down.c.credit(&x.down, moved, b)
	}
	if y.whole && y.trailers != nil {
		up.c.trail(up, y.trailers, b)
	}
	y.sentEnd = y.whole
}

// dialFailed handles that no connection to u could be made, so nothing was sent.
func (x *h2exchange) dialFailed(u *Upstream, err error) {
	defer x.srv.c.guard()
	var b h2batch
	defer b.flush()
	x.mu.Lock()
	var do exchange.Do
	if x.target == u {
		do = x.performLocked(&exchange.Event{Kind: exchange.DialFailed, Err: err, At: time.Now()}, &b)
	}
	x.mu.Unlock()
	if do.Has(exchange.Ask) {
		x.dialErr = err
	}
	x.follow(do, nil, &b)
}

// h2ResetError means that the upstream reset the stream.
type h2ResetError struct {
	addr string
	code http2.ErrCode
}

func (e *h2ResetError) Error() string {
	return fmt.Sprintf("%s reset the request (%s)", e.addr, e.code)
}

// upstreamLost handles the loss of the upstream's stream.
func (x *h2exchange) upstreamLost(h *h2half, err error, loss exchange.Loss, b *h2batch) {
	e := exchange.Event{Kind: exchange.Lost, Err: err, Loss: loss}
	if reset, ok := errors.AsType[*h2ResetError](err); ok {
		e.Code = uint32(reset.code)
	}
	x.mu.Lock()
	var do exchange.Do
	if x.up == h {
		do = x.performLocked(&e, b)
	}
	x.mu.Unlock()
	x.follow(do, nil, b)
}
