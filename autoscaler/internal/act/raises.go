package act

import (
	"sync"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

const (
	// raiseRemembered is how long a raise is kept for the account of a cold start.
	raiseRemembered = 15 * time.Minute
	// raisesSweepAt is the number of raises from which old ones are removed.
	raisesSweepAt = 1024
)

// raises remembers when the scale of each revision was last raised.
type raises struct {
	mutex sync.Mutex
	at    map[loop.Key]time.Time
	sweep int
}

func (r *raises) note(key loop.Key, now time.Time) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.at == nil {
		r.at, r.sweep = map[loop.Key]time.Time{}, raisesSweepAt
	}
	if len(r.at) >= r.sweep {
		for k, at := range r.at {
			if now.Sub(at) > raiseRemembered {
				delete(r.at, k)
			}
		}
		r.sweep = max(2*len(r.at), raisesSweepAt)
	}
	r.at[key] = now
}

// Raised returns when the last write that raised a revision's scale ended, zero if unknown.
func (w *Writer) Raised(key loop.Key) time.Time {
	w.raises.mutex.Lock()
	defer w.raises.mutex.Unlock()
	return w.raises.at[key]
}
