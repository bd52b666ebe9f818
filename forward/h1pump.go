package forward

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// pump moves a request body that did not arrive with its head. It has its own goroutine, so that
// the response can begin before the body ends. It also moves the client's bytes of an upgraded
// connection.
type pump struct {
	c       *conn
	fn      func()
	finish  chan struct{}
	running bool // started and not joined; only the connection's goroutine uses it
	tunnel  bool

	up       *upConn
	chunked  bool
	left     int64
	scanner  chunkScanner
	stop     atomic.Bool
	finished atomic.Bool
	stalls   *stall
	failure  atomic.Pointer[syntaxError]
	moved    atomic.Int64
	activity atomic.Int64 // tunnel: when the last byte was moved, in Unix nanoseconds
	consumed bool         // the whole body was read; valid after join
	sent     bool         // the whole body was written to the upstream; valid after join
}

var errPumpStopped = errors.New("the exchange is over")

func (p *pump) init(c *conn) {
	p.c = c
	p.finish = make(chan struct{}, 1)
	p.fn = p.run
}

func (p *pump) start(up *upConn, h *head) {
	p.chunked, p.left = h.chunked, h.length
	p.consumed, p.sent = false, false
	p.begin(up, false)
}

func (p *pump) startTunnel(up *upConn) {
	p.activity.Store(time.Now().UnixNano())
	p.begin(up, true)
}

func (p *pump) begin(up *upConn, tunnel bool) {
	p.up, p.running, p.tunnel = up, true, tunnel
	p.stop.Store(false)
	p.finished.Store(false)
	p.failure.Store(nil)
	p.moved.Store(0)
	p.unbound()
	go p.fn()
}

// unbound removes the upstream's write deadline, which was for the head. TLS cannot continue after
// a write that reached a deadline. The connection's goroutine checks the timers and stops the pump.
func (p *pump) unbound() {
	p.up.writeEnd = time.Time{}
	p.up.SetWriteDeadline(p.up.writeEnd)
}

// active reports whether the pump reads from the client connection.
func (p *pump) active() bool { return p.running && !p.finished.Load() }

// broken returns the error of a malformed body.
func (p *pump) broken() error {
	if !p.running {
		return nil
	}
	if err := p.failure.Load(); err != nil {
		return err
	}
	return nil
}

// wait waits until the pump has finished, at most for d.
func (p *pump) wait(d time.Duration) {
	if p.finished.Load() {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.finish:
		p.finish <- struct{}{}
	case <-t.C:
	}
}

// join waits until the pump has finished. After grace it stops the pump, and forced is true.
func (p *pump) join(grace time.Duration) (forced bool) {
	if !p.running {
		return false
	}
	if grace > 0 {
		p.wait(grace)
	}
	if !p.finished.Load() {
		forced = true
		p.stop.Store(true)
		p.c.nc.SetReadDeadline(past)
		p.up.SetWriteDeadline(past)
	}
	<-p.finish
	p.running, p.tunnel = false, false
	p.c.readEnd = time.Time{}
	p.c.nc.SetReadDeadline(p.c.readEnd)
	p.up.writeEnd = time.Time{}
	p.up = nil
	return forced
}

func (p *pump) run() {
	defer func() {
		if v := recover(); v != nil {
			p.c.srv.caught(v)
			p.c.cut()
		}
		p.finished.Store(true)
		p.finish <- struct{}{}
	}()
	p.stalls = p.c.newStall()
	defer p.stalls.release()
	if p.tunnel {
		p.runTunnel()
	} else {
		p.runBody()
	}
}

func (p *pump) runBody() {
	c := p.c
	upstreamDead := false
	discarded := 0
	// The part that arrived with the head goes first, from the connection's buffer.
	piece := c.in[c.inR:c.inW]
	var space buffer
	defer space.release()
	fromBuffer := true
	for {
		if len(piece) > 0 {
			n, err := p.take(piece)
			if err != nil {
				p.failure.Store(errChunk)
				c.wake()
				return
			}
			if !upstreamDead && p.write(piece[:n]) != nil {
				// The upstream may have answered early and closed. The other goroutine reads its
				// response. A short rest of the body is discarded, so that the client connection
				// can be used again.
				upstreamDead = true
			}
			if !upstreamDead {
				p.moved.Add(int64(n))
			} else if discarded += n; discarded > 256<<10 || p.stop.Load() {
				return
			}
			if fromBuffer {
				c.inR += n
			} else if n < len(piece) {
				c.keep(piece[n:]) // the beginning of the next request
			}
			if p.done() {
				p.consumed, p.sent = true, !upstreamDead
				return
			}
		}
		fromBuffer = false
		if space.b == nil {
			space.b = make([]byte, smallBuffer)
		}
		b := space.b
		if !p.chunked {
			b = b[:min(int64(len(b)), p.left)]
		}
		n, err := p.read(b)
		piece = b[:n]
		if n == len(space.b) {
			space.full(c.account)
		}
		if n == 0 && err != nil {
			if err != errPumpStopped {
				c.leave()
			}
			return
		}
	}
}

// take returns how much of b belongs to the body.
func (p *pump) take(b []byte) (int, error) {
	if p.chunked {
		return p.scanner.scan(b)
	}
	n := min(int64(len(b)), p.left)
	p.left -= n
	return int(n), nil
}

func (p *pump) done() bool {
	if p.chunked {
		return p.scanner.done()
	}
	return p.left == 0
}

func (p *pump) read(b []byte) (int, error) {
	for {
		if p.stop.Load() {
			return 0, errPumpStopped
		}
		n, err := p.c.nc.Read(b)
		if n > 0 {
			return n, nil
		}
		if isTimeout(err) { // an old deadline of the wait for the head, or stop is set
			p.c.nc.SetReadDeadline(time.Time{})
			continue
		}
		if err != nil {
			return 0, err
		}
	}
}

func (p *pump) write(b []byte) error {
	p.stalls.begin()
	defer p.stalls.end()
	for {
		if p.stop.Load() || p.c.gone.Load() {
			return errPumpStopped
		}
		n, err := p.up.Write(b)
		if err == nil {
			return nil
		}
		b = b[n:]
		if !isTCP(p.up.Conn) || !isTimeout(err) {
			return err
		}
		p.up.SetWriteDeadline(time.Time{})
	}
}

// keep puts bytes of the next request back into the connection's buffer.
func (c *conn) keep(b []byte) {
	if c.inR == c.inW {
		c.inR, c.inW = 0, 0
		// The strings of the request still point into the old array.
		c.in = make([]byte, max(smallBuffer, len(b)))
	}
	for c.inW+len(b) > len(c.in) {
		grown := make([]byte, max(2*len(c.in), c.inW+len(b)))
		copy(grown, c.in[:c.inW])
		c.in = grown
	}
	c.inW += copy(c.in[c.inW:], b)
}

// runTunnel moves the client's bytes of an upgraded connection until either side ends.
func (p *pump) runTunnel() {
	c := p.c
	if rest := c.in[c.inR:c.inW]; len(rest) > 0 {
		if p.write(rest) != nil {
			return
		}
		p.moved.Add(int64(len(rest)))
		c.inR = c.inW
	}
	b := make([]byte, smallBuffer)
	for {
		n, err := p.read(b)
		if n > 0 {
			p.activity.Store(time.Now().UnixNano())
			p.moved.Add(int64(n))
			if p.write(b[:n]) != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				if closeWrite(p.up.Conn) {
					return
				}
			}
			if err != errPumpStopped {
				c.leave()
			}
			return
		}
	}
}
