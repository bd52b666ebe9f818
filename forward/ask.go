package forward

import (
	"syscall"
	"time"
)

// A request for a kept connection is sent by the read of its response: the read looks whether the
// connection is silent (see silence.go), writes the request, and waits. So the look costs nothing,
// because a read that begins after the request was sent finds nothing at first, either:
//
//	recv(MSG_PEEK), write, wait, read     in place of
//	write, read, wait, read
//
// The order is safe. Go's poller forgets what it was told before a read begins, then the look finds
// what has arrived by then, and what arrives later ends the wait.

// peeksLater is how long a connection can have been idle whose first look is that of the read.
// After a longer rest it is more often closed, and then another one is looked for before anything
// else is done.
const peeksLater = 100 * time.Millisecond

func (c *upConn) peeksLater(now time.Time) bool {
	_, plain := c.Conn.(*socket)
	return plain && now.Sub(c.since) < peeksLater
}

// asking is a request that is sent by a read.
type asking struct {
	request []byte // nil when it was tried
	sent    int
	found   peekResult
	err     syscall.Errno
	try     func(fd uintptr) (done bool)
}

// ask sends a request if the connection is silent, and reads into b. The request was sent whole if
// sent is its size; before that nothing is read.
func (s *socket) ask(request, b []byte) (found peekResult, sent, n int, err error) {
	t, a := &s.reads, &s.asks
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b, t.n, t.err = b, 0, 0
	a.request, a.sent, a.found, a.err = request, 0, peekQuiet, 0
	err = s.raw.Read(a.try)
	t.b, a.request = nil, nil
	switch {
	case a.sent == len(request):
		n, err = t.result(s, err)
	case a.err != 0:
		err = s.fault("write", a.err)
	}
	return a.found, a.sent, n, err
}

func (s *socket) tryAsk(fd uintptr) bool {
	request := s.asks.request
	if request == nil {
		return s.tryRead(fd)
	}
	s.asks.request = nil
	if s.asks.found = peekNow(fd); s.asks.found != peekQuiet {
		return true
	}
	n, errno := writeNow(fd, request)
	switch errno {
	case syscall.EAGAIN, syscall.EINTR:
		return true
	case 0:
		s.asks.sent = n
		return n < len(request)
	}
	s.asks.err = errno
	return true
}
