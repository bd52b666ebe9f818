package reachable

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// remembers is for how long at least it is known that an address has answered, maxRemembered
	// how many are known of that time: 1 MiB.
	remembers, maxRemembered = time.Minute, 10_000
)

// Memory is which addresses have answered lately. The zero value is ready, and nil knows no address
// that has not.
type Memory struct {
	mutex sync.Mutex
	// answered are those since a time, before those in the minute before it.
	answered, before map[netip.Addr]struct{}
	since            time.Time
}

func (m *Memory) note(address netip.Addr) {
	if m == nil {
		return
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.turnLocked()
	if len(m.answered) < maxRemembered {
		m.answered[address] = struct{}{}
	}
}

func (m *Memory) has(address netip.Addr) bool {
	if m == nil {
		return true
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.turnLocked()
	_, now := m.answered[address]
	_, before := m.before[address]
	return now || before
}

// turnLocked forgets what is too old.
func (m *Memory) turnLocked() {
	switch age := time.Since(m.since); {
	case m.answered == nil || age >= 2*remembers:
		m.before, m.answered, m.since = nil, map[netip.Addr]struct{}{}, time.Now()
	case age >= remembers:
		m.before, m.answered, m.since = m.answered, map[netip.Addr]struct{}{}, time.Now()
	}
}
