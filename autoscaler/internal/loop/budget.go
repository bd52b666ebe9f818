package loop

import (
	"sync"
	"time"
)

// Budget bounds how many pods one service may add in a time, so that a service that runs away does
// not fill the scheduler's queue in front of a thousand others that wake up. Waking up from zero is never refused.
type Budget struct {
	// PerSecond pods flow in, up to Burst.
	PerSecond, Burst float64

	mutex   sync.Mutex
	buckets map[Key]*bucket
}

// Generous bounds: a service may add 500 pods at once and 50 more each second.
const (
	DefaultBurst     = 500
	DefaultPerSecond = 50
)

type bucket struct {
	tokens float64
	at     time.Time
}

// NewBudget returns a Budget in which every service starts with a full bucket.
func NewBudget(perSecond, burst float64) *Budget {
	return &Budget{PerSecond: perSecond, Burst: burst, buckets: map[Key]*bucket{}}
}

// Grant takes up to wanted tokens of a service and returns how many it got.
func (b *Budget) Grant(service Key, wanted int32, now time.Time) int32 {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	own, ok := b.buckets[service]
	if !ok {
		own = &bucket{tokens: b.Burst, at: now}
		b.buckets[service] = own
		b.forget(now)
	}
	own.tokens = min(b.Burst, own.tokens+max(0, now.Sub(own.at).Seconds())*b.PerSecond)
	own.at = now
	granted := min(wanted, int32(own.tokens))
	own.tokens -= float64(granted)
	return granted
}

// forget drops buckets that have long been full again: absent and full are the same.
func (b *Budget) forget(now time.Time) {
	if len(b.buckets)%1024 != 0 {
		return
	}
	full := time.Duration(b.Burst / b.PerSecond * float64(time.Second))
	for key, own := range b.buckets {
		if now.Sub(own.at) > full {
			delete(b.buckets, key)
		}
	}
}
