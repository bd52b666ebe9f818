package peers

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/transport/v5/deadline"
)

// Peer is the connection with one address: each Read is a datagram from it, each Write one to it.
type Peer struct {
	listener *Listener
	address  netip.AddrPort
	queue    chan []byte
	done     chan struct{}
	once     sync.Once
	reads    *deadline.Deadline
	last     atomic.Int64 // when its last datagram came, in nanoseconds
	busy     atomic.Int64
	proven   atomic.Bool
}

func newPeer(l *Listener, address netip.AddrPort) *Peer {
	return &Peer{listener: l, address: address, queue: make(chan []byte, l.options.Queue), done: make(chan struct{}), reads: deadline.New()}
}

// push puts a copy of a datagram into the queue and reports whether it had room.
func (p *Peer) push(datagram []byte) bool {
	p.last.Store(time.Now().UnixNano())
	select {
	case p.queue <- append([]byte(nil), datagram...):
		return true
	default:
		return false
	}
}

// Prove says that the peer has shown that its address is its own.
func (p *Peer) Prove() { p.proven.Store(true) }

// Hold keeps the peer from being closed for another's sake, until Release.
func (p *Peer) Hold() { p.busy.Add(1) }

// Release ends one Hold.
func (p *Peer) Release() { p.busy.Add(-1) }

// Read takes the next datagram. What does not fit into b is lost.
func (p *Peer) Read(b []byte) (int, error) {
	select {
	case <-p.done:
		return 0, net.ErrClosed
	case <-p.reads.Done():
		return 0, os.ErrDeadlineExceeded
	case datagram := <-p.queue:
		return copy(b, datagram), nil
	}
}

// Write sends a datagram.
func (p *Peer) Write(b []byte) (int, error) {
	select {
	case <-p.done:
		return 0, net.ErrClosed
	default:
		return p.listener.socket.WriteToUDPAddrPort(b, p.address)
	}
}

// Close ends the connection. Another datagram from the address begins a new one.
func (p *Peer) Close() error {
	p.listener.mutex.Lock()
	defer p.listener.mutex.Unlock()
	p.close()
	return nil
}

// close needs the listener's mutex.
func (p *Peer) close() {
	p.once.Do(func() { close(p.done) })
	if p.listener.peers[p.address] == p {
		delete(p.listener.peers, p.address)
	}
}

// Address is the peer's address.
func (p *Peer) Address() netip.AddrPort { return p.address }

func (p *Peer) LocalAddr() net.Addr  { return p.listener.socket.LocalAddr() }
func (p *Peer) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(p.address) }

// SetReadDeadline bounds how long Read waits.
func (p *Peer) SetReadDeadline(t time.Time) error {
	p.reads.Set(t)
	return nil
}

// SetWriteDeadline does nothing: writes do not wait.
func (p *Peer) SetWriteDeadline(time.Time) error { return nil }

func (p *Peer) SetDeadline(t time.Time) error { return p.SetReadDeadline(t) }
