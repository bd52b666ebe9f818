package forward

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"ebb.dev/ebb/forward/exchange"
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

// receive reads from the upstream, and sends the request before if that is still to be done.
func (c *conn) receive(b []byte) (int, error) {
	if c.toSend == nil {
		return c.up.Read(b)
	}
	up, request := c.up, c.toSend
	found, sent, n, err := up.Conn.(*socket).ask(request, b)
	switch {
	case !up.heard(up.closing(found), c.clock):
		c.toSend = nil
		return 0, &unsentError{fmt.Errorf("the idle connection to %s has ended", up.up.addr)}
	case sent == len(request):
		c.toSend = nil
		return n, err
	case err != nil && isTimeout(err): // before anything was done
		return 0, err
	}
	c.toSend = nil
	if err == nil {
		err = c.writeUp(request[sent:])
	}
	if err != nil && c.unsent(err) {
		err = &unsentError{err}
	}
	return 0, err
}

// unsentError means that a kept connection did not take the whole request, so the upstream did
// nothing with it.
type unsentError struct{ error }

func isUnsent(err error) bool {
	_, is := errors.AsType[*unsentError](err)
	return is
}

// unsent reports whether a write of the request failed because a kept connection has ended.
func (c *conn) unsent(err error) bool {
	if !c.up.reused || c.gone.Load() || isTimeout(err) {
		return false
	}
	c.up.up.learn(c.clock.Sub(c.up.since), c.clock)
	return true
}

// lostUnsent returns the event for a kept connection that did not take the request.
func (c *conn) lostUnsent(err error) exchange.Event {
	return exchange.Event{Kind: exchange.Lost, Loss: exchange.Unseen, Err: c.explain(err, "send the request to")}
}
