package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
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
	c.srv.Handler.Done(r, &c.res)
	return keep && !c.gone.Load()
}

func (c *conn) run(v Verdict) bool {
	c.stopWatch()
	body, ok := c.takeBody()
	if !ok {
		return c.end(errChunk)
	}
	if c.req.ctx != nil { // it waited; did it wait too long?
		c.clock = time.Now()
		if err := c.interrupted(c.clock); err != nil {
			return c.end(err)
		}
	}
	for tries := 0; ; {
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
			if c.req.ctx != nil {
				c.clock = time.Now()
				if err := c.interrupted(c.clock); err != nil {
					return c.end(err)
				}
			}
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
	if err := c.writeUp(c.out); err != nil {
		// Nothing whole arrived there, so nothing was done there.
		if up.reused && !c.gone.Load() && !isTimeout(err) {
			up.up.learn(c.clock.Sub(up.since))
			return outcomeRetry
		}
		return c.endAs(c.explain(err, "send the request to"))
	}
	c.res.RequestBytes = int64(len(b.inline))
	c.bodyHeld = b.stream && c.req.deferBody
	if b.stream && !c.bodyHeld {
		c.pump.start(up, &c.req.head)
	}
	for {
		if err := c.readResponseHead(); err != nil {
			if err == errDiedUnused && up.reused && !b.stream && idempotent(c.req.head.bytes(c.req.head.method)) {
				up.up.learn(c.clock.Sub(up.since))
				return outcomeRetry
			}
			if err == errDiedUnused {
				err = fmt.Errorf("%s closed the connection without a response", up.up.addr)
			}
			return c.endAs(err)
		}
		status := c.resp.status
		if status == 101 {
			if !c.req.head.upgrades() {
				return c.endAs(fmt.Errorf("%s switched protocols unasked", up.up.addr))
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
		if !isTimeout(err) || !now.Before(end) || c.gone.Load() || up.raw == nil {
			return err
		}
		up.writeEnd = end
		up.SetWriteDeadline(end)
	}
}

var errDiedUnused = errors.New("the connection died before the first byte of a response")

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
				return errDiedUnused
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
		reply = c.srv.TimeoutReply(timer.Timer, timer.After)
		reply.Close = true
		c.lingering = true
	case err == error(errChunk):
		c.res.Cause = BadRequest
		c.srv.rejected.Add(1)
		reply = Reply{Status: errChunk.status, Body: errChunk.text, Close: true}
		c.lingering = true
	default:
		c.res.Cause = UpstreamFailed
		reply = c.srv.FailureReply(err)
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

// bodyKind is how the end of a response body is found.
type bodyKind uint8

const (
	bodyNone bodyKind = iota
	bodyLength
	bodyChunked
	bodyUntilClose
)

func (c *conn) responseBody() bodyKind {
	h := &c.resp
	switch {
	case h.status == 204 || h.status == 304 || c.req.head.asksForHead():
		return bodyNone
	case h.chunked:
		return bodyChunked
	case h.length == 0:
		return bodyNone
	case h.length > 0:
		return bodyLength
	}
	return bodyUntilClose
}

// relay passes the final response on. whole: the upstream's response ended where it said, so its connection is clean.
func (c *conn) relay() (whole, clientKeeps bool, err error) {
	kind := c.responseBody()
	old := c.req.head.minor == 0
	closing := c.srv.draining.Load() || !c.req.head.keepsAlive() ||
		c.bodyHeld || c.req.head.expect && !c.continued && c.pump.running && c.pump.moved.Load() == 0 ||
		old && (kind == bodyChunked || kind == bodyUntilClose)
	c.out = c.appendResponse(c.out[:0], kind, closing)
	c.res.Status = c.resp.status

	// The part of the body that came with the head leaves with the head.
	piece := c.rb[c.rR:c.rW]
	left := int64(0)
	scanner := &chunkScanner{}
	switch kind {
	case bodyLength:
		left = c.resp.length
		if int64(len(piece)) > left {
			piece, whole = piece[:left], false
		} else {
			whole = true
		}
		left -= int64(len(piece))
		c.out = append(c.out, piece...)
	case bodyChunked:
		whole = true
		n, err := c.chunkPiece(scanner, piece, old)
		if err != nil {
			return false, false, err
		}
		whole = n == len(piece)
		piece = piece[:n]
	case bodyNone:
		whole, piece = len(piece) == 0, nil
	case bodyUntilClose:
		if len(piece) > 0 {
			c.appendPiece(piece, old)
		}
	}
	c.started = true
	if err := c.writeClient(c.out); err != nil {
		return false, false, err
	}
	c.res.ResponseBytes = int64(len(piece))
	switch {
	case kind == bodyLength && left > 0, kind == bodyChunked && !scanner.done(), kind == bodyUntilClose:
		clean, err := c.relayRest(kind, left, scanner, old)
		if err != nil {
			return false, false, err
		}
		whole = whole && clean
	}
	return whole && kind != bodyUntilClose, !closing, nil
}

// chunkPiece checks a piece of a chunked body and appends it to out: as it is, or without framing for HTTP/1.0.
func (c *conn) chunkPiece(s *chunkScanner, piece []byte, old bool) (n int, err error) {
	for n < len(piece) && !s.done() {
		k, data, err := s.step(piece[n:])
		if err != nil {
			return n, fmt.Errorf("%s sent a malformed chunked body", c.up.up.addr)
		}
		if old && data {
			c.out = append(c.out, piece[n:n+k]...)
		}
		n += k
	}
	if !old {
		c.out = append(c.out, piece[:n]...)
	}
	return n, nil
}

// appendPiece frames a piece of a body that ends with the upstream's connection: as a chunk, or raw for HTTP/1.0.
func (c *conn) appendPiece(piece []byte, old bool) {
	if old {
		c.out = append(c.out, piece...)
		return
	}
	c.out = strconv.AppendUint(c.out, uint64(len(piece)), 16)
	c.out = append(c.out, '\r', '\n')
	c.out = append(c.out, piece...)
	c.out = append(c.out, '\r', '\n')
}

// relayRest moves the rest of a response body in constant memory; every piece is written as soon as it is read.
func (c *conn) relayRest(kind bodyKind, left int64, s *chunkScanner, old bool) (clean bool, err error) {
	b := c.rb
	if kind != bodyLength || left > int64(len(b)) {
		big := largeBuffers.Get().(*[]byte)
		defer largeBuffers.Put(big)
		b = *big
	}
	for {
		want := b
		if kind == bodyLength && int64(len(want)) > left {
			want = want[:left]
		}
		n, err := c.readUp(want)
		if err != nil {
			if err == io.EOF && kind == bodyUntilClose {
				if old {
					return true, nil
				}
				return true, c.writeClient([]byte("0\r\n\r\n"))
			}
			return false, c.explain(err, "read the response body of")
		}
		piece := want[:n]
		switch kind {
		case bodyLength:
			if err := c.writeClient(piece); err != nil {
				return false, err
			}
			c.res.ResponseBytes += int64(n)
			if left -= int64(n); left == 0 {
				return true, nil
			}
		case bodyChunked:
			var used int
			if old {
				c.out = c.out[:0]
				if used, err = c.chunkPiece(s, piece, true); err == nil {
					err = c.writeClient(c.out)
				}
			} else {
				if used, err = s.scan(piece); err != nil {
					err = fmt.Errorf("%s sent a malformed chunked body", c.up.up.addr)
				} else {
					err = c.writeClient(piece[:used])
				}
			}
			if err != nil {
				return false, err
			}
			c.res.ResponseBytes += int64(used)
			if s.done() {
				return used == n, nil
			}
		case bodyUntilClose:
			c.out = c.out[:0]
			c.appendPiece(piece, old)
			if err := c.writeClient(c.out); err != nil {
				return false, err
			}
			c.res.ResponseBytes += int64(n)
			if cap(c.out) > 2*largeBuffer {
				c.out = make([]byte, 0, smallBuffer)
			}
		}
	}
}

// appendInterim writes a 1xx head.
func (c *conn) appendInterim(out []byte) []byte {
	out = c.appendStatus(out)
	out = c.appendFields(out, bodyNone)
	return append(out, '\r', '\n')
}

func (c *conn) appendStatus(out []byte) []byte {
	h := &c.resp
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(h.status), 10)
	out = append(out, ' ')
	out = append(out, h.bytes(h.reason)...)
	return append(out, '\r', '\n')
}

func (c *conn) appendFields(out []byte, kind bodyKind) []byte {
	h := &c.resp
	lengths := 0
	for i := range h.fields {
		f := &h.fields[i]
		switch f.id {
		case otherHeader, hostHeader, expectHeader, trailerHeader:
		case contentLengthHeader:
			if lengths++; h.chunked || h.status < 200 || h.status == 204 || lengths > 1 {
				continue
			}
		default:
			continue
		}
		if h.otherTokens && h.named(h.bytes(f.name)) {
			continue
		}
		if len(c.srv.StripResponse) > 0 && f.id == otherHeader && c.stripped(h.bytes(f.name)) {
			continue
		}
		out = h.appendField(out, f)
	}
	return out
}

func (c *conn) stripped(name []byte) bool {
	for _, s := range c.srv.StripResponse {
		if len(s) == len(name) && foldSame(name, s) {
			return true
		}
	}
	return false
}

// appendResponse writes the head the client gets.
func (c *conn) appendResponse(out []byte, kind bodyKind, closing bool) []byte {
	out = c.appendFields(c.appendStatus(out), kind)
	for _, a := range c.req.added {
		out = append(out, a.Name...)
		out = append(out, ": "...)
		out = appendClean(out, a.Value)
		out = append(out, '\r', '\n')
	}
	old := c.req.head.minor == 0
	switch {
	case old:
	case kind == bodyChunked, kind == bodyUntilClose,
		kind == bodyNone && c.resp.chunked && c.resp.status != 204 && c.resp.status != 304:
		out = append(out, "Transfer-Encoding: chunked\r\n"...)
	}
	if closing {
		out = append(out, "Connection: close\r\n"...)
	} else if old {
		out = append(out, "Connection: keep-alive\r\n"...)
	}
	return append(out, '\r', '\n')
}

func statusText(code int) string {
	if t := http.StatusText(code); t != "" {
		return t
	}
	return "Status"
}

// contextFor bounds a dial by the request's timers. It does not notice the client leaving: dials are short.
func (c *conn) contextFor() (context.Context, context.CancelFunc) {
	if end, t := c.req.deadline(c.lastWrite, c.started); t != NoTimer {
		return context.WithDeadline(c.srv.base, end)
	}
	return c.srv.base, func() {}
}
