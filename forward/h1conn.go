package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// patience is how long an exchange waits for the upstream before it starts a second goroutine
	// that notices when the client leaves.
	patience = 50 * time.Millisecond
	// headGrace is the least time that a write of a response head gets, whatever the timers say: by
	// then it is decided that the client gets this response and not a 504.
	headGrace = time.Second
)

// past is a deadline that wakes a blocked read or write at once.
var past = time.Unix(1, 0)

// conn is a client's connection over HTTP/1.1. Each connection begins as one. Its fields belong to
// the goroutine of serve, except where a comment says otherwise.
type conn struct {
	clientConn
	served int

	in       []byte    // client bytes: in[inR:inW] is not consumed yet
	inR, inW int       // inW belongs to the watcher while it runs
	out      []byte    // heads and small bodies on their way out
	rb       []byte    // upstream bytes of the current exchange: rb[rR:rW]
	readEnd  time.Time // read deadline set on nc
	writeEnd time.Time

	req  Request
	resp head
	h1exchange
	clock time.Time // a recent time, refreshed when it matters

	// Other goroutines use these during an exchange.
	upWake   atomic.Pointer[upConn]                  // whose blocked read the watcher, the pump or cut must wake
	leaveCtx atomic.Pointer[context.CancelCauseFunc] // the request's, for the goroutine that notices when the client leaves
	forsaken atomic.Bool                             // the upstream is not waited for

	// In nanoseconds since 1970; 0 while it is not so.
	idle    atomic.Int64 // since when it waits for a request; or woken
	sending atomic.Int64 // since when it sends a head or shakes hands; or cutOff
	parting atomic.Int64 // since when the upstream goes on without the client

	watcher watcher
	pump    pump
}

func newConn(s *Server, nc net.Conn, cfg *tls.Config) *conn {
	c := &conn{}
	c.clientConn.init(s, nc, cfg)
	c.shell = c
	return c
}

// prepare allocates what only HTTP/1.1 needs.
func (c *conn) prepare() {
	c.in = make([]byte, smallBuffer)
	c.out = make([]byte, 0, smallBuffer)
	c.rb = make([]byte, smallBuffer)
	c.req.client, c.req.carrier = &c.clientConn, c
	c.req.head.fields = make([]field, 0, 24)
	c.resp.fields = make([]field, 0, 16)
	c.watcher = watcher{fn: c.watch, quit: make(chan struct{}, 1), done: make(chan struct{}, 1)}
	c.pump.init(c)
}

type headOutcome uint8

const (
	headOK headOutcome = iota
	headHTTP2
	headClosed
)

// readHead waits for the next request and parses its head.
func (c *conn) readHead() headOutcome {
	c.req.renew()
	h := &c.req.head
	if c.inR == c.inW {
		c.inR, c.inW = 0, 0
		c.shrink()
		if !c.awaitRequest() {
			return headClosed
		}
	}
	slow := false
	defer c.releaseHead()
	for {
		data := c.in[c.inR:c.inW]
		http2 := c.served == 0 && data[0] == 'P' && isPrefix(data)
		if http2 && len(data) >= len(preface) {
			if !c.hasSent() {
				return headClosed
			}
			return headHTTP2
		}
		if !http2 {
			done, err := h.feed(data)
			if err != nil {
				return c.reject(err)
			}
			if done {
				break
			}
		}
		if len(data) >= c.srv.MaxHeaderBytes {
			return c.reject(errTooLarge)
		}
		c.in, c.inR, c.inW = makeRoom(c.in, c.inR, c.inW)
		if !slow {
			slow = true
			c.readEnd = c.sends().Add(c.srv.HeaderTimeout)
			c.nc.SetReadDeadline(c.readEnd)
		}
		c.holdHead(len(c.in) - smallBuffer)
		n, err := c.nc.Read(c.in[c.inW:])
		c.inW += n
		if n == 0 && err != nil {
			if isTimeout(err) && !c.gone.Load() {
				return c.reject(errSlowHead)
			}
			return headClosed
		}
	}
	c.inR += h.size
	if slow {
		if !c.hasSent() {
			return headClosed
		}
		c.readEnd = time.Time{}
		c.nc.SetReadDeadline(c.readEnd)
	}
	return headOK
}

func isPrefix(data []byte) bool {
	n := min(len(data), len(preface))
	return string(data[:n]) == preface[:n]
}

// awaitRequest waits for the first byte of a request on an idle connection.
func (c *conn) awaitRequest() bool {
	limit := c.srv.IdleTimeout
	if c.served == 0 {
		limit = c.srv.FirstRequestTimeout
	}
	// Renew the deadline only when a tenth of it has passed: a renewal takes a lock and a timer.
	now := c.clock
	if c.served == 0 || now.IsZero() {
		now = time.Now()
	}
	if left := c.readEnd.Sub(now); c.served <= 1 || left < limit-limit/10 {
		c.readEnd = now.Add(limit)
		c.nc.SetReadDeadline(c.readEnd)
	}
	since := now.UnixNano()
	c.idle.Store(since)
	if c.srv.stopped.Load() && c.served > 0 {
		// Shutdown may have missed this connection. A request that has already arrived is still
		// answered.
		c.nc.SetReadDeadline(time.Now().Add(wakeGrace))
	}
	n, err := c.nc.Read(c.in)
	if !c.idle.CompareAndSwap(since, 0) || c.srv.stopped.Load() {
		c.lastLook()
		if n == 0 && isTimeout(err) && !c.gone.Load() {
			n, err = c.nc.Read(c.in)
			if n == 0 && isTimeout(err) && !c.srv.stopped.Load() {
				c.srv.evicted.Add(1)
			}
		}
		if n > 0 {
			c.idle.Store(0)
		}
		c.readEnd = time.Time{}
		c.nc.SetReadDeadline(c.readEnd)
	}
	c.inW = n
	return n > 0
}

