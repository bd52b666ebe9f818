package forward

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// ErrServerClosed is returned by Serve after Shutdown or Close.
var ErrServerClosed = errors.New("the server was shut down")

// Serve accepts connections until the listener fails or the server is shut down, which closes the
// listener, even if it was before Serve. Each listener accepts HTTP/1.1 and HTTP/2 with prior
// knowledge.
func (s *Server) Serve(l net.Listener) error { return s.serve(l, nil) }

// ServeTLS is Serve with TLS, by Server.TLS.
func (s *Server) ServeTLS(l net.Listener) error {
	if s.TLS == nil {
		return errors.New("ServeTLS without Server.TLS")
	}
	cfg := s.TLS.Clone()
	cfg.NextProtos = []string{"h2", "http/1.1"}
	return s.serve(l, cfg)
}

func (s *Server) serve(l net.Listener, cfg *tls.Config) error {
	s.init()
	s.mu.Lock()
	if s.stopped.Load() {
		s.mu.Unlock()
		l.Close() // else clients would wait in its backlog
		return ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	var pause time.Duration
	for {
		nc, err := l.Accept()
		if err != nil {
			if s.stopped.Load() {
				return ErrServerClosed
			}
			// Running out of file descriptors is no reason to stop serving: back off and continue.
			var ne net.Error
			if errors.As(err, &ne) && !errors.Is(err, net.ErrClosed) {
				pause = min(max(2*pause, 5*time.Millisecond), time.Second)
				t := time.NewTimer(pause)
				<-t.C
				continue
			}
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		pause = 0
		c := newConn(s, nc, cfg)
		if !s.track(&c.clientConn) {
			nc.Close()
			return ErrServerClosed
		}
		go c.serve()
	}
}

// serve serves a connection to its end. It begins with HTTP/1.1 and may turn out to be one of
// HTTP/2.
func (c *conn) serve() {
	defer c.srv.untrack(&c.clientConn)
	defer c.nc.Close()
	defer c.releaseHead() // of HTTP/2
	defer func() {
		if v := recover(); v != nil {
			c.srv.caught(v)
			c.abandon(v)
		}
	}()
	if c.tls != nil {
		c.nc.SetDeadline(c.sends().Add(c.srv.HeaderTimeout))
		if err := c.tls.HandshakeContext(c.srv.base); err != nil || !c.hasSent() {
			return
		}
		c.nc.SetDeadline(time.Time{})
		if c.tls.ConnectionState().NegotiatedProtocol == "h2" {
			serveH2(&c.clientConn, nil)
			return
		}
	}
	c.prepare()
	for {
		switch c.readHead() {
		case headOK:
		case headHTTP2:
			read := bytes.Clone(c.in[c.inR:c.inW])
			c.in, c.out, c.rb = nil, nil, nil
			serveH2(&c.clientConn, read)
			return
		default:
			return
		}
		if !c.exchange() {
			if c.lingering {
				c.linger()
			}
			return
		}
		c.served++
	}
}

func (s *Server) track(c *clientConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.crowded() {
		s.awaitRoomLocked()
	}
	if s.stopped.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) untrack(c *clientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.heavy -= c.heavy
	if s.waiting > 0 {
		select {
		case s.room <- struct{}{}:
		default:
		}
	}
	if s.stopped.Load() && len(s.conns) == 0 {
		s.closeEmptyLocked()
	}
}

func (s *Server) closeEmptyLocked() {
	select {
	case <-s.empty:
	default:
		close(s.empty)
	}
}

// SetDraining adds "Connection: close" to every further response. Requests are still accepted, and
// clients move away before Shutdown.
func (s *Server) SetDraining(on bool) { s.draining.Store(on) }

// Upgraded is the number of open upgraded (WebSocket) connections.
func (s *Server) Upgraded() int { return int(s.upgraded.Load()) }

// Rejected counts malformed requests, which never reached Admit.
func (s *Server) Rejected() int64 { return s.rejected.Load() }

// Shutdown closes the listeners and idle connections. It waits until every exchange, including
// upgraded ones, has finished or ctx ends, and then cuts the rest.
func (s *Server) Shutdown(ctx context.Context) error {
	s.init()
	s.mu.Lock()
	s.stopLocked()
	for c := range s.conns {
		c.shell.stop()
	}
	if len(s.conns) == 0 {
		s.closeEmptyLocked()
	}
	s.mu.Unlock()
	var err error
	select {
	case <-s.empty:
	case <-ctx.Done():
		err = fmt.Errorf("shut down with exchanges in flight: %w", context.Cause(ctx))
	}
	s.Close()
	return err
}

// stopLocked closes the listeners, and makes every response the last one on its connection.
func (s *Server) stopLocked() {
	s.draining.Store(true)
	s.stopped.Store(true)
	for l := range s.listeners {
		l.Close()
	}
}

// Close cuts everything at once.
func (s *Server) Close() {
	s.init()
	s.mu.Lock()
	s.stopLocked()
	for c := range s.conns {
		c.shell.cut()
	}
	s.mu.Unlock()
	s.cancel()
}

// NewUpstream returns the Upstream of "host:port". It opens no connection.
func NewUpstream(addr string, options UpstreamOptions) *Upstream {
	if options.MaxIdle <= 0 {
		options.MaxIdle = 1000
	}
	setDefault(&options.IdleTimeout, 90*time.Second)
	setDefault(&options.DialTimeout, 5*time.Second)
	if options.Dial == nil {
		options.Dial = dialTCP
	}
	u := &Upstream{addr: addr, options: options}
	u.streams = &h2Pool{u: u}
	return u
}
