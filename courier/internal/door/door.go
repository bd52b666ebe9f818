// Package door lets clients in: it bounds connections, and what heads of requests take that have
// not come whole.
//
// Owns: the listener. Reads: as many bytes as it lets a head have. Writes: nothing. Never: judges a
// request.
package door

import (
	"container/list"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"ebb.dev/ebb/internal/shares"
	"ebb.dev/ebb/internal/telemetry"
)

const (
	// most is how many connections there are, maxOfOne those from one address. A gateway has one
	// address for all of its clients. Beyond them a new one takes the place of another that has no
	// request, so that idle connections and heads that do not end keep out neither a gateway nor
	// the kubelet, whose probe would take the courier from all.
	most, maxOfOne = 2048, 1024
	// maxHead bounds a request's head; headWait is how long it may take.
	maxHead  = 64 << 10
	headWait = 5 * time.Second
	idleWait = 2 * time.Minute
	// answerWait is how long a request may take with its body and its answer. Answers with results
	// have a time of their own.
	answerWait = 6 * time.Minute
	// uncounted is what each connection has for a head. What longer heads take is counted together,
	// up to heads, of which each address has a share. Reading a head takes twice its length.
	uncounted = 4 << 10
	heads     = 32 << 20
)

// Server returns a server of a handler for a Listener. It speaks HTTP/1.1 only, as gateways do with
// it: a connection has one request at a time.
func Server(handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{MaxHeaderBytes: maxHead, ReadHeaderTimeout: headWait, IdleTimeout: idleWait, WriteTimeout: answerWait, Protocols: protocols,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, key{}, c) },
		ConnState: func(c net.Conn, state http.ConnState) {
			if one, ok := c.(*conn); ok && state == http.StateIdle {
				one.waiting(true)
				one.reading(true)
			}
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if one, ok := r.Context().Value(key{}).(*conn); ok {
				one.waiting(false)
				one.reading(false)
			}
			handler.ServeHTTP(w, r)
		})}
}

type key struct{}

// Listener bounds the connections of another one.
func Listener(of net.Listener) net.Listener {
	return &listener{Listener: of, heads: shares.New(heads), of: map[string]int{}, waiting: list.New()}
}

type listener struct {
	net.Listener
	heads *shares.Pool

	mu      sync.Mutex
	all     int
	of      map[string]int // those of each address
	waiting *list.List     // *conn without a request, also closed ones, the first for longest
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, _ := netip.ParseAddrPort(raw.RemoteAddr().String())
		c := &conn{raw: raw, at: l, from: peer.Addr().Unmap().String(), inHead: true}
		c.Conn = telemetry.Polite(raw, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.leave(c)
		})
		replaced, entered := l.enter(c)
		if replaced != nil {
			replaced.raw.Close() // and its server sees that
		}
		if entered {
			return c, nil
		}
		raw.Close()
	}
}

// enter gives a connection a place, or that of the one that has been without a request longest: of
// its own address, if that has all of its places.
func (l *listener) enter(c *conn) (replaced *conn, entered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if full := l.of[c.from] >= maxOfOne; full || l.all >= most {
		for e := l.waiting.Front(); e != nil && replaced == nil; e = e.Next() {
			if one := e.Value.(*conn); !full || one.from == c.from {
				replaced = one
			}
		}
		if replaced == nil {
			return nil, false
		}
		l.leave(replaced)
	}
	l.all++
	l.of[c.from]++
	c.waits = l.waiting.PushBack(c)
	return replaced, true
}

// leave takes away the place of a connection. The caller holds the lock.
func (l *listener) leave(c *conn) {
	if c.left {
		return
	}
	c.left = true
	if c.waits != nil {
		l.waiting.Remove(c.waits)
	}
	l.all--
	if l.of[c.from]--; l.of[c.from] == 0 {
		delete(l.of, c.from)
	}
}

// conn counts what the head takes that it reads.
type conn struct {
	net.Conn
	raw   net.Conn // below it
	at    *listener
	from  string
	waits *list.Element // of at.waiting; at.mu guards it, and left
	left  bool

	mu     sync.Mutex
	inHead bool
	read   int   // of the head
	taken  int64 // of heads
}

// refusal is the answer to a head for which there is no room.
const refusal = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 2\r\nConnection: close\r\n\r\n" +
	"the heads of requests of this address that have not come whole take its share of memory: send fewer at once, or shorter ones\n"

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.count(n) {
		_ = c.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(c.Conn, refusal)
		c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// CloseWrite tells the client that no more comes.
func (c *conn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

func (c *conn) count(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.inHead {
		return true
	}
	if c.read += n; c.read <= uncounted {
		return true
	}
	more := 2*int64(c.read) - c.taken
	if !c.at.heads.Take(c.from, more) {
		return false
	}
	c.taken += more
	return true
}

// reading says whether a head is read, or has come.
func (c *conn) reading(head bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inHead, c.read = head, 0
	c.at.heads.Give(c.from, c.taken)
	c.taken = 0
}

// waiting says whether the connection has no request now.
func (c *conn) waiting(waits bool) {
	c.at.mu.Lock()
	defer c.at.mu.Unlock()
	if c.left {
		return
	}
	if c.waits != nil {
		c.at.waiting.Remove(c.waits)
		c.waits = nil
	}
	if waits {
		c.waits = c.at.waiting.PushBack(c)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.waiting(true)
	c.reading(false)
	return c.Conn.Close()
}
