package forward

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// clientConn is a client's connection, whatever it speaks: what the server and both shells know of
// it.
type clientConn struct {
	srv    *Server
	nc     net.Conn
	tls    *tls.Conn // nc again, when TLS is used
	remote netip.AddrPort
	gone   atomic.Bool // the client is gone, or the server cuts the connection
	shell  shell       // guarded by Server.mu
	heavy  int         // see Server.countHTTP2; guarded by Server.mu

	holds   int // see holdHead
	partial partialHead
}

// shell is a client's connection as its protocol serves it. All is called with Server.mu held.
type shell interface {
	// idleSince returns since when the connection has had no request, in Unix nanoseconds. It
	// returns woken or overdue if it is being closed, and 0 if it has a request.
	idleSince(now time.Time) int64
	// evict closes a connection without a request to make room for another. since is what idleSince
	// has said.
	evict(since int64)
	// stop closes the connection as soon as it has no request.
	stop()
	// cut ends it at once.
	cut()
}

// preface is what a client of HTTP/2 sends first (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

func (c *clientConn) init(s *Server, nc net.Conn, cfg *tls.Config) {
	nc = quick(nc)
	c.srv, c.nc = s, nc
	if cfg != nil {
		c.tls = tls.Server(nc, cfg)
		c.nc = c.tls
	}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		c.remote = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
}

func (c *clientConn) tlsBytes() int64 {
	if c.tls == nil {
		return 0
	}
	return tlsBytes
}

// tcp returns the client's connection below TLS.
func (c *clientConn) tcp() net.Conn {
	if c.tls != nil {
		return c.tls.NetConn()
	}
	return c.nc
}
