package forward

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"ebb.dev/ebb/forward/exchange"
)

// This file has a response's way to the client, and answers that are made here.

// responseHead handles the head of an interim or final response. If keep is false, another
// goroutine reads the connection now.
func (x *h2exchange) responseHead(h *h2half, f *http2.MetaHeadersFrame, b *h2batch) (keep bool) {
	x.mu.Lock()
	var do exchange.Do
	if x.up == h {
		x.frame = f
		e := x.eventLocked(h, f)
		do = x.performLocked(&e, b)
	}
	x.mu.Unlock()
	return x.follow(do, h.c, b)
}

// eventLocked returns the event for a response head: interim, final or malformed.
func (x *h2exchange) eventLocked(h *h2half, f *http2.MetaHeadersFrame) exchange.Event {
	status := statusOf(f)
	switch {
	case f.Truncated:
		return malformedBy(h, "sent a response head that is too large")
	case status == 0 || status == 101 || status < 200 && f.StreamEnded():
		return malformedBy(h, "sent a malformed response head")
	case status < 200:
		return exchange.Event{Kind: exchange.Interim, Status: status}
	}
	length, ok := h2Length(f.RegularFields())
	if !ok {
		return malformedBy(h, "sent a malformed Content-Length")
	}
	x.bodiless = x.asksForHead() || status == http.StatusNoContent || status == http.StatusNotModified
	x.expected = length
	if x.bodiless {
		x.expected = -1 // it says what another response would have
	}
	if f.StreamEnded() && x.expected > 0 {
		return malformedBy(h, "ended its response before its Content-Length")
	}
	h.gotHead = true
	now := time.Now()
	x.res.FirstByte = now.Sub(x.r.Started)
	return exchange.Event{Kind: exchange.Head, Status: status, At: now}
}

// malformedBy returns the event for a malformed response (RFC 9113 section 8.1.1).
func malformedBy(h *h2half, what string) exchange.Event {
	return exchange.Event{Kind: exchange.Failed, Code: uint32(http2.ErrCodeProtocol), Err: fmt.Errorf("%s %s", h.addr(), what)}
}

// fitsLocked reports whether n more bytes, the last ones or not, are what the response's head said.
func (x *h2exchange) fitsLocked(n int, end bool) bool {
	x.passed += int64(n)
	if x.bodiless {
		return x.passed == 0
	}
	return x.expected < 0 || x.passed <= x.expected && (!end || x.passed == x.expected)
}

// respondLocked writes the final response's head.
func (x *h2exchange) respondLocked(b *h2batch) exchange.Do {
	f, c := x.frame, x.down.c
	x.frame = nil
	status, end := statusOf(f), f.StreamEnded()
	c.mu.Lock()
	if x.down.removed || c.broken {
		c.mu.Unlock()
		return x.performLocked(&exchange.Event{Kind: exchange.ClientLeft}, b)
	}
	x.responseLocked(c, status, f.RegularFields(), true)
	c.headersLocked(x.down.id, end)
	x.down.sentEnd = end
	c.finishLocked(&x.down, b)
	flooded := c.backlogLocked() > h2HardBacklog
	c.mu.Unlock()
	b.add(c)
	x.res.Status = status
	x.machine.Wrote(x.r.Started.Add(x.res.FirstByte))
	if flooded { // the client sends requests and does not read
		c.nc.Close()
	}
	if end {
		x.res.GRPC = grpcStatus(f.RegularFields())
		return x.performLocked(&exchange.Event{Kind: exchange.Ended}, b)
	}
	return 0
}

// interimLocked forwards a 1xx head.
func (x *h2exchange) interimLocked(status int, fields []hpack.HeaderField, b *h2batch) {
	c := x.down.c
	c.mu.Lock()
	if !x.down.removed && !c.broken && c.backlogLocked() < h2HardBacklog {
		x.responseLocked(c, status, fields, false)
		c.headersLocked(x.down.id, false)
		b.add(c)
	}
	c.mu.Unlock()
}

