package telemetry

import (
	"net"
	"net/netip"
	"sync"
)

// Bound returns a listener that closes a new connection at once when maxOpen are open already, or
// maxOfOne from the same address. One peer can take no more than its share of the server's memory,
// and does not keep others out.
//
// Its connections end politely: see boundConn.Close.
func Bound(listener net.Listener, maxOpen, maxOfOne int) net.Listener {
	return &boundListener{Listener: listener, maxOpen: maxOpen, maxOfOne: maxOfOne, of: map[netip.Addr]int{}}
}

type boundListener struct {
	net.Listener
	maxOpen, maxOfOne int

	mu   sync.Mutex
	open int
	of   map[netip.Addr]int
}

// Accept implements net.Listener.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
		from := peer.Addr().Unmap()
		if l.enter(from) {
			return &boundConn{Conn: conn, leave: func() { l.leave(from) }}, nil
		}
		conn.Close()
	}
}

func (l *boundListener) enter(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= l.maxOpen || l.of[from] >= l.maxOfOne {
		return false
	}
	l.open++
	l.of[from]++
	return true
}

func (l *boundListener) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.of[from]--; l.of[from] == 0 {
		delete(l.of, from)
	}
}
