package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
)

// h2Pool has the HTTP/2 connections of an Upstream, and the requests that wait for one.
type h2Pool struct {
	u       *Upstream
	mu      sync.Mutex
	conns   []*h2client
	waiting []*h2exchange
	dialing bool
	closed  bool
	open    atomic.Int32 // len(conns)
}

// send starts the request on a connection that has room for it, or on a new one.
func (p *h2Pool) send(x *h2exchange, b *h2batch) {
	for {
		p.mu.Lock()
		c := p.pickLocked()
		if c == nil {
			p.waiting = append(p.waiting, x)
			if !p.dialing {
				p.dialing = true
				go p.dial(x.srv.srv)
			}
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		if x.open(p.u, c.c, b) {
			return
		}
	}
}

// h2Roomy is up to how many connections a request gets a new one because the others are congested.
const h2Roomy = 8

// pickLocked returns the first connection with room for a stream that is not congested. Without one
// it returns the least congested, or nil while more connections may be opened.
func (p *h2Pool) pickLocked() (least *h2client) {
	most := 0
	for _, c := range p.conns {
		c.c.mu.Lock()
		takes, wait := c.takesLocked(), c.c.congestionLocked()
		c.c.mu.Unlock()
		if takes && wait == 0 {
			return c
		}
		if takes && (least == nil || wait < most) {
			least, most = c, wait
		}
	}
	if len(p.conns) < h2Roomy {
		return nil
	}
	return least
}

// dial opens connections one after the other until no request waits for one. srv counts panics.
func (p *h2Pool) dial(srv *Server) {
	defer func() {
		if v := recover(); v != nil {
			srv.caught(v)
			p.mu.Lock()
			p.dialing = false // the next request dials, also for those that wait
			p.mu.Unlock()
		}
	}()
	for {
		nc, err := p.u.dialH2(srv)
		var c *h2client
		if err == nil {
			c = startH2Client(p, nc, srv)
		}
		p.mu.Lock()
		waiting := p.waiting
		p.waiting = nil
		if err != nil {
			p.dialing = false
			p.mu.Unlock()
			for _, x := range waiting {
				go x.dialFailed(p.u, err)
			}
			return
		}
		p.conns = append(p.conns, c)
		p.open.Store(int32(len(p.conns)))
		closed := p.closed
		p.mu.Unlock()
		var b h2batch
		b.add(c.c)
		open := func() {
			for len(waiting) > 0 && waiting[0].open(p.u, c.c, &b) {
				waiting = waiting[1:]
			}
		}
		open()
		if closed {
			c.leave(&b)
		}
		go c.c.read()
		b.flush()
		if len(waiting) > 0 && c.awaitSettings() {
			open()
			b.flush()
		}
		p.mu.Lock()
		p.waiting = append(waiting, p.waiting...)
		if len(p.waiting) == 0 {
			p.waiting = nil
			p.dialing = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
	}
}

// dialH2 opens a connection, with TLS if the upstream has that.
func (u *Upstream) dialH2(srv *Server) (nc net.Conn, err error) {
	err = &DialError{u.addr, errPanicked} // if the rest panics
	defer srv.catch()
	ctx, cancel := context.WithTimeout(context.Background(), u.options.DialTimeout)
	defer cancel()
	raw, failed := u.options.Dial(ctx, u.addr)
	if failed != nil {
		return nil, &DialError{u.addr, failed}
	}
	if u.options.TLS == nil {
		return raw, nil
	}
	config := u.options.TLS.Clone()
	config.NextProtos = []string{"h2"}
	tc := tls.Client(raw, config)
	if err := tc.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, &DialError{u.addr, err}
	}
	if agreed := tc.ConnectionState().NegotiatedProtocol; agreed != "h2" {
		raw.Close()
		return nil, &DialError{u.addr, errors.New("it does not speak HTTP/2")}
	}
	return tc, nil
}

func (p *h2Pool) remove(c *h2client) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// Other goroutines may still read the old list.
	p.conns = slices.DeleteFunc(slices.Clone(p.conns), func(other *h2client) bool { return other == c })
	p.open.Store(int32(len(p.conns)))
}

// close implements pool. Connections in use are closed when their last exchange ends.
func (p *h2Pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.closeIdle()
}

// closeIdle implements pool. The next exchange opens a new connection.
func (p *h2Pool) closeIdle() {
	p.mu.Lock()
	conns := slices.Clone(p.conns)
	p.mu.Unlock()
	var b h2batch
	for _, c := range conns {
		c.leave(&b)
	}
	b.flush()
}
