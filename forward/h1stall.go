package forward

import (
	"sync"
	"time"
)

const (
	// stallAfter is how long a write of a body may take before its peer counts as one that does not
	// read.
	stallAfter = time.Second
	// stallBytes is what the kernel keeps for an exchange whose body does not move: what one peer
	// has sent into an ordinary receive buffer, and what the other one has not read.
	stallBytes = 128<<10 + unsentBytes
)

// stall charges an exchange for the kernel's buffers when a peer does not read. They are several
// times as large as all that the process has for the exchange. If the account has no room, the
// client is cut off. A nil stall, for an exchange without an account, does nothing.
type stall struct {
	c       *conn
	account Account
	timer   *time.Timer // fires when the write under way has taken stallAfter

	mu      sync.Mutex
	charged bool
	over    bool
}

func (c *conn) newStall() *stall {
	if c.account == nil {
		return nil
	}
	return &stall{c: c, account: c.account}
}

// begin is called before a write.
func (s *stall) begin() {
	switch {
	case s == nil:
	case s.timer == nil:
		s.timer = time.AfterFunc(stallAfter, s.fire)
	default:
		s.timer.Reset(stallAfter)
	}
}

// end is called after a write.
func (s *stall) end() {
	if s != nil {
		s.timer.Stop()
	}
}

// fire charges the exchange once: after it stalled once, its buffers are large.
func (s *stall) fire() {
	defer s.c.srv.catch()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.charged || s.over {
		return
	}
	if s.account.Take(stallBytes) != nil {
		// Otherwise the kernel keeps what was not read for minutes.
		resetOnClose(s.c.tcp())
		s.c.cut()
		return
	}
	s.charged = true
}

// release is called after the last write.
func (s *stall) release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.charged {
		s.account.Give(stallBytes)
	}
}
