package forward

import (
	"cmp"
	"slices"
	"syscall"
	"time"
)

// Client connections are bounded, for two reasons: one that waits for its next request takes some
// 20 KiB, and an exchange for which there is no file descriptor left towards its upstream fails.
// For a new connection beyond the bound those go that have had no request for the longest time.
// While all have requests the new one waits: what works is never cut.

const (
	// mostConns is the default bound; at 20 KiB each this is more than a pod has memory for.
	mostConns = 65536
	// ownFiles is how many file descriptors are kept for everything else.
	ownFiles = 256
	// idleEnough is the default of Server.idleEnough, which is how long a connection must have had
	// no request before it is closed for another. A client's next request seldom meets the end of a
	// connection that has been idle for so long.
	idleEnough = time.Second
	// wakeGrace is how long a connection that is about to be closed still looks for a request that
	// has just been sent.
	wakeGrace = 5 * time.Millisecond
	// lookAgain is how often a waiting connection looks for one that has become idle enough.
	lookAgain = 50 * time.Millisecond
	// crowdedAgain is how often Server.OnConnLimit is called at most.
	crowdedAgain = time.Minute
)

// woken, as conn.idle, says that somebody wakes the connection by a read deadline. It stays so
// until a request has come nevertheless.
const woken = -1

// boundConns returns the bound that holds when most is wished for, 0 for the default. Each exchange
// may need a second file descriptor.
func boundConns(most int) int {
	if most <= 0 {
		most = mostConns
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return most
	}
	return max(1, min(most, (int(min(files.Cur, 1<<30))-ownFiles)/2))
}

// h2Counts is for how many connections of HTTP/1.1 one of HTTP/2 counts in addition.
const h2Counts = 2

// crowded reports whether there is no room for one more connection. s.mu is held.
func (s *Server) crowded() bool { return len(s.conns)+s.heavy >= s.MaxConns }

// countHTTP2 is called when a connection turns out to be one of HTTP/2.
func (s *Server) countHTTP2(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.heavy = h2Counts
	s.heavy += h2Counts
}

// awaitRoomLocked waits until there is room for one more connection, or the server is shut down.
func (s *Server) awaitRoomLocked() {
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	s.waiting++
	for s.crowded() && !s.stopped.Load() {
		if now := time.Now(); !s.evictLocked(now) {
			s.oneLess.Store(true)
			if s.OnConnLimit != nil && now.Sub(s.told) >= crowdedAgain {
				s.told = now
				go s.OnConnLimit(len(s.conns))
			}
		}
		s.mu.Unlock()
		select {
		case <-s.room:
		case <-tick.C:
		case <-s.base.Done():
		}
		s.mu.Lock()
	}
	s.waiting--
	s.oneLess.Store(false)
}

// Evicted counts client connections that were closed to make room for new ones: idle ones, and
// those that ended with a response while one waited.
func (s *Server) Evicted() int64 { return s.evicted.Load() }

// endsNext says whether the response that is about to be sent shall be the last on its connection.
func (s *Server) endsNext() bool {
	if s.draining.Load() {
		return true
	}
	if s.oneLess.Load() && s.oneLess.CompareAndSwap(true, false) {
		s.evicted.Add(1)
		return true
	}
	return false
}

// evictLocked begins to close some of the connections that have been idle for longest, and reports
// whether there are any such. It takes more than one, because it looks at all to find them, and
// none while others are on their way out.
func (s *Server) evictLocked(now time.Time) bool {
	type candidate struct {
		c     *conn
		since int64
	}
	var idle []candidate
	latest := now.Add(-s.idleEnough).UnixNano()
	for c := range s.conns {
		switch since := c.idleSince(); {
		case since == woken:
			return true
		case since > 0 && since <= latest:
			idle = append(idle, candidate{c, since})
		}
	}
	slices.SortFunc(idle, func(a, b candidate) int { return cmp.Compare(a.since, b.since) })
	for _, old := range idle[:min(len(idle), 1+s.MaxConns/64)] {
		if h2 := old.c.h2.Load(); h2 != nil {
			go func() {
				if h2.leave(shutdownGrace) {
					s.evicted.Add(1)
				}
			}()
		} else {
			old.c.wakeIfIdle()
		}
	}
	return len(idle) > 0
}

// idleSince is since when the connection has had no request, in nanoseconds since 1970, woken when
// it is about to be closed for that, or 0.
func (c *conn) idleSince() int64 {
	h2 := c.h2.Load()
	if h2 == nil {
		return c.idle.Load()
	}
	h2.c.mu.Lock()
	defer h2.c.mu.Unlock()
	switch {
	case h2.c.idleSince.IsZero():
		return 0
	case !h2.leaving.IsZero():
		return woken
	}
	return h2.c.idleSince.UnixNano()
}

// wakeIfIdle makes a connection that waits for a request look whether one has come, and else close.
// The server's mu is held.
func (c *conn) wakeIfIdle() {
	if since := c.idle.Load(); since > 0 && c.idle.CompareAndSwap(since, woken) {
		c.nc.SetReadDeadline(past)
	}
}

// lastLook sets the deadline for the last look at a connection that was woken.
func (c *conn) lastLook() {
	c.srv.mu.Lock() // whoever woke it has set the deadline then
	defer c.srv.mu.Unlock()
	c.nc.SetReadDeadline(time.Now().Add(wakeGrace))
}
