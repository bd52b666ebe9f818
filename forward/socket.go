package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// socket is a TCP connection whose reads and writes are not system calls to Go's scheduler. A call
// on a non-blocking socket only takes CPU time, but the runtime's monitor takes the P away from a
// thread that it sees in a system call, and then looks every 20 us. At ten thousand requests a
// second this preempts the working thread, wakes another one, and takes CPU time from the user
// container (decision 14).
//
// The goroutine still waits in the runtime's poller, with deadlines and Close as in net.TCPConn.
// One goroutine reads and one writes at a time. Others wait.
type socket struct {
	*net.TCPConn
	raw           syscall.RawConn
	reads, writes transfer
	asks          asking
}

// transfer is a read or a write in progress. It is part of the socket, so that it needs no
// allocation.
type transfer struct {
	mu  sync.Mutex
	b   []byte
	n   int
	err syscall.Errno
	try func(fd uintptr) (done bool)
}

// quick returns a connection that does what nc does. If nc is a TCP connection, it avoids the cost
// of system calls.
func quick(nc net.Conn) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nc
	}
	setUnsent(raw, unsentBytes)
	s := &socket{TCPConn: tcp, raw: raw}
	s.reads.try = s.tryRead
	s.writes.try = s.tryWrite
	s.asks.try = s.tryAsk
	return s
}

// unsentBytes is how much the kernel keeps for a peer beyond what is on its way. By itself it keeps
// up to 4 MiB for each connection whose peer does not read, and a few thousand of those take the
// memory that the kernel has for all connections of the node.
const unsentBytes = 64 << 10

// setUnsent sets TCP_NOTSENT_LOWAT (tcp(7)). Without it the connection works as well.
func setUnsent(raw syscall.RawConn, n int) {
	const notSentLowAt = 25
	raw.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, notSentLowAt, n) })
}

// setUserTimeout sets TCP_USER_TIMEOUT (tcp(7)).
func setUserTimeout(raw syscall.RawConn, wait time.Duration) {
	const userTimeout = 18
	raw.Control(func(fd uintptr) {
		syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, userTimeout, int(wait.Milliseconds()))
	})
}

// isTCP reports whether a connection is TCP itself and not a layer above it.
func isTCP(nc net.Conn) bool {
	switch nc.(type) {
	case *socket, *net.TCPConn:
		return true
	}
	return false
}

// closeWrite closes the writing side of a connection. It reports false if that cannot be closed
// alone.
func closeWrite(nc net.Conn) bool {
	half, ok := nc.(interface{ CloseWrite() error })
	if ok {
		half.CloseWrite()
	}
	return ok
}

// resetOnClose has a later Close reset the connection: its peer cannot take that for an end, and
// the kernel drops what the peer has not read.
func resetOnClose(nc net.Conn) {
	if tcp, ok := nc.(interface{ SetLinger(seconds int) error }); ok {
		tcp.SetLinger(0)
	}
}

func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	t := &s.reads
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b, t.n, t.err = b, 0, 0
	err := s.raw.Read(t.try)
	t.b = nil
	return t.result(s, err)
}

// result returns what a read returns.
func (t *transfer) result(s *socket, err error) (int, error) {
	switch {
	case err != nil:
		return 0, err
	case t.err != 0:
		return 0, s.fault("read", t.err)
	case t.n == 0:
		return 0, io.EOF
	}
	return t.n, nil
}

func (s *socket) tryRead(fd uintptr) bool {
	t := &s.reads
	for {
		n, errno := readNow(fd, t.b)
		switch errno {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		case 0:
			t.n = n
		}
		t.err = errno
		return true
	}
}

// Write writes all of b, or returns how much it wrote and why it stopped.
func (s *socket) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	t := &s.writes
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b, t.n, t.err = b, 0, 0
	err := s.raw.Write(t.try)
	t.b = nil
	if err == nil && t.err != 0 {
		err = s.fault("write", t.err)
	}
	return t.n, err
}

func (s *socket) tryWrite(fd uintptr) bool {
	t := &s.writes
	for t.n < len(t.b) {
		n, errno := writeNow(fd, t.b[t.n:])
		switch errno {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		case 0:
			t.n += n
		default:
			t.err = errno
			return true
		}
	}
	return true
}

// fault returns an error of the form that net.TCPConn uses.
func (s *socket) fault(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}

func isTimeout(err error) bool {
	if err == nil || err == io.EOF {
		return false
	}
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// tcpClosing reports whether the peer has closed its side (CLOSE_WAIT) or the connection has ended.
func tcpClosing(raw syscall.RawConn) (closing bool) {
	raw.Control(func(fd uintptr) {
		var state [1]byte // tcpi_state is the first byte of struct tcp_info
		size := uint32(len(state))
		_, _, errno := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_TCP, syscall.TCP_INFO,
			uintptr(unsafe.Pointer(&state[0])), uintptr(unsafe.Pointer(&size)), 0)
		const established, closeWait, closed, lastAck, closingState = 1, 8, 7, 9, 11
		closing = errno == 0 && (state[0] == closeWait || state[0] == closed || state[0] == lastAck || state[0] == closingState)
	})
	return closing
}
