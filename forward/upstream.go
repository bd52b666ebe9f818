package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Upstream is an address to which requests are forwarded, with its idle connections. Create one for
// each address and share it.
type Upstream struct {
	addr    string
	options UpstreamOptions

	mu     sync.Mutex
	idle   []*upConn // a stack: the connection used last is the most likely to be open
	closed bool

	lesson  atomic.Pointer[lesson]
	streams pool // the connections of HTTP/2

	noisy    atomic.Uint32 // the answerKinds after which it sent more than it announced
	overruns [len(answerNames)]atomic.Int64
}

// pool has the connections of a protocol.
type pool interface {
	close()     // no connection is kept any more
	closeIdle() // each ends as soon as nothing uses it
}

// lesson is the shortest idle time after which an upstream has closed a connection. A connection
// that has been idle for longer is not used for a request that could not be sent again.
type lesson struct {
	idle time.Duration
	at   time.Time
}

// lessonDoubles is how long it takes until twice the idle time is assumed. An upstream with an idle
// timeout will show it again. One that was restarted has closed all connections, also young ones;
// without forgetting that, each such request would need a new connection for ever.
const lessonDoubles = time.Minute

// learned returns the upstream's idle timeout as far as it is known, or 0.
func (u *Upstream) learned(now time.Time) time.Duration {
	l := u.lesson.Load()
	if l == nil {
		return 0
	}
	doubled := max(now.Sub(l.at)/lessonDoubles, 0)
	if doubled >= 20 || l.idle<<doubled >= u.options.IdleTimeout {
		return 0
	}
	return l.idle << doubled
}

