// Package reserve reserves ports for tests that need one before somebody listens on it, or where
// nobody does.
//
// Owns: a socket for each port, which does not listen. Reads and writes: nothing. Never: gives a
// port that another process can get by asking for any.
package reserve

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
)

// Port returns a port of 127.0.0.1 as long as the test runs. Connections to it are refused until
// somebody listens on it by its number: the kernel allows that, because listeners share the address
// with sockets that do not listen (SO_REUSEADDR), but hands it out to nobody who asks for any port.
func Port(t testing.TB) netip.AddrPort {
	t.Helper()
	address, release, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return address
}

// Take is Port until the release.
func Take() (address netip.AddrPort, release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return address, nil, fmt.Errorf("reserve a port: %w", err)
	}
	release = func() { syscall.Close(fd) }
	at := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(fd, at)
	}
	if err == nil {
		var name syscall.Sockaddr
		if name, err = syscall.Getsockname(fd); err == nil {
			return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(name.(*syscall.SockaddrInet4).Port)), release, nil
		}
	}
	release()
	return address, nil, fmt.Errorf("reserve a port: %w", err)
}
