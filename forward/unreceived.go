package forward

import (
	"errors"
	"io"
	"syscall"
	"unsafe"
)

// unreceived says whether it is certain that an upstream which died without a response took in no
// byte of the request of this many bytes (as TLS made them, where it is used), so that even a
// request that must not be carried out twice can be sent again (RFC 9110, section 9.2.2: a means to
// detect that the original request was never applied).
//
// It is certain when the upstream's end of stream (a FIN) came and its kernel has acknowledged none
// of these bytes: a FIN acknowledges all that arrived before it, and what arrives after a close is
// answered by a reset instead of being kept. A reset without a FIN proves nothing, because the
// kernel does not look at what a reset acknowledges.
func (c *upConn) unreceived(err error, size int) bool {
	if c.raw == nil || err != io.EOF && !errors.Is(err, syscall.EPIPE) { // EPIPE: a FIN and then a reset
		return false
	}
	if c.tls != nil && !tcpClosing(c.raw) {
		return false // TLS said that it ends, and no FIN came
	}
	pending := 0
	if c.raw.Control(func(fd uintptr) { pending = unacknowledged(fd) }) != nil {
		return false
	}
	return pending >= size && size > 0
}

// unacknowledged is the number of bytes written to a TCP socket that its peer has not acknowledged
// (SIOCOUTQ, tcp(7)); 0 where that cannot be told.
func unacknowledged(fd uintptr) int {
	var n int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCOUTQ, uintptr(unsafe.Pointer(&n))); errno != 0 {
		return 0
	}
	return int(n)
}
