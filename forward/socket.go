package forward

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// socket is a TCP connection whose reads and writes are no system calls in the eyes of Go's
// scheduler. A socket that does not block costs nothing but processor time, in the kernel as in the
// program; but a processor of the runtime that is seen in a system call by the runtime's monitor is
// given to another thread, and for as long as that happens the monitor looks every 20 us. At ten
// thousand requests a second each of the two stops the thread that works, wakes one more, and takes
// the machine from the container.
//
// The goroutine still waits in the runtime's poller, with deadlines and Close as in net.TCPConn.
// One goroutine reads and one writes at a time; others wait.
type socket struct {
	*net.TCPConn
	raw           syscall.RawConn
	reads, writes transfer
}

// transfer is a read or a write under way. It lives in the socket so that it costs no memory.
type transfer struct {
	mu  sync.Mutex
	b   []byte
	n   int
	err syscall.Errno
	try func(fd uintptr) (done bool)
}

// quick returns a connection that does what nc does, without the cost of system calls where it is
// one of TCP.
func quick(nc net.Conn) net.Conn {
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nc
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nc
	}
	s := &socket{TCPConn: tcp, raw: raw}
	s.reads.try = s.tryRead
	s.writes.try = s.tryWrite
	return s
}

// isTCP says whether a connection is one of TCP itself, not something above it.
func isTCP(nc net.Conn) bool {
	switch nc.(type) {
	case *socket, *net.TCPConn:
		return true
	}
	return false
}

// closeWrite ends the writing side of a connection, where it has one of its own. It reports whether
// it has.
func closeWrite(nc net.Conn) bool {
	half, ok := nc.(interface{ CloseWrite() error })
	if ok {
		half.CloseWrite()
	}
	return ok
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

// Write writes all of b, or says how much it wrote and why no more.
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

// fault is an error as net.TCPConn's own.
func (s *socket) fault(op string, errno syscall.Errno) error {
	return &net.OpError{Op: op, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError(op, errno)}
}
