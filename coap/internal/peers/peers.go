// Package peers divides a UDP socket by who sends, so that each peer is a connection of its own.
//
// Owns: the socket, the table of peers and their queues, all bounded. Reads: datagrams. Never:
// waits for a peer: a datagram that its peer has no room for is dropped, as networks do.
package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Options are the bounds of a socket.
type Options struct {
	MaxPeers  int        // peers at a time
	Unproven  int        // of these, peers that did not prove that they can read what is sent to them
	NewPeers  rate.Limit // new peers in a second
	Datagrams rate.Limit // datagrams in a second from one address (IPv6: /64)
	Burst     int        // datagrams at once from one address
	Queue     int        // datagrams that wait for one peer
	Size      int        // bytes of the largest datagram
	// Dropped is told why a datagram is dropped: size, rate, peers or queue.
	Dropped func(reason string)
}

// Listener is a socket.
type Listener struct {
	options  Options
	socket   *net.UDPConn
	newPeers *rate.Limiter

	mutex sync.Mutex
	peers map[netip.AddrPort]*Peer
	rates map[netip.Prefix]*rate.Limiter
	crowd *rate.Limiter // of addresses for which there is no limiter of their own
}

// maxAddresses is how many addresses have a limiter of their own, of about 100 bytes.
const maxAddresses = 4096

// Listen opens the socket.
func Listen(address string, o Options) (*Listener, error) {
	local, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	socket, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return &Listener{options: o, socket: socket, newPeers: rate.NewLimiter(o.NewPeers, max(1, int(o.NewPeers))),
		peers: map[netip.AddrPort]*Peer{}, rates: map[netip.Prefix]*rate.Limiter{}, crowd: rate.NewLimiter(o.Datagrams*4, o.Burst*4)}, nil
}

// Addr is where the socket listens.
func (l *Listener) Addr() net.Addr { return l.socket.LocalAddr() }

// Len is how many peers there are.
func (l *Listener) Len() int {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return len(l.peers)
}

// Run calls serve with each new peer, in a goroutine of its own, and closes the peer when serve
// returns. It returns when ctx is done and all of serve have returned.
func (l *Listener) Run(ctx context.Context, serve func(*Peer)) error {
	var serving sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { l.socket.Close() })
	defer func() {
		stop()
		l.socket.Close()
		l.closeAll()
		serving.Wait()
	}()
	buffer := make([]byte, l.options.Size+1) // one more, to tell datagrams that are too long
	for {
		n, from, err := l.socket.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			continue // an ICMP error of an earlier answer
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		peer, created, reason := l.find(from, n, time.Now())
		if reason == "" && !peer.push(buffer[:n]) {
			reason = "queue"
		}
		if reason != "" {
			l.options.Dropped(reason)
		}
		if created {
			serving.Go(func() {
				defer peer.Close()
				serve(peer)
			})
		}
	}
}

// find returns the peer that a datagram is from, or why it is dropped.
func (l *Listener) find(from netip.AddrPort, size int, now time.Time) (peer *Peer, created bool, dropped string) {
	if size > l.options.Size {
		return nil, false, "size"
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !l.limiter(from.Addr()).AllowN(now, 1) {
		return nil, false, "rate"
	}
	if peer = l.peers[from]; peer != nil {
		return peer, false, ""
	}
	if !l.newPeers.AllowN(now, 1) || !l.makeRoom() {
		return nil, false, "peers"
	}
	peer = newPeer(l, from)
	l.peers[from] = peer
	return peer, true, ""
}

// limiter is the limiter of an address. Beyond the most, all new addresses share one.
func (l *Listener) limiter(address netip.Addr) *rate.Limiter {
	bits := address.BitLen()
	if address.Is6() {
		bits = 64
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return l.crowd // an address with a zone
	}
	if known := l.rates[prefix]; known != nil {
		return known
	}
	if len(l.rates) >= maxAddresses {
		return l.crowd
	}
	fresh := rate.NewLimiter(l.options.Datagrams, l.options.Burst)
	l.rates[prefix] = fresh
	return fresh
}

// Sweep forgets the limiters that would allow all. It is called about once in a second.
func (l *Listener) Sweep(now time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for prefix, limiter := range l.rates {
		if limiter.TokensAt(now) >= float64(l.options.Burst) {
			delete(l.rates, prefix)
		}
	}
}

// makeRoom closes the idle peer whose last datagram is the oldest, if a new one has no room. Peers
// that have proved who they are stay while there is one that did not. It reports whether there is
// room.
func (l *Listener) makeRoom() bool {
	unproven := 0
	var oldest, oldestProven *Peer
	for _, p := range l.peers {
		into := &oldest
		if p.proven.Load() {
			into = &oldestProven
		} else {
			unproven++
		}
		if p.busy.Load() == 0 && (*into == nil || p.last.Load() < (*into).last.Load()) {
			*into = p
		}
	}
	if len(l.peers) < l.options.MaxPeers && unproven < l.options.Unproven {
		return true
	}
	if oldest == nil && unproven < l.options.Unproven {
		oldest = oldestProven
	}
	if oldest == nil {
		return false
	}
	oldest.close()
	return true
}

func (l *Listener) closeAll() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	for _, p := range l.peers {
		p.close()
	}
}
