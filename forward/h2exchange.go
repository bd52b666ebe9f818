package forward

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// h2Replay is how much of a request's body is kept, so that it can be sent a second time. Calls are small; streams are not kept.
const h2Replay = 4 << 10

// h2exchange is one request over HTTP/2 and its response. Before a request was sent to an upstream, what comes of its body is held, never
// more than the stream's window.
//
//	admitting   the Handler has it
//	opening     it waits for a connection to target, or for its body (DeferBody)
//	sent        up is its stream; with awaiting the body is still held
//	started     the final response's head went to the client
//	over        Done was called, or is about to be; nothing may touch r and res any more
type h2exchange struct {
	srv    *h2server
	r      Request
	res    Result
	down   h2half // on the client's connection
	fields []hpack.HeaderField
	space  [16]hpack.HeaderField

	method, path, authority string
	length                  int64 // of the body, -1 when it was not said
	noBody                  bool

	// role is the connection that the goroutine now in the Handler would read; it belongs to that goroutine.
	role *h2conn

	mu        sync.Mutex
	limits    Timeouts // r's, once the Handler has set them
	inHandler bool
	again     bool          // ... in Reconsider, which may drop the response
	grew      func(n int64) // the Handler's, while it waits; see Request.CountHeld
	cause     error
	target    *Upstream
	up        *h2half
	held      []byte
	paid      int  // how many of held's first bytes the client's windows were credited with, when they were sent before
	ended     bool // the request is here whole
	trailers  []hpack.HeaderField
	got       int64  // body bytes that came
	replay    []byte // what was passed on
	lost      bool   // too much was passed on to send it again
	passedEnd bool
	awaiting  bool // the body is held until the upstream says 100 Continue
	sentAt    time.Time
	attempts  int
	redials   int
	continued bool // 100 Continue was said here
	started   bool
	over      bool
	lastWrite time.Time
	head      bool  // HEAD: the response has no body
	expected  int64 // the response's length, -1 when it was not said
	passed    int64
}

// admit asks the Handler and does what it says. keep false: the reading was handed on meanwhile.
func (x *h2exchange) admit(b *h2batch) (keep bool) {
	x.role = x.down.c
	v, ok := x.ask(func() Verdict { return x.srv.srv.Handler.Admit(&x.r) })
	keep = x.role != nil
	x.role = nil
	if !keep {
		b = &h2batch{}
		defer b.flush()
	}
	if !ok {
		x.panicked(b)
		return keep
	}
	// While the body may be in the reader's buffer it is worth looking there before asking for permission to send it.
	x.verdict(v, b, keep)
	return keep
}

// ask calls the Handler. ok false: it panicked.
func (x *h2exchange) ask(f func() Verdict) (v Verdict, ok bool) {
	defer x.srv.srv.catch()
	v = f()
	return v, true
}

func (x *h2exchange) panicked(b *h2batch) {
	x.mu.Lock()
	x.inHandler = false
	x.fail(errPanicked, b)
}

// verdict carries out what the Handler said. wait: the body may follow at once.
func (x *h2exchange) verdict(v Verdict, b *h2batch, wait bool) {
	x.mu.Lock()
	x.inHandler, x.again, x.grew = false, false, nil
	x.limits = x.r.Timeouts
	switch {
	case x.cause != nil:
		x.fail(x.cause, b)
		return
	case v.Upstream == nil:
		x.res.Cause = Replied
		x.reply(&v.Reply, b)
		return
	}
	x.target = v.Upstream
	later := wait && x.r.deferBody && !x.ended
	if x.r.continueNow && !x.ended && x.header("expect") != "" && !x.continued {
		x.continued = true
		x.interim(100, nil, b)
	}
	x.mu.Unlock()
	x.arm()
	if later {
		x.srv.later = append(x.srv.later, x)
		return
	}
	x.send(b)
}

// arm makes the connection look after the exchange's next deadline.
func (x *h2exchange) arm() {
	x.mu.Lock()
	at := x.nextLocked()
	x.mu.Unlock()
	if at.IsZero() {
		return
	}
	c := x.down.c
	c.mu.Lock()
	c.armLocked(at, x.srv.tick)
	c.mu.Unlock()
}

func (x *h2exchange) nextLocked() time.Time {
	if x.over {
		return time.Time{}
	}
	at, t := x.limits.deadline(x.r.Started, x.lastWrite, x.started)
	if t == NoTimer {
		at = time.Time{}
	}
	if x.awaiting {
		if e := x.sentAt.Add(continueWait); at.IsZero() || e.Before(at) {
			at = e
		}
	}
	return at
}

