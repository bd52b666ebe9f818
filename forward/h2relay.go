package forward

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The request's way to the upstream.

// send has the request sent to target, on a connection that is there or on one that has to be made first.
func (x *h2exchange) send(b *h2batch) {
	x.mu.Lock()
	u, over := x.target, x.over
	x.mu.Unlock()
	if !over {
		u.h2.send(u, x, b)
	}
}

// open starts the request on a connection. It reports false when the connection takes no more requests.
func (x *h2exchange) open(u *Upstream, c *h2conn, b *h2batch) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over || x.up != nil || x.target != u {
		return true // it is not wanted any more
	}
	client := c.peer.(*h2client)
	expect := x.r.deferBody && !x.ended && x.length != 0
	end := x.ended && len(x.held) == 0 && x.trailers == nil
	h := &h2half{c: c, x: x, left: h2StreamWindow, paid: x.paid}
	c.mu.Lock()
	if !client.takesLocked() {
		c.mu.Unlock()
		return false
	}
	h.id = client.nextID
	client.nextID += 2
	c.maxID = h.id
	h.window = c.initialWindow
	h.sentEnd = end
	c.streams[h.id] = h
	c.idleSince = time.Time{}
	h.reused, client.used = client.used, true
	x.requestLocked(c, client.scheme, expect)
	c.headersLocked(h.id, end)
	client.armLocked()
	c.mu.Unlock()
	b.add(c)
	x.up = h
	x.attempts++
	x.passedEnd = end
	x.sentAt = time.Now()
	if expect {
		x.awaiting = true
		at := x.nextLocked()
		d := x.down.c
		d.mu.Lock()
		d.armLocked(at, x.srv.tick)
		d.mu.Unlock()
		return true
	}
	x.push(b)
	return true
}

// requestData is a piece of the body. ok false: it is not what the head announced.
func (x *h2exchange) requestData(data []byte, end bool, b *h2batch) (ok bool) {
	x.mu.Lock()
	if x.over {
		x.mu.Unlock()
		x.down.c.credit(nil, len(data), b)
		return true
	}
	x.got += int64(len(data))
	if x.length >= 0 && (x.got > x.length || end && x.got != x.length) {
		x.mu.Unlock()
		x.down.c.credit(nil, len(data), b)
		x.malformed(&x.down, http2.ErrCodeProtocol, b)
		return false
	}
	x.ended = x.ended || end
	if x.up == nil || x.awaiting {
		before := cap(x.held)
		x.held = append(x.held, data...)
		x.grewLocked(int64(cap(x.held) - before))
		x.mu.Unlock()
		return true
	}
	x.pass(data, b)
	x.mu.Unlock()
	return true
}

// requestTrailers end the body. ok false: it is not what the head announced.
func (x *h2exchange) requestTrailers(fields []hpack.HeaderField, b *h2batch) (ok bool) {
	x.mu.Lock()
	if x.length >= 0 && x.got != x.length && !x.over {
		x.mu.Unlock()
		x.malformed(&x.down, http2.ErrCodeProtocol, b)
		return false
	}
	x.ended = true
	x.trailers = trailersOf(fields)
	if len(x.trailers) == 0 {
		x.trailers = nil
	}
	x.grewLocked(fieldBytes(x.trailers))
	if x.up != nil && !x.awaiting && !x.over {
		x.pass(nil, b)
	}
	x.mu.Unlock()
	return true
}

// push passes on what was held. mu is held.
func (x *h2exchange) push(b *h2batch) {
	held := x.held
	x.held, x.paid = nil, 0
	if x.up != nil {
		x.pass(held, b)
	}
}

// pass writes a piece of the body to the upstream. mu is held.
func (x *h2exchange) pass(data []byte, b *h2batch) {
	if x.passedEnd {
		return
	}
	if !x.lost {
		if len(x.replay)+len(data) <= h2Replay {
			x.replay = append(x.replay, data...)
		} else {
			x.lost, x.replay = true, nil
		}
	}
	up := x.up
	end := x.ended && x.trailers == nil
	if len(data) > 0 || end {
		moved, _ := up.c.send(up, data, end, &x.down, b)
		x.res.RequestBytes += int64(len(data))
		x.down.c.credit(&x.down, moved, b)
	}
	if x.ended && x.trailers != nil {
		up.c.trail(up, x.trailers, b)
	}
	x.passedEnd = x.ended
}