// shrink drops buffers that a large head has made large. A connection that waits for its next
// request keeps small ones.
func (c *conn) shrink() {
	if cap(c.in) > smallBuffer {
		c.in = make([]byte, smallBuffer)
	}
	if cap(c.out) > 2*smallBuffer {
		c.out = make([]byte, 0, smallBuffer)
	}
	if cap(c.rb) > 2*smallBuffer {
		c.rb = make([]byte, smallBuffer)
	}
}

// cut implements shell. It does not wait for an upstream either.
func (c *conn) cut() {
	c.forsaken.Store(true)
	c.gone.Store(true)
	c.nc.Close()
	c.wake()
}

// wake interrupts a blocked read or write on the upstream, from any goroutine. The interrupted
// goroutine finds out the reason.
func (c *conn) wake() {
	if up := c.upWake.Load(); up != nil {
		up.SetDeadline(past)
	}
}

// makeRoom makes room in b behind the bytes b[r:w]. They move to the front, or the buffer doubles.
func makeRoom(b []byte, r, w int) (roomy []byte, newR, newW int) {
	switch {
	case w < len(b):
		return b, r, w
	case r > 0:
		return b, 0, copy(b, b[r:w])
	}
	return append(b, make([]byte, len(b))...), 0, w
}

// reject answers a malformed head and closes the connection, because what follows on it cannot be
// trusted.
func (c *conn) reject(err *syntaxError) headOutcome {
	c.srv.rejected.Add(1)
	c.clock = time.Now()
	c.req.Started = c.clock
	c.h1exchange = h1exchange{}
	status := err.status
	if status == 502 {
		status = 400
	}
	c.reply(&Reply{Status: status, Body: err.text, Close: true})
	c.linger()
	return headClosed
}

// reply writes a local answer. It reports whether the connection can be used again.
func (c *conn) reply(p *Reply) bool {
	closing := p.Close || c.lingering || c.srv.endsNext() || !c.req.head.keepsAlive()
	status := p.status()
	out := append(c.out[:0], "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(status), 10)
	out = append(out, ' ')
	out = append(out, statusText(status)...)
	out = append(out, "\r\n"...)
	if !p.bodiless() {
		out = appendLine(out, "Content-Type", p.contentType())
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, int64(len(p.Body)), 10)
		out = append(out, "\r\n"...)
	}
	for _, h := range p.Header {
		out = appendLine(out, h.Name, h.Value)
	}
	out = c.appendConnection(out, closing)
	if !c.req.head.asksForHead() && !p.bodiless() {
		out = append(out, p.Body...)
		c.res.ResponseBytes = int64(len(p.Body))
	}
	c.out = out
	c.res.Status = status
	if err := c.writeClient(out); err != nil {
		return false
	}
	return !closing
}

// linger closes the writing side and discards what the client still sends, for a bounded time and
// size. Closing with unread bytes would reset the connection, and the client might not see the
// answer.
func (c *conn) linger() {
	if c.gone.Load() {
		return
	}
	closeWrite(c.nc)
	c.nc.SetReadDeadline(time.Now().Add(c.srv.lingerFor))
	for left := 256 << 10; left > 0; {
		n, err := c.nc.Read(c.in)
		if err != nil {
			return
		}
		left -= n
	}
}

// cutOff, as conn.sending, means that the connection was closed in the middle of a head.
const cutOff = -1

// sends notes that the client sends a head, or shakes hands, and returns the time. hasSent is
// called when that is done. It reports false if the connection was closed meanwhile.
func (c *conn) sends() (now time.Time) {
	now = time.Now()
	c.sending.Store(now.UnixNano())
	return now
}

func (c *conn) hasSent() bool { return c.sending.Swap(0) != cutOff }

// idleSince implements shell.
func (c *conn) idleSince(time.Time) int64 {
	return cmp.Or(c.idle.Load(), c.parting.Load(), max(c.sending.Load(), 0))
}

// evict implements shell. A connection that waits for a request counts when it has been closed.
func (c *conn) evict(since int64) {
	if c.parting.Load() != 0 {
		c.srv.evicted.Add(1)
		c.cut()
	} else if !c.wakeIfIdle() && c.sending.CompareAndSwap(since, cutOff) {
		c.srv.evicted.Add(1)
		c.gone.Store(true)
		c.tcp().Close()
	}
}

// stop implements shell.
func (c *conn) stop() { c.wakeIfIdle() }

// wakeIfIdle closes a connection that waits for a request, unless one has just arrived, and reports
// whether it does. The server's mu is held.
func (c *conn) wakeIfIdle() bool {
	since := c.idle.Load()
	if since <= 0 || !c.idle.CompareAndSwap(since, woken) {
		return false
	}
	c.nc.SetReadDeadline(past)
	return true
}

// lastLook sets the deadline for the last read of a connection that was woken.
func (c *conn) lastLook() {
	c.srv.mu.Lock() // the deadline that woke it has been set by now
	defer c.srv.mu.Unlock()
	c.nc.SetReadDeadline(time.Now().Add(wakeGrace))
}
