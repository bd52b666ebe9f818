// Package report tells the autoscaler what load the activator sees: at once when a request has to
// be held, and every second while there is any.
//
// Owns: for each revision, how many requests are here now and the time-weighted mean of that over the period.
// Reads: the table of revisions. Writes: POSTs to the autoscaler. Never: blocks a request; makes a
// decision; keeps a report for later (missing data is the autoscaler's to judge, old data is wrong).
package report

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
	began, last time.Time
	reported    bool // the last report said that there is load
}

// In counts a request that arrived at t, Out one that ended.
func (m *Meter) In(t time.Time) {
	m.mutex.Lock()
	m.advance(t)
	m.now++
	m.requests++
	m.mutex.Unlock()
}

// Out counts a request that ended at t.
func (m *Meter) Out(t time.Time) {
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

// Take ends the period at t and returns its stat; ok is false when the period and the one before were without load, so
// that a revision that became idle reports one last zero.
func (m *Meter) Take(t time.Time) (stat wire.Stat, ok bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.now == 0 && m.requests == 0 && m.area == 0 && !m.reported {
		return wire.Stat{}, false
	}
	m.advance(t)
	stat.Requests, stat.Completed = float64(m.requests), float64(m.done)
	if length := t.Sub(m.began).Seconds(); length > 0 {
		stat.AverageConcurrent = m.area / length
	} else {
		stat.AverageConcurrent = float64(m.now)
	}
	m.reported = m.now > 0 || m.requests > 0
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
	return wire.Stat{AverageConcurrent: float64(max(m.now, 1)), Requests: float64(max(m.requests, 1))}
}
