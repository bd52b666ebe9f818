package peers

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"
)

func listen(t *testing.T, address string, o Options) *Listener {
	t.Helper()
	l, err := Listen(address, o)
	if err != nil {
		t.Skip("cannot listen:", err)
	}
	t.Cleanup(func() { l.socket.Close() })
	return l
}

func address(host byte, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), port)
}

var roomy = Options{MaxPeers: 4, Unproven: 4, NewPeers: 1000, Datagrams: 1000, Burst: 1000, Queue: 2, Size: 100, Dropped: func(string) {}}

func TestAPeerIsAConnection(t *testing.T) {
	for _, on := range []string{"127.0.0.1:0", "[::]:0"} {
		l := listen(t, on, roomy)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- l.Run(ctx, func(p *Peer) {
				buffer := make([]byte, 100)
				for {
					n, err := p.Read(buffer)
					if err != nil {
						return
					}
					p.Write(append([]byte("got "), buffer[:n]...))
				}
			})
		}()
		conn, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.UDPAddr).Port))
		if err != nil {
			t.Fatal(err)
		}
		conn.Write([]byte("a"))
		conn.SetReadDeadline(time.Now().Add(20 * time.Second))
		buffer := make([]byte, 100)
		if n, err := conn.Read(buffer); string(buffer[:n]) != "got a" {
			t.Errorf("on %s: got %q %v", on, buffer[:n], err)
		}
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestTheIdlestPeerGoesAndOneWithAKeyStays(t *testing.T) {
	o := roomy
	o.Unproven = 3
	l := listen(t, "127.0.0.1:0", o)
	now := time.Now()
	find := func(port uint16) *Peer {
		p, _, reason := l.find(address(1, port), 1, now)
		if reason != "" {
			t.Fatalf("peer %d: %s", port, reason)
		}
		p.last.Store(int64(port))
		return p
	}
	proven, busy, idle := find(1), find(2), find(3)
	proven.Prove()
	busy.Hold()
	find(4)
	find(5) // the fifth: 3 goes
	if l.peers[address(1, 3)] != nil || l.peers[address(1, 1)] != proven || l.peers[address(1, 2)] != busy {
		t.Errorf("there are %v", l.peers)
	}
	if _, err := idle.Read(nil); err != net.ErrClosed {
		t.Errorf("the peer that went reads %v", err)
	}
	for _, port := range []uint16{4, 5} {
		l.peers[address(1, port)].Hold()
	}
	if _, _, reason := l.find(address(1, 6), 1, now); reason != "peers" {
		t.Errorf("with all busy: %q", reason)
	}
}

func TestDatagramsAreDroppedForAReason(t *testing.T) {
	o := roomy
	o.Datagrams, o.Burst = 1, 3
	l := listen(t, "127.0.0.1:0", o)
	now := time.Now()
	if _, _, reason := l.find(address(1, 1), 101, now); reason != "size" {
		t.Errorf("too long: %q", reason)
	}
	for i := range 4 {
		_, _, reason := l.find(address(1, uint16(i)), 1, now) // another port is the same address
		if want := map[bool]string{false: "", true: "rate"}[i == 3]; reason != want {
			t.Errorf("datagram %d: %q, want %q", i, reason, want)
		}
	}
	if _, _, reason := l.find(address(2, 1), 1, now); reason != "" {
		t.Errorf("another address: %q", reason)
	}
	p := newPeer(l, address(1, 1))
	if !p.push([]byte("a")) || !p.push([]byte("b")) || p.push([]byte("c")) {
		t.Error("a queue of two takes two")
	}
	if l.Sweep(now.Add(time.Minute)); len(l.rates) != 0 {
		t.Errorf("%d limiters are kept", len(l.rates))
	}
	for i := range maxAddresses + 10 {
		l.find(netip.AddrPortFrom(netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 8), byte(i)}), 1), 1, now)
	}
	if len(l.rates) != maxAddresses {
		t.Errorf("%d limiters, want %d", len(l.rates), maxAddresses)
	}
}

func TestReadsEndAtTheirDeadline(t *testing.T) {
	p := newPeer(listen(t, "127.0.0.1:0", roomy), address(1, 1))
	p.SetReadDeadline(time.Now().Add(time.Millisecond))
	if _, err := p.Read(nil); err != os.ErrDeadlineExceeded {
		t.Errorf("got %v", err)
	}
	p.SetReadDeadline(time.Time{})
	p.push([]byte("a"))
	if n, err := p.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("got %d %v", n, err)
	}
}
