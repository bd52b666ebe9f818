package telemetry

import (
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// ended reports whether a connection was closed by the other side.
func ended(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	timeout, ok := err.(net.Error)
	return err != nil && (!ok || !timeout.Timeout())
}

func dial(t *testing.T, from string, to net.Listener) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := dialer.Dial("tcp", to.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestStrangersPushOutThoseOfTheAddressThatHasMost(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewProving(plain, 4, 2, 100)
	defer l.Close()
	connect := func(from string) (client, server net.Conn) {
		t.Helper()
		client = dial(t, from, plain)
		if server, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		return client, server
	}
	one, oneServer := connect("127.0.0.1")
	first, _ := connect("127.0.0.2")
	second, secondServer := connect("127.0.0.2")
	third, _ := connect("127.0.0.2")
	fourth, _ := connect("127.0.0.2") // one too many
	if !ended(first) || ended(one) || ended(second) || ended(third) || ended(fourth) {
		t.Error("not the oldest of the address with most was closed")
	}
	l.Proven(oneServer)
	l.Proven(oneServer)
	fifth, _ := connect("127.0.0.2") // in the place that is free now
	if ended(second) || ended(fifth) {
		t.Error("who has proven who he is has a place of a stranger")
	}
	l.Proven(secondServer)
	for range 20 {
		connect("127.0.0.3")
	}
	if ended(one) || ended(second) {
		t.Error("strangers closed a connection that had proven who it is")
	}
	late, lateServer := connect("127.0.0.1")
	if l.Proven(lateServer); !ended(late) {
		t.Error("there are more proven ones than there may be")
	}
	oneServer.Close()
	oneServer.Close()
	next, nextServer := connect("127.0.0.1")
	if l.Proven(nextServer); ended(next) {
		t.Error("the place of a closed one is not free")
	}
	if l.proven != 2 || l.all != 3 {
		t.Errorf("%d proven, %d strangers are counted", l.proven, l.all)
	}
}

// The attack: a stranger connects again and again, for the handshakes that it costs.
func TestAnAddressHasSoManyNewConnectionsInASecond(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewProving(plain, 100, 2, 3)
	defer l.Close()
	var second atomic.Int64
	l.now = func() time.Time { return time.Unix(second.Load(), 0) }
	taken := make(chan net.Conn, 100)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken <- c
		}
	}()
	// come returns how many of so many connections are taken, and the last of those.
	come := func(from string, many int) (n int, last net.Conn) {
		for range many {
			dial(t, from, plain)
		}
		dial(t, "127.0.0.9", plain) // who is taken after them
		for c := range taken {
			if c.(*provingConn).from.String() == "127.0.0.9" {
				break
			}
			n, last = n+1, c
		}
		second.Add(1)
		return n, last
	}
	if n, _ := come("127.0.0.2", 20); n != 3 {
		t.Errorf("%d of a stranger are taken in a second", n)
	}
	n, one := come("127.0.0.2", 20)
	if n != 3 {
		t.Errorf("%d of a stranger are taken in the next second", n)
	}
	l.Proven(one)
	if n, _ := come("127.0.0.2", 20); n != 20 {
		t.Errorf("%d of 20 are taken from where somebody has proven who he is", n)
	}
	one.Close()
	if n, _ := come("127.0.0.2", 20); n != 3 {
		t.Errorf("%d are taken when that one is gone", n)
	}
}