// rewind makes the request as it was before it was sent. mu is held.
func (x *h2exchange) rewind(b *h2batch) {
	x.dropUpLocked(b)
	x.paid += len(x.replay)
	x.held = append(x.replay, x.held...)
	x.res.RequestBytes = 0
	x.replay, x.passedEnd, x.awaiting = nil, false, false
}

// dialFailed: no connection to target could be made, so nothing was sent.
func (x *h2exchange) dialFailed(u *Upstream, err error) {
	defer x.srv.c.guard()
	var b h2batch
	defer b.flush()
	x.mu.Lock()
	if x.over || x.target != u || x.up != nil {
		x.mu.Unlock()
		return
	}
	rechooser, ok := x.srv.srv.Handler.(Rechooser)
	if !ok || x.redials >= 16 {
		x.fail(err, &b)
		return
	}
	x.redials++
	x.inHandler = true
	x.mu.Unlock()
	v, ok := x.ask(func() Verdict { return rechooser.Rechoose(&x.r, err) })
	if !ok {
		x.panicked(&b)
		return
	}
	x.verdict(v, &b, false)
}

// h2ResetError is a stream that the upstream reset.
type h2ResetError struct {
	addr string
	code http2.ErrCode
}

func (e *h2ResetError) Error() string {
	return fmt.Sprintf("%s reset the request (%s)", e.addr, e.code)
}

// upstreamLost: the upstream's stream is no more. unseen says that the upstream did nothing with the request; then it may be sent again, as
// may an idempotent one (RFC 9110 section 9.2.2).
func (x *h2exchange) upstreamLost(h *h2half, err error, unseen bool, b *h2batch) {
	x.mu.Lock()
	if x.over || x.up != h {
		x.mu.Unlock()
		return
	}
	safe := unseen || h.reused && idempotent([]byte(x.method)) && errors.Is(err, errH2Closed) && x.attempts < 2
	if !x.started && safe && !x.lost && x.attempts < 4 && x.cause == nil && !x.inHandler {
		x.rewind(b)
		x.res.Retried = true
		x.mu.Unlock()
		x.send(b)
		return
	}
	x.stop(err, b)
}

// The response's way to the client.

// responseHead is an interim or final response's head. keep false: the reading was handed on meanwhile.
func (x *h2exchange) responseHead(h *h2half, f *http2.MetaHeadersFrame, b *h2batch) (keep bool) {
	status := statusOf(f)
	x.mu.Lock()
	if x.over || x.up != h {
		x.mu.Unlock()
		return true
	}
	addr := x.target.addr
	switch {
	case f.Truncated:
		x.fail(fmt.Errorf("%s sent a response head that is too large", addr), b)
		return true
	case status == 0 || status == 101 || status < 200 && f.StreamEnded():
		x.fail(fmt.Errorf("%s sent a malformed response head", addr), b)
		return true
	case status < 200:
		if status == 100 && x.awaiting {
			x.awaiting = false
			x.push(b)
			if x.header("expect") == "" {
				x.mu.Unlock()
				return true // it answers our question, not the client's
			}
		}
		x.interim(status, f.RegularFields(), b)
		x.mu.Unlock()
		return true
	}
	h.gotHead = true
	x.res.FirstByte = time.Since(x.r.Started)
	if rc, ok := x.srv.srv.Handler.(Reconsiderer); ok {
		seen := Response{Status: status, Replayable: !x.lost, h2: f.Fields}
		x.inHandler, x.again = true, true
		x.role = h.c
		x.mu.Unlock()
		again := false
		v, ok := x.ask(func() (v Verdict) { v, again = rc.Reconsider(&x.r, &seen); return v })
		keep = x.role != nil
		x.role = nil
		if !keep {
			b = &h2batch{}
			defer b.flush()
		}
		x.mu.Lock()
		x.inHandler, x.again, x.grew = false, false, nil
		switch {
		case !ok:
			x.fail(errPanicked, b)
			return keep
		case x.cause != nil:
			x.fail(x.cause, b)
			return keep
		case again && seen.Replayable && !x.lost:
			x.rewind(b)
			x.inHandler = true
			x.mu.Unlock()
			x.verdict(v, b, false)
			return keep
		case x.up != h: // it was dropped while the Handler waited
			x.fail(fmt.Errorf("the response of %s was dropped", addr), b)
			return keep
		}
	}
	x.respond(h, status, f, b)
	return true
}