// tick does what is due now and returns when to look again.
func (x *h2exchange) tick(now time.Time, b *h2batch) time.Time {
	x.mu.Lock()
	if x.over {
		x.mu.Unlock()
		return time.Time{}
	}
	if at, t := x.limits.deadline(x.r.Started, x.lastWrite, x.started); t != NoTimer && !now.Before(at) {
		x.stop(&TimerError{t, x.limits.of(t)}, b)
		return time.Time{}
	}
	if x.awaiting && !now.Before(x.sentAt.Add(continueWait)) {
		x.awaiting = false
		x.push(b)
	}
	at := x.nextLocked()
	x.mu.Unlock()
	return at
}

// stop ends the exchange for a reason of its own: a timer, or the client. It releases mu.
func (x *h2exchange) stop(cause error, b *h2batch) {
	if x.inHandler {
		if x.cause == nil {
			x.cause = cause
			if x.r.ctxCancel != nil {
				x.r.ctxCancel(cause)
			}
		}
		x.mu.Unlock()
		return
	}
	x.fail(cause, b)
}

// clientGone: the client reset the stream or left.
func (x *h2exchange) clientGone(b *h2batch) {
	x.mu.Lock()
	x.down.c.mu.Lock()
	x.down.c.removeLocked(&x.down, b)
	x.down.c.mu.Unlock()
	if x.over {
		x.mu.Unlock()
		x.srv.rest(b)
		return
	}
	x.stop(ErrClientGone, b)
}

// context is Request.Context.
func (x *h2exchange) context() context.Context {
	x.mu.Lock()
	if x.r.ctx == nil {
		x.r.ctx, x.r.ctxCancel = context.WithCancelCause(x.srv.srv.base)
		if x.cause != nil {
			x.r.ctxCancel(x.cause)
		}
	}
	ctx := x.r.ctx
	x.limits = x.r.Timeouts
	hand := x.role
	if hand != nil && x.again && x.lost {
		hand = nil // the response must not pass while Reconsider has it
	}
	x.mu.Unlock()
	x.arm()
	if hand != nil {
		// The caller is about to wait: somebody else has to read what comes meanwhile.
		x.role = nil
		if x.again {
			var b h2batch
			x.dropUp(&b)
			b.flush()
		}
		hand.peer.beforeRead()
		hand.batch.flush()
		*hand.handed = true
		go hand.read()
	}
	return ctx
}

// done tells the Handler. mu is held and released; nothing of r and res is touched afterwards.
func (x *h2exchange) done(b *h2batch) {
	x.over = true
	x.down.c.credit(nil, len(x.held)-x.paid, b)
	x.held, x.paid, x.replay = nil, 0, nil
	if x.r.ctxCancel != nil {
		x.r.ctxCancel(context.Canceled)
	}
	x.mu.Unlock()
	x.res.Duration = time.Since(x.r.Started)
	x.srv.srv.done(&x.r, &x.res)
	x.srv.running.Add(-1)
	x.srv.rest(b)
}

// dropUp resets the upstream's stream, if there is one.
func (x *h2exchange) dropUp(b *h2batch) {
	x.mu.Lock()
	x.dropUpLocked(b)
	x.mu.Unlock()
}

func (x *h2exchange) dropUpLocked(b *h2batch) {
	if up := x.up; up != nil {
		x.up = nil
		up.c.drop(up, http2.ErrCodeCancel, b)
		up.c.peer.(*h2client).released(b)
	}
	x.awaiting = false
}

// fail is the one place where an error becomes an answer: 504 for a timer, 502 for the upstream, nothing for a client that is gone, and
// a reset once the response has started. mu is held and released.
func (x *h2exchange) fail(err error, b *h2batch) {
	if x.over {
		x.mu.Unlock()
		return
	}
	x.dropUpLocked(b)
	x.res.Err = err
	var timer *TimerError
	var reply Reply
	switch {
	case err == ErrClientGone:
		x.res.Cause = ClientGone
		x.down.c.drop(&x.down, http2.ErrCodeCancel, b)
		x.done(b)
		return
	case errors.As(err, &timer):
		x.res.Cause, x.res.Timer = TimedOut, timer.Timer
		reply = x.srv.srv.timeoutReply(timer)
	default:
		x.res.Cause = UpstreamFailed
		reply = x.srv.srv.failureReply(err)
	}
	var reset *h2ResetError
	wasReset := errors.As(err, &reset)
	// A server of gRPC whose timer for the client's deadline fires a moment before the client's own cancels the stream; an answer
	// of ours would hide the deadline.
	if x.started || wasReset && reset.code == http2.ErrCodeCancel {
		code := http2.ErrCodeInternal // the client must not take this for a whole response
		if wasReset && reset.code != http2.ErrCodeRefusedStream && reset.code != http2.ErrCodeNo {
			code = reset.code
		}
		x.down.c.drop(&x.down, code, b)
		x.done(b)
		return
	}
	x.reply(&reply, b)
}

