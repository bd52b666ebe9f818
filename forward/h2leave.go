package forward

import (
	"time"

	"golang.org/x/net/http2"
)

// This file has the end of a client's connection: when it is idle, and when the server leaves.

// drainGrace and shutdownGrace are how long new streams are served after the first GOAWAY: the
// client may have sent them before it got that.
const (
	drainGrace    = time.Second
	shutdownGrace = 250 * time.Millisecond
)

// leave tells the client to open new streams on another connection, and reports whether this is the
// first time. New streams are still served for the grace.
func (s *h2server) leave(grace time.Duration) (first bool) {
	c := s.c
	defer c.guard()
	now := time.Now()
	c.mu.Lock()
	if first = s.leaving.IsZero(); first {
		s.leaving, s.grace = now, grace
		c.fw.WriteGoAway(1<<31-1, http2.ErrCodeNo, nil)
	} else {
		s.grace = min(s.grace, grace)
	}
	c.armLocked(s.leaving.Add(s.grace), s.tick)
	c.mu.Unlock()
	var b h2batch
	b.add(c)
	b.flush()
	return first
}

// tick handles timers of streams, the end of an idle connection, and the steps of leaving.
func (s *h2server) tick() {
	c := s.c
	defer c.guard()
	now := time.Now()
	var b h2batch
	c.mu.Lock()
	c.timerAt = time.Time{}
	halves := c.halvesLocked()
	c.mu.Unlock()
	var next time.Time
	for _, h := range halves {
		if at := h.x.tick(now, &b); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	c.mu.Lock()
	c.armLocked(next, s.tick)
	if !c.idleSince.IsZero() {
		limit := s.srv.IdleTimeout
		if !s.firstOpen {
			limit = s.srv.FirstRequestTimeout
		}
		if end := c.idleSince.Add(limit); now.Before(end) {
			c.armLocked(end, s.tick)
		} else if s.leaving.IsZero() {
			s.leaving, s.grace = now, 0
		}
	}
	if !s.leaving.IsZero() {
		if end := s.leaving.Add(s.grace); now.Before(end) {
			c.armLocked(end, s.tick)
		} else {
			if !s.final {
				s.final, s.finalID = true, c.maxID
				c.fw.WriteGoAway(c.maxID, http2.ErrCodeNo, nil)
				b.add(c)
			}
			s.closeLocked(&b)
		}
	}
	c.mu.Unlock()
	b.flush()
}

// closeLocked closes a connection after the last GOAWAY when it has no streams.
func (s *h2server) closeLocked(b *h2batch) {
	c := s.c
	if !s.final || len(c.streams) > 0 || c.last {
		return
	}
	c.closeLocked()
	b.add(c)
	if len(c.out) == 0 && !c.writing {
		c.closeWriteLocked()
	}
}

// rest is called after the end of a stream. The connection may be idle now.
func (s *h2server) rest(b *h2batch) {
	c := s.c
	c.mu.Lock()
	if len(c.streams) == 0 {
		c.armLocked(time.Now().Add(s.srv.IdleTimeout), s.tick)
		s.closeLocked(b)
	}
	c.mu.Unlock()
}

// idleSince implements shell.
func (s *h2server) idleSince(now time.Time) int64 {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	switch {
	case s.c.idleSince.IsZero():
		return 0
	case !s.leaving.IsZero() && now.Sub(later(s.leaving, s.c.idleSince)) > leavesWithin:
		return overdue
	case !s.leaving.IsZero():
		return woken
	}
	return s.c.idleSince.UnixNano()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// evict implements shell.
func (s *h2server) evict(int64) {
	go func() {
		if s.leave(shutdownGrace) {
			s.srv.evicted.Add(1)
		}
	}()
}

// stop implements shell.
func (s *h2server) stop() { go s.leave(shutdownGrace) }

// cut implements shell. The reader's next read fails.
func (s *h2server) cut() {
	s.client.gone.Store(true)
	s.client.nc.Close()
}
