package telemetry

import (
	"crypto/tls"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Proving is a listener of a server whose clients prove who they are, while strangers can connect,
// too. What has not proven anything has few places: beyond them the oldest goes, of the address
// that has most, so neither many connections nor slow handshakes keep out who can prove himself.
// Each new connection may cost a handshake, so an address has so many in a second, and others are
// closed at once, unless a connection of the address is open that has proven who it is.
type Proving struct {
	net.Listener
	maxStrangers, maxProven, maxInASecond int
	now                                   func() time.Time

	mu     sync.Mutex
	by     map[netip.Addr][]*provingConn // strangers, oldest first
	all    int                           // of by
	known  map[netip.Addr]int            // proven ones
	proven int                           // of known
	second int64                         // since 1970
	came   map[netip.Addr]int            // in it
}

// NewProving returns a Proving listener with places for so many that have not proven who they are,
// and so many that have, and for so many new ones of one address in a second.
func NewProving(listener net.Listener, maxStrangers, maxProven, maxInASecond int) *Proving {
	return &Proving{Listener: listener, maxStrangers: maxStrangers, maxProven: maxProven, maxInASecond: maxInASecond, now: time.Now,
		by: map[netip.Addr][]*provingConn{}, known: map[netip.Addr]int{}, came: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *Proving) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, _ := netip.ParseAddrPort(raw.RemoteAddr().String())
		c := &provingConn{Conn: raw, listener: l, from: peer.Addr().Unmap()}
		tooOften, evicted := l.enter(c)
		if evicted != nil {
			evicted.Conn.Close()
		}
		if !tooOften {
			return c, nil
		}
		raw.Close()
	}
}

func (l *Proving) enter(c *provingConn) (tooOften bool, evicted *provingConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.now().Unix(); now != l.second {
		l.second = now
		clear(l.came)
	}
	if l.came[c.from]++; l.came[c.from] > l.maxInASecond && l.known[c.from] == 0 {
		return true, nil
	}
	if l.all >= l.maxStrangers {
		var most []*provingConn
		for _, of := range l.by {
			if len(of) > len(most) {
				most = of
			}
		}
		evicted = most[0]
		l.leave(evicted)
	}
	c.state = stranger
	l.by[c.from] = append(l.by[c.from], c)
	l.all++
	return false, evicted
}

// leave takes a connection off the count. The caller holds the lock.
func (l *Proving) leave(c *provingConn) {
	switch c.state {
	case known:
		l.proven--
		if l.known[c.from]--; l.known[c.from] == 0 {
			delete(l.known, c.from)
		}
	case stranger:
		of := l.by[c.from]
		for i, one := range of {
			if one == c {
				of = append(of[:i:i], of[i+1:]...)
				break
			}
		}
		if l.all--; len(of) == 0 {
			delete(l.by, c.from)
		} else {
			l.by[c.from] = of
		}
	}
	c.state = gone
}

// Proven says that the client of a connection, or of the TLS connection over it, has proven who it
// is. Beyond the places for those, the connection is closed.
func (l *Proving) Proven(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	c, ok := conn.(*provingConn)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.state != stranger {
		return
	}
	l.leave(c)
	if l.proven >= l.maxProven {
		c.Conn.Close()
		return
	}
	c.state = known
	l.proven++
	l.known[c.from]++
}

// States of a provingConn. One that is gone has no place any more.
const (
	gone = iota
	stranger
	known
)

type provingConn struct {
	net.Conn
	listener *Proving
	from     netip.Addr
	state    int
}

// Close implements net.Conn.
func (c *provingConn) Close() error {
	c.listener.mu.Lock()
	c.listener.leave(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
