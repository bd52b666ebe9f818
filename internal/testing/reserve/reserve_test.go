package reserve

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
)

func TestAReservedPortIsForWhoNamesIt(t *testing.T) {
	reserved := Port(t)
	if _, err := net.Dial("tcp", reserved.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("nobody listens: %v", err)
	}
	for range 2 { // a process that is started again
		for _, address := range []string{reserved.String(), fmt.Sprintf(":%d", reserved.Port())} {
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", reserved.String())
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			l.Close()
		}
	}
}

func TestWhoAsksForAnyPortGetsNoReservedOne(t *testing.T) {
	const localPortRange = 51 // IP_LOCAL_PORT_RANGE: from which a socket gets any port
	reserved, release, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	only := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, localPortRange, int(reserved.Port())|int(reserved.Port())<<16)
		})
		return err
	}}
	_, err = only.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if errors.Is(err, syscall.ENOPROTOOPT) {
		t.Skip("this kernel has one range of ports for all sockets")
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("while it is reserved: %v", err)
	}
	release()
	l, err := only.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("after that: %v", err)
	}
	l.Close()
}
