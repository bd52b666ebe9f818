package forward

import (
	"errors"
	"io"
	"syscall"
	"unsafe"
)

// unreceived reports whether an upstream that ended without a response certainly received no byte
// of the request, which has size bytes on the wire. Then even a request that is not idempotent can
// be sent again (RFC 9110, section 9.2.2: "a means to detect that the original request was never
// applied").
//
// It is certain if the upstream's FIN has arrived and its kernel has acknowledged none of these
// bytes. A FIN acknowledges everything that arrived before it, and what arrives after a close is
// answered with a reset. A reset without a FIN proves nothing, because the kernel ignores what a
// reset acknowledges.
func (c *upConn) unreceived(err error, size int) bool {
	if c.raw == nil || err != io.EOF && !errors.Is(err, syscall.EPIPE) { // EPIPE: a FIN and then a reset
		return false
	}
	if c.tls != nil && !tcpClosing(c.raw) {
		return false // only TLS has ended, without a FIN
	}
	pending := 0
	if c.raw.Control(func(fd uintptr) { pending = unacknowledged(fd) }) != nil {
		return false
	}
	return pending >= size && size > 0
}

// unacknowledged returns how many bytes written to a TCP socket its peer has not acknowledged
// (SIOCOUTQ, tcp(7)), or 0 if that is unknown.
func unacknowledged(fd uintptr) int {
	var n int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}