// malformed: a frame of the stream was, so the stream was or is to be reset.
func (x *h2exchange) malformed(h *h2half, code http2.ErrCode, b *h2batch) {
	x.mu.Lock()
	if h != &x.down {
		if x.up == h {
			x.stop(fmt.Errorf("%s sent a malformed frame (%s)", x.target.addr, code), b)
			return
		}
		x.mu.Unlock()
		return
	}
	x.down.c.drop(&x.down, code, b)
	if x.over {
		x.mu.Unlock()
		return
	}
	x.srv.srv.rejected.Add(1)
	if x.inHandler {
		x.stop(ErrClientGone, b)
		return
	}
	x.dropUpLocked(b)
	x.res.Cause, x.res.Err = BadRequest, errH2Malformed
	x.done(b)
}

// refuse answers a request that the Handler does not get to see.
func (x *h2exchange) refuse(bad *syntaxError, b *h2batch) {
	x.mu.Lock()
	x.over = true
	x.write(&Reply{Status: bad.status, Body: bad.text}, b)
	x.mu.Unlock()
	x.srv.rest(b)
}

// reply answers here. mu is held and released.
func (x *h2exchange) reply(p *Reply, b *h2batch) {
	x.dropUpLocked(b)
	status, n := x.write(p, b)
	x.started = true
	x.res.Status, x.res.ResponseBytes = status, n
	x.done(b)
}

// write sends a whole response and ends the stream.
func (x *h2exchange) write(p *Reply, b *h2batch) (status int, n int64) {
	status = p.Status
	if status < 200 || status > 999 {
		status = 500
	}
	contentType := p.ContentType
	if contentType == "" {
		contentType = "text/plain; charset=utf-8"
	}
	c := x.down.c
	body := p.Body
	if x.head {
		body = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.down.removed {
		return 0, 0
	}
	c.fieldLocked(":status", statusDigits(status), false)
	c.fieldLocked("content-type", clean(contentType), false)
	c.fieldLocked("content-length", strconv.Itoa(len(p.Body)), false)
	for _, f := range p.Header {
		c.fieldLocked(lower(f.Name), clean(f.Value), false)
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
		x.closeDownLocked(b)
	}
	return status, int64(len(body))
}

// closeDownLocked takes a stream whose response is complete off the connection. A client that still sends is told to stop.
func (x *h2exchange) closeDownLocked(b *h2batch) {
	c := x.down.c
	if !x.down.gotEnd && !x.down.removed {
		c.fw.WriteRSTStream(x.down.id, http2.ErrCodeNo)
		c.forgetLocked(x.down.id)
	}
	c.removeLocked(&x.down, b)
	b.add(c)
}

// left is told of bytes that waited in a queue and now left; end: the last ones.
func (x *h2exchange) left(h *h2half, n int, end bool, b *h2batch) {
	x.mu.Lock()
	if h != &x.down {
		x.mu.Unlock()
		return
	}
	x.lastWrite = time.Now()
	if end {
		if x.over {
			h.c.mu.Lock()
			x.closeDownLocked(b)
			h.c.mu.Unlock()
			x.mu.Unlock()
			x.srv.rest(b)
			return
		}
		x.complete(b)
		return
	}
	x.mu.Unlock()
}

// complete: the response's last byte left. mu is held and released.
func (x *h2exchange) complete(b *h2batch) {
	x.res.Cause = Completed
	c := x.down.c
	c.mu.Lock()
	x.closeDownLocked(b)
	c.mu.Unlock()
	if x.up != nil {
		x.dropUpLocked(b) // resets it only when the request was not sent whole
	}
	x.done(b)
}

func (x *h2exchange) header(name string) string {
	for i := range x.fields {
		if x.fields[i].Name == name {
			return x.fields[i].Value
		}
	}
	return ""
}

func statusDigits(status int) string {
	switch status {
	case http.StatusOK:
		return "200"
	case http.StatusServiceUnavailable:
		return "503"
	}
	return strconv.Itoa(status)
}
