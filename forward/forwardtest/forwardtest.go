// Package forwardtest measures what a forwarded HTTP/1.1 request allocates, for tests of whatever
// forwards.
//
// Owns: a server on loopback and the connections to it, until the test ends. Never: allocates while
// a measurement runs, since the runtime counts for the whole process.
package forwardtest

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"
)

// Hello answers each request that arrives in one read with 200 and thirteen bytes. It returns its
// address.
func Hello(t testing.TB) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	return netip.MustParseAddrPort(l.Addr().String())
}

func answer(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 4096)
	reply := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, world!")
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}

// Allocations is how many allocations the process makes for one request to address, which has to be
// answered with 200.
func Allocations(t testing.TB, address, request string) float64 {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	raw, buf, ok := []byte(request), make([]byte, 4096), []byte("HTTP/1.1 200")
	return testing.AllocsPerRun(2000, func() {
		if _, err := c.Write(raw); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(buf); err != nil || !bytes.HasPrefix(buf[:n], ok) {
			t.Fatal(err, string(buf[:n]))
		}
	})
}