// respond writes the final response's head. mu is held and released.
func (x *h2exchange) respond(h *h2half, status int, f *http2.MetaHeadersFrame, b *h2batch) {
	fields := f.RegularFields()
	if text := h2Value(fields, "content-length"); text != "" {
		n, ok := parseLength([]byte(text))
		if !ok {
			x.fail(fmt.Errorf("%s sent a malformed Content-Length", x.target.addr), b)
			return
		}
		if !x.head && status != http.StatusNotModified && status != http.StatusNoContent {
			x.expected = n
		}
	}
	end := f.StreamEnded()
	if end && x.expected > 0 {
		x.fail(fmt.Errorf("%s ended its response before its Content-Length", x.target.addr), b)
		return
	}
	c := x.down.c
	c.mu.Lock()
	if x.down.removed || c.broken {
		c.mu.Unlock()
		x.fail(ErrClientGone, b)
		return
	}
	x.responseLocked(c, status, fields, true)
	c.headersLocked(x.down.id, end)
	x.down.sentEnd = end
	c.finishLocked(&x.down, b)
	flooded := c.backlogLocked() > h2HardBacklog
	c.mu.Unlock()
	b.add(c)
	x.started = true
	x.res.Status = status
	x.lastWrite = time.Now()
	if flooded { // the client asks and does not read
		c.nc.Close()
	}
	if end {
		x.complete(b)
		return
	}
	x.mu.Unlock()
}

// interim passes a 1xx head on. mu is held.
func (x *h2exchange) interim(status int, fields []hpack.HeaderField, b *h2batch) {
	c := x.down.c
	c.mu.Lock()
	if !x.down.removed && !c.broken && c.backlogLocked() < h2HardBacklog {
		x.responseLocked(c, status, fields, false)
		c.headersLocked(x.down.id, false)
		b.add(c)
	}
	c.mu.Unlock()
}

// responseData is a piece of the response's body.
func (x *h2exchange) responseData(h *h2half, data []byte, end bool, b *h2batch) {
	x.mu.Lock()
	if x.over || x.up != h {
		x.mu.Unlock()
		h.c.credit(nil, len(data), b)
		return
	}
	x.passed += int64(len(data))
	if x.head && len(data) > 0 || x.expected >= 0 && (x.passed > x.expected || end && x.passed != x.expected) {
		x.fail(fmt.Errorf("%s sent a body that is not what its head said", x.target.addr), b)
		h.c.credit(nil, len(data), b)
		return
	}
	moved, ended := x.down.c.send(&x.down, data, end, h, b)
	x.res.ResponseBytes += int64(len(data))
	if moved > 0 {
		x.lastWrite = x.now()
	}
	if ended {
		x.complete(b)
	} else {
		x.mu.Unlock()
	}
	h.c.credit(h, moved, b)
}

// now is the time, where somebody wants to know.
func (x *h2exchange) now() time.Time {
	if x.limits.Idle > 0 {
		return time.Now()
	}
	return x.lastWrite
}

// responseTrailers end the response.
func (x *h2exchange) responseTrailers(h *h2half, fields []hpack.HeaderField, b *h2batch) {
	x.mu.Lock()
	if x.over || x.up != h {
		x.mu.Unlock()
		return
	}
	if x.expected >= 0 && x.passed != x.expected {
		x.fail(fmt.Errorf("%s ended its response before its Content-Length", x.target.addr), b)
		return
	}
	fields = trailersOf(fields)
	ended := false
	if len(fields) == 0 {
		_, ended = x.down.c.send(&x.down, nil, true, h, b)
	} else {
		ended = x.down.c.trail(&x.down, fields, b)
	}
	if ended {
		x.complete(b)
		return
	}
	x.mu.Unlock()
}
