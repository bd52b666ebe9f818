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
	"unsafe"
)

// Upstream is one address requests are forwarded to, with its idle connections. Make it once per
// address and share it.
type Upstream struct {
	addr    string
	options UpstreamOptions

	mu     sync.Mutex
	idle   []*upConn // a stack: the connection used last is the one most likely alive
	closed bool

	lesson atomic.Pointer[lesson]
	h2     h2Pool
}

// lesson is the shortest idle time after which an upstream was seen to close a connection.
// Connections idle for longer are not used for requests that could not be sent again.
type lesson struct {
	idle time.Duration
	at   time.Time
}

// lessonDoubles is how long it takes until twice the idle time is believed. An upstream that closes
// by an idle timeout teaches it again; one that was restarted had closed every connection, however
// young, and would cost a new connection for each such request for ever.
const lessonDoubles = time.Minute

// learned is the idle time that is believed now, 0 for none.
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

// UpstreamOptions tune an Upstream; the zero value is good.
type UpstreamOptions struct {
	MaxIdle     int           // idle connections kept; default 1000
	IdleTimeout time.Duration // an idle connection is closed after this; default 90 s
	DialTimeout time.Duration // default 5 s
	TLS         *tls.Config   // when set, connections use TLS; ServerName must be set in it
	// Dial replaces the plain TCP dial.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// NewUpstream makes the Upstream of "host:port". It opens no connection.
func NewUpstream(addr string, options UpstreamOptions) *Upstream {
	if options.MaxIdle <= 0 {
		options.MaxIdle = 1000
	}
	setDefault(&options.IdleTimeout, 90*time.Second)
	setDefault(&options.DialTimeout, 5*time.Second)
	if options.Dial == nil {
		options.Dial = dialTCP
	}
	return &Upstream{addr: addr, options: options}
}

// Addr is the address given to NewUpstream.
func (u *Upstream) Addr() string { return u.addr }

// Close closes the idle connections; connections in use are closed when their exchange ends.
func (u *Upstream) Close() {
	u.mu.Lock()
	idle := u.idle
	u.idle, u.closed = nil, true
	u.mu.Unlock()
	for _, c := range idle {
		c.close()
	}
	u.h2.close()
}

// DialError says that no connection to an upstream could be made, so nothing was sent to it.
type DialError struct {
	Addr string
	Err  error
}

func (e *DialError) Error() string { return fmt.Sprintf("connect to %s: %v", e.Addr, e.Err) }
func (e *DialError) Unwrap() error { return e.Err }

// upConn is one connection to an upstream. Between exchanges it holds no unread byte.
type upConn struct {
	net.Conn
	up       *Upstream
	raw      syscall.RawConn // the socket, below TLS where that is used; nil where there is none
	tls      *below          // nil without TLS
	reused   bool
	since    time.Time // idle since
	readEnd  time.Time // the read deadline set on the socket, zero for none
	writeEnd time.Time
	peekFn   func(fd uintptr)
	peeked   peekResult
}

type peekResult uint8

const (
	peekQuiet peekResult = iota
	peekClosed
	peekData
)

// get takes the idle connection used last, or dials. With careful set, a connection that may be
// about to be closed by the upstream is not taken.
func (u *Upstream) get(client *conn, now time.Time, careful bool) (*upConn, error) {
	for {
		u.mu.Lock()
		n := len(u.idle)
		if n == 0 {
			u.mu.Unlock()
			break
		}
		c := u.idle[n-1]
		u.idle[n-1] = nil
		u.idle = u.idle[:n-1]
		u.mu.Unlock()
		if !u.usable(c, now, careful) {
			c.close()
			continue
		}
		c.reused = true
		return c, nil
	}
	return u.dialFor(client)
}

func (u *Upstream) dialFor(client *conn) (*upConn, error) {
	ctx, cancel := client.contextFor()
	defer cancel()
	return u.dial(ctx)
}

// usable says whether an idle connection should carry a request now.
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
	// A look at the socket is a system call, so it is spent only where it pays: after a pause, or
	// where a failed attempt could not be repeated.
	if careful || idle > 100*time.Millisecond {
		switch c.peek() {
		case peekClosed:
			u.learn(idle, now)
			return false
		case peekData: // an upstream that talks first is broken
			return false
		}
	}
	return true
}

// learn notes that the upstream closed a connection which had been idle for this long.
func (u *Upstream) learn(idle time.Duration, now time.Time) {
	if idle < 10*time.Millisecond {
		return // closed at random rather than by an idle timeout
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

// put gives a connection back after a complete exchange.
func (u *Upstream) put(c *upConn, now time.Time) {
	c.since = now
	var old *upConn
	u.mu.Lock()
	if u.closed || len(u.idle) >= u.options.MaxIdle {
		u.mu.Unlock()
		c.close()
		return
	}
	// The bottom of the stack is the longest idle; look at one per put, so the stack shrinks after
	// a burst.
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

// below is a connection under TLS; it counts what is written to it.
type below struct {
	net.Conn
	wrote int // belongs to whoever writes the head
}

func (b *below) Write(p []byte) (int, error) {
	n, err := b.Conn.Write(p)
	b.wrote += n
	return n, err
}

// written is how much TLS has written, 0 without it.
func (c *upConn) written() int {
	if c.tls == nil {
		return 0
	}
	return c.tls.wrote
}

// peek looks whether the upstream closed the connection or sent something unasked. Under TLS an
// upstream that closes says so first, and what was sent unasked may be a ticket or a new key, which
// nobody has read: such a connection is given up for nothing, but that is rare.
func (c *upConn) peek() peekResult {
	c.peeked = peekQuiet
	// Control, because Read fails where the read deadline of the last exchange has passed.
	if c.raw != nil && c.raw.Control(c.peekFn) != nil {
		return peekClosed
	}
	if c.peeked == peekData && c.tls != nil && tcpClosing(c.raw) {
		return peekClosed
	}
	return c.peeked
}

func (c *upConn) peekOnce(fd uintptr) {
	var b [1]byte
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	switch {
	case errno == 0 && n > 0:
		c.peeked = peekData
	case errno == syscall.EAGAIN || errno == syscall.EINTR:
		c.peeked = peekQuiet
	default:
		c.peeked = peekClosed
	}
}
