package load

import (
	"sync"
	"time"

	"ebb.dev/ebb/wire"
)

// Meter counts the requests of one revision that are in this activator, those that wait included.
type Meter struct {
	mutex    sync.Mutex
	now      int
	requests int
	done     int
	// area is the integral of now over time since began, in request-seconds, up to last.
	area        float64
	ended       wire.Outcomes
	began, last time.Time
	reported    bool // the last report said that there is load
	// told is the concurrency that was reported last, edges how often it has grown beyond since
	// Take.
	told  float64
	edges int
}

const (
	// leastGrowth is how many requests more than last reported are worth a report out of turn.
	leastGrowth = 5
	// maxEdges bounds such reports in each period. Each needs twice the load of the one before, so
	// the bound is met only beyond some thousand requests.
	maxEdges = 10
)

// In counts a request that arrived at t, Out one that ended. In reports true when that makes the
// requests that are here at least twice what was last reported, which is then to be reported out of
// turn: where pods have no limit, nothing ever waits, and the next regular report is up to a second
// away.
func (m *Meter) In(t time.Time) bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.advance(t)
	m.now++
	m.requests++
	if now := float64(m.now); now < 2*m.told || now < m.told+leastGrowth || m.edges >= maxEdges {
		return false
	}
	m.told = float64(m.now)
	m.edges++
	return true
}

// Rising reports true when a tenth more requests are here than were last reported. Asked a moment
// after a report out of turn, it tells whether that report saw the middle of a burst, which may end
// below twice what was reported.
func (m *Meter) Rising() bool {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if float64(m.now) < m.told*1.1 || float64(m.now) < m.told+1 || m.edges >= maxEdges {
		return false
	}
	m.edges++
	return true
}

// Out counts a request that began at started and ended after it took so long.
func (m *Meter) Out(started time.Time, status int, took time.Duration) {
	m.mutex.Lock()
	m.advance(started.Add(took))
	m.now--
	m.done++
	m.ended.End(status, took)
	m.mutex.Unlock()
}

// Leave counts a request that left for another revision at t.
func (m *Meter) Leave(t time.Time) {
	m.mutex.Lock()
	m.advance(t)
	m.now--
	m.done++
	m.mutex.Unlock()
}

// Now is how many requests are here.
func (m *Meter) Now() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.now
}

// advance takes the time until t into account; a clock that went back adds nothing.
func (m *Meter) advance(t time.Time) {
	if m.began.IsZero() {
		m.began, m.last = t, t
	}
	if elapsed := t.Sub(m.last); elapsed > 0 {
		m.area += float64(m.now) * elapsed.Seconds()
		m.last = t
	}
}

// Take ends the period at t and returns its stat; ok is false when the period and the one before
// were without load, so that a revision that became idle reports one last zero. Without it the
// autoscaler takes an activator that is silent for one that was cut off.
func (m *Meter) Take(t time.Time) (stat wire.Stat, ok bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.edges = 0
	if m.now == 0 && m.requests == 0 && m.area == 0 && !m.reported {
		m.told = 0
		return wire.Stat{}, false
	}
	m.advance(t)
	stat.Requests, stat.Completed = float64(m.requests), float64(m.done)
	if length := t.Sub(m.began).Seconds(); length > 0 {
		stat.AverageConcurrent = m.area / length
	} else {
		stat.AverageConcurrent = float64(m.now)
	}
	if m.done > 0 {
		ended := m.ended
		stat.Ended, m.ended = &ended, wire.Outcomes{}
	}
	m.told = stat.AverageConcurrent
	m.reported = m.now > 0 || m.requests > 0 || m.area > 0
	m.requests, m.done, m.area = 0, 0, 0
	m.began, m.last = t, t
	if m.now == 0 {
		m.began, m.last = time.Time{}, time.Time{} // the next period begins with its first request
	}
	return stat, true
}

// Peek returns the load of this moment, without ending the period: what is here counts as the
// mean, because the mean over a period of milliseconds would say nothing.
func (m *Meter) Peek() wire.Stat {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.told = float64(m.now)
	return wire.Stat{AverageConcurrent: float64(max(m.now, 1)), Requests: float64(max(m.requests, 1)), OutOfTurn: true}
}
