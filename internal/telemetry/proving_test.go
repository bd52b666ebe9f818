package telemetry

import (
	"net"
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

func TestStrangersPushOutThoseOfTheAddressThatHasMost(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := NewProving(plain, 4, 2)
	defer l.Close()
	connect := func(from string) (client, server net.Conn) {
		t.Helper()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		client, err := dialer.Dial("tcp", plain.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
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