// UpstreamOptions are the options of an Upstream. The zero value has the defaults.
type UpstreamOptions struct {
	MaxIdle     int           // the most idle connections; default 1000
	IdleTimeout time.Duration // after which an idle connection is closed; default 90 s
	DialTimeout time.Duration // default 5 s
	TLS         *tls.Config   // if set, connections use TLS; it must have a ServerName
	// OnOverrun, if set, is called when the upstream has sent more than it announced for the first
	// time after a kind of answer (see Overruns). From then on connections are closed after such
	// answers. It must not wait.
	OnOverrun func(answer string)
	// DeadAfter, if set, ends an exchange that its client has given up when the upstream's kernel
	// acknowledges nothing for so long. It acknowledges while a program hangs, and does not when
	// its node has no power: the connection would stay for about 15 minutes. The exchange also ends
	// when the program does not read for so long what was sent to it.
	DeadAfter time.Duration
	// Dial replaces the TCP dial.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Addr returns the address given to NewUpstream.
func (u *Upstream) Addr() string { return u.addr }

// Close closes the idle connections. Connections in use are closed when their exchange ends.
func (u *Upstream) Close() {
	u.mu.Lock()
	u.closed = true
	u.mu.Unlock()
	u.CloseIdle()
	u.streams.close()
}

// CloseIdle closes the connections that nothing uses. The next exchange opens a new one.
func (u *Upstream) CloseIdle() {
	u.mu.Lock()
	idle := u.idle
	u.idle = nil
	u.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
	u.streams.closeIdle()
}

// DialError means that no connection to an upstream could be made, so nothing was sent to it.
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string { return fmt.Sprintf("connect to %s: %v", e.Addr, e.Err) }
func (e *DialError) Unwrap() error { return e.Err }

// upConn is a connection to an upstream. An idle one has no unread bytes.
type upConn struct {
	net.Conn
	up       *Upstream
	raw      syscall.RawConn // the socket below TLS, or nil
	tls      *below          // nil without TLS
	reused   bool
	since    time.Time // idle since
	readEnd  time.Time // the socket's read deadline; zero means none
	writeEnd time.Time
	answers  answerKind // whose ends were announced so, on this connection
	last     answerKind
	peekFn   func(fd uintptr)
	peeked   peekResult
	one      [1]byte
	unpeeked bool // idle, and not looked at yet: see ask.go
}

// takeIdle returns the idle connection used last, or nil. If careful is true, it is none that the
// upstream may be about to close. If later is true, the first look at it may be that of the read
// (see ask.go).
func (u *Upstream) takeIdle(now time.Time, careful, later bool) *upConn {
	for {
		u.mu.Lock()
		n := len(u.idle)
		if n == 0 {
			u.mu.Unlock()
			return nil
		}
		c := u.idle[n-1]
		u.idle[n-1] = nil
		u.idle = u.idle[:n-1]
		u.mu.Unlock()
		c.unpeeked = later && c.peeksLater(now)
		if !u.usable(c, now, careful) {
			c.close()
			continue
		}
		c.reused = true
		return c
	}
}

// usable reports whether an idle connection can be used now.
func (u *Upstream) usable(c *upConn, now time.Time, careful bool) bool {
	idle := now.Sub(c.since)
	if idle >= u.options.IdleTimeout {
		return false
	}
	if careful && idle > 5*time.Millisecond {
		if learned := u.learned(now); learned > 0 && idle > learned-learned/10-50*time.Millisecond {
			return false
		}
	}
	if c.answers&u.distrusted() != 0 {
		return false
	}
	return c.unpeeked || c.heard(c.peek(), now)
}

// learn records that the upstream closed a connection that had been idle for this long.
func (u *Upstream) learn(idle time.Duration, now time.Time) {
	if idle < 10*time.Millisecond {
		return // not an idle timeout
	}
	if old := u.learned(now); old == 0 || idle < old {
		u.lesson.Store(&lesson{idle, now})
	}
}

func (u *Upstream) dial(ctx context.Context) (*upConn, error) {
	ctx, cancel := context.WithTimeout(ctx, u.options.DialTimeout)
	defer cancel()
	nc, err := u.options.Dial(ctx, u.addr)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
			err = cause
		}
		return nil, &DialError{u.addr, err}
	}
	nc = quick(nc)
	c := &upConn{Conn: nc, up: u}
	if u.options.TLS != nil {
		c.tls = &below{Conn: nc}
		tc := tls.Client(c.tls, u.options.TLS)
		if err := tc.HandshakeContext(ctx); err != nil {
			nc.Close()
			return nil, &DialError{u.addr, err}
		}
		c.Conn = tc
	}
	if sc, ok := nc.(syscall.Conn); ok {
		c.raw, _ = sc.SyscallConn()
		c.peekFn = c.peekOnce
	}
	return c, nil
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: 30 * time.Second}
	return d.DialContext(ctx, "tcp", addr)
}

// put makes a connection idle after a complete exchange.
func (u *Upstream) put(c *upConn, now time.Time) {
	c.since = now
	var old *upConn
	u.mu.Lock()
	if u.closed || len(u.idle) >= u.options.MaxIdle {
		u.mu.Unlock()
		c.close()
		return
	}
	// The bottom of the stack has been idle the longest. Each put checks it, so that the stack
	// shrinks after a burst.
	if len(u.idle) > 0 && now.Sub(u.idle[0].since) >= u.options.IdleTimeout {
		old = u.idle[0]
		copy(u.idle, u.idle[1:])
		u.idle = u.idle[:len(u.idle)-1]
	}
	u.idle = append(u.idle, c)
	u.mu.Unlock()
	if old != nil {
		old.close()
	}
}

func (c *upConn) close() { c.Conn.Close() }

// socket is the connection below TLS.
func (c *upConn) socket() net.Conn {
	if c.tls != nil {
		return c.tls.Conn
	}
	return c.Conn
}

// closeWrite tells the upstream that no more comes. It sends no TLS alert, which would wait for an
// upstream that does not read.
func (c *upConn) closeWrite() {
	if wait := c.up.options.DeadAfter; wait > 0 && c.raw != nil {
		setUserTimeout(c.raw, wait)
	}
	closeWrite(c.socket())
}

// reset closes the connection such that the upstream's next write fails.
func (c *upConn) reset() {
	resetOnClose(c.socket())
	c.socket().Close()
}