// responseData handles a piece of the response's body.
func (x *h2exchange) responseData(h *h2half, data []byte, end bool, b *h2batch) {
	moved := 0
	x.mu.Lock()
	var do exchange.Do
	ours := x.up == h
	switch {
	case !ours:
	case !x.fitsLocked(len(data), end):
		e := malformedBy(h, "sent a body that is not what its head said")
		do = x.performLocked(&e, b)
		ours = false
	default:
		var ended bool
		moved, ended = x.down.c.send(&x.down, data, end, h, b)
		x.res.ResponseBytes += int64(len(data))
		if moved > 0 && x.machine.Timed() {
			x.machine.Wrote(time.Now())
		}
		if ended {
			do = x.performLocked(&exchange.Event{Kind: exchange.Ended}, b)
		} else {
			do = x.fullLocked(b)
		}
	}
	x.mu.Unlock()
	if ours {
		h.c.credit(h, moved, b)
	}
	x.follow(do, nil, b)
}

// responseTrailers handles the trailers that end the response.
func (x *h2exchange) responseTrailers(h *h2half, fields []hpack.HeaderField, b *h2batch) {
	x.mu.Lock()
	var do exchange.Do
	switch {
	case x.up != h:
	case !x.fitsLocked(0, true):
		e := malformedBy(h, "ended its response before its Content-Length")
		do = x.performLocked(&e, b)
	default:
		ended := false
		x.res.GRPC = grpcStatus(fields)
		fields = slices.DeleteFunc(trailersOf(fields), func(f hpack.HeaderField) bool { return x.srv.srv.strips(&x.res, x.r.Started, f.Name, f.Value) })
		if len(fields) == 0 {
			_, ended = x.down.c.send(&x.down, nil, true, h, b)
		} else {
			ended = x.down.c.trail(&x.down, fields, b)
		}
		if ended {
			do = x.performLocked(&exchange.Event{Kind: exchange.Ended}, b)
		}
	}
	x.mu.Unlock()
	x.follow(do, nil, b)
}

// writeLocked sends a reply and ends the stream.
func (x *h2exchange) writeLocked(p *Reply, b *h2batch) (status int, n int64) {
	status = p.status()
	c := x.down.c
	body := p.Body
	if x.asksForHead() || p.bodiless() {
		body = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.down.removed {
		return 0, 0
	}
	c.fieldLocked(":status", statusDigits(status), false)
	if !p.bodiless() {
		c.fieldLocked("content-type", p.contentType(), false)
		c.fieldLocked("content-length", strconv.Itoa(len(p.Body)), false)
	}
	for _, f := range p.Header {
		c.fieldLocked(strings.ToLower(f.Name), clean(f.Value), false)
	}
	c.headersLocked(x.down.id, body == "")
	if body == "" {
		x.down.sentEnd = true
	} else if moved, ended := c.dataLocked(&x.down, []byte(body), true); !ended {
		// The rest is sent when the client opens its window.
		x.down.queue, x.down.queuedEnd = append(x.down.queue, body[moved:]...), true
		x.down.stickLocked(int64(cap(x.down.queue)) + h2AnswerBytes)
		c.listLocked(&x.down)
	}
	b.add(c)
	if x.down.sentEnd {
		x.srv.closeStreamLocked(&x.down, b)
	}
	return status, int64(len(body))
}

// endLocked ends a response in the middle with a trailer that names the timer. What waits for the
// client's window is dropped. A response with a Content-Length is reset instead.
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

// closeDownLocked removes the client's stream, whose response is complete.
func (x *h2exchange) closeDownLocked(b *h2batch) {
	c := x.down.c
	c.mu.Lock()
	x.srv.closeStreamLocked(&x.down, b)
	c.mu.Unlock()
}

// left is called after bytes have left a queue. end reports whether they were the last.
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
