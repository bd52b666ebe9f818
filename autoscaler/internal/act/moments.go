package act

import (
	"sync"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

const (
	// remembered is how long a moment is kept.
	remembered = 15 * time.Minute
	// sweepAt is the number of moments from which old ones are removed.
	sweepAt = 1024
)

// moments remembers when something was last done for each revision.
type moments struct {
	mutex sync.Mutex
	at    map[loop.Key]time.Time
	sweep int
}

func (m *moments) note(key loop.Key, now time.Time) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	if m.at == nil {
		m.at, m.sweep = map[loop.Key]time.Time{}, sweepAt
	}
	if len(m.at) >= m.sweep {
		for k, at := range m.at {
			if now.Sub(at) > remembered {
				delete(m.at, k)
			}
		}
		m.sweep = max(2*len(m.at), sweepAt)
	}
	m.at[key] = now
}

// last returns zero if the moment is unknown.
func (m *moments) last(key loop.Key) time.Time {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.at[key]
}

// Raised returns when the last write that raised a revision's scale ended, zero if unknown.
func (w *Writer) Raised(key loop.Key) time.Time { return w.raises.last(key) }
