package forward

import (
	"errors"
	"fmt"
	"io"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// This file reads the heads of responses over HTTP/1.1, and says what an error of that means.

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

// answerKind is the kind of the response that is being read.
func (c *conn) answerKind() answerKind {
	switch {
	case c.req.head.asksForHead():
		return answerToHead
	case c.resp.status == 204:
		return answer204
	case c.resp.status == 304:
		return answer304
	case c.kind == bodyChunked:
		return answerChunked
	}
	return answerLength
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
