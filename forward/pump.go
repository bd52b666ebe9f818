package forward

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// pump moves a request body that was not in the buffer with its head, in its own goroutine, so that
// the response can come while the request still streams. It also serves the client's direction of
// an upgraded connection.
type pump struct {
	c       *conn
	fn      func()
	finish  chan struct{}
	running bool // started and not joined; belongs to the connection's goroutine
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
	activity atomic.Int64 // tunnel: unix nanoseconds of the last byte moved
	consumed bool         // the whole body was read; valid after join
	sent     bool         // ... and written to the upstream
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

// unbound takes off the upstream the deadline for writing the head. TLS cannot go on after a write
// that met one, and what the pump writes ends with the exchange: its timers are looked at on the
// other goroutine.
func (p *pump) unbound() {
	p.up.writeEnd = time.Time{}
	p.up.SetWriteDeadline(p.up.writeEnd)
}

// active: the client connection's reading side is the pump's.
func (p *pump) active() bool { return p.running && !p.finished.Load() }

// broken is the error of a body that is not what it announced to be.
func (p *pump) broken() error {
	if !p.running {
		return nil
	}
	if err := p.failure.Load(); err != nil {
		return err
	}
	return nil
}

// wait gives the pump some time to finish by itself.
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

// join waits until the pump has finished; after grace it is stopped by force.
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
	// What came with the head goes first, straight from the connection's buffer.
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
			if !upstreamDead {
				if p.write(piece[:n]) != nil {
					// The upstream may have answered early and closed; its answer is on the other
					// goroutine. The rest of the body is swallowed, within reason, so that the
					// client connection stays usable.
					upstreamDead = true
				} else {
					p.moved.Add(int64(n))
				}
			}
			if upstreamDead {
				if discarded += n; discarded > 256<<10 || p.stop.Load() {
					return
				}
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

// take says how much of b belongs to the body.
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
		if isTimeout(err) { // left over from the wait for the head, or stop
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

// keep puts bytes that belong to the next request back in front.
func (c *conn) keep(b []byte) {
	if c.inR == c.inW {
		c.inR, c.inW = 0, 0
		// The request's strings still point into the old array.
		c.in = make([]byte, max(smallBuffer, len(b)))
	}
	for c.inW+len(b) > len(c.in) {
		grown := make([]byte, max(2*len(c.in), c.inW+len(b)))
		copy(grown, c.in[:c.inW])
		c.in = grown
	}
	c.inW += copy(c.in[c.inW:], b)
}

// runTunnel moves the client's direction of an upgraded connection until either side ends.
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
