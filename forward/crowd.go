package forward

import (
	"cmp"
	"slices"
	"syscall"
	"time"
)

// The number of client connections is limited, because an idle one takes about 20 KiB, and because
// an exchange fails if no file descriptor is left for its upstream. Beyond the limit, the
// connections that have been idle the longest, or in the middle of a request's head, are closed for
// new ones. If there are none, the new connection waits. A connection with a request is not closed.

const (
	// maxConns is the default limit.
	maxConns = 65536
	// ownFiles is how many file descriptors are reserved for everything else.
	ownFiles = 256
	// idleEnough is the default of Server.idleEnough: how long a connection must have been idle, or
	// sending a head, before it is closed for another. A client seldom uses an idle one again at
	// that very moment.
	idleEnough = time.Second
	// wakeGrace is how long a connection that will be closed still waits for a request that may be
	// on its way.
	wakeGrace = 5 * time.Millisecond
	// lookAgain is how often a waiting connection looks for one that is idle enough.
	lookAgain = 50 * time.Millisecond
	// crowdedAgain is the shortest time between two calls of Server.OnConnLimit.
	crowdedAgain = time.Minute
)

// leavesWithin is how long a connection of HTTP/2 without requests may take to close. One that
// takes longer is cut when it is in the way of others: its own deadlines have failed.
const leavesWithin = 5 * time.Second

// woken, as what shell.idleSince returns, means that the connection is being closed. overdue means
// that it should have closed long ago.
const (
	woken   = -1
	overdue = -2
)

// boundConns returns limit (0: the default), or less if the process may not have twice as many file
// descriptors.
func boundConns(limit int) int {
	if limit <= 0 {
		limit = maxConns
	}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return limit
	}
	return max(1, min(limit, (int(min(files.Cur, 1<<30))-ownFiles)/2))
}

// h2Counts is for how many connections of HTTP/1.1 one of HTTP/2 counts in addition.
const h2Counts = 2

// crowded reports whether there is no room for one more connection. s.mu is held.
func (s *Server) crowded() bool { return len(s.conns)+s.heavy >= s.MaxConns }

// countHTTP2 is called when a connection turns out to be one of HTTP/2.
func (s *Server) countHTTP2(c *clientConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.heavy = h2Counts
	s.heavy += h2Counts
}

// awaitRoomLocked waits until there is room for one more connection, or the server shuts down.
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

// Evicted counts the client connections that were closed to make room for new ones: idle ones, and
// those that ended with a response while another waited.
func (s *Server) Evicted() int64 { return s.evicted.Load() }

// endsNext reports whether the next response is the last on its connection.
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

// evictLocked begins to close some of the connections that have been idle the longest, and reports
// whether there are any. It closes several, because it has to look at all connections to find them,
// and none while earlier ones are still closing.
func (s *Server) evictLocked(now time.Time) bool {
	type candidate struct {
		c     *clientConn
		since int64
	}
	var idle []candidate
	closing := false
	latest := now.Add(-s.idleEnough).UnixNano()
	for c := range s.conns {
		switch since := c.shell.idleSince(now); {
		case since == woken:
			closing = true
		case since == overdue:
			if !c.gone.Swap(true) {
				s.evicted.Add(1)
				c.tcp().Close()
			}
			closing = true
		case since > 0 && since <= latest:
			idle = append(idle, candidate{c, since})
		}
	}
	if closing {
		return true
	}
	slices.SortFunc(idle, func(a, b candidate) int { return cmp.Compare(a.since, b.since) })
	for _, old := range idle[:min(len(idle), 1+s.MaxConns/64)] {
		old.c.shell.evict(old.since)
	}
	return len(idle) > 0
}
