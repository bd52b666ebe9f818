package loop

import (
	"math"
	"sync"
	"time"
)

// Budget bounds how many pods one service may add in a time, so that a service that runs away does
// not fill the scheduler's queue in front of a thousand others that wake up. Waking up from zero is never refused.
type Budget struct {
	mutex   sync.Mutex
	buckets map[Key]*bucket
}

// Bounds say how a bucket fills: PerSecond pods flow in, up to Burst. Nothing at all bounds nothing.
type Bounds struct{ PerSecond, Burst float64 }

type bucket struct {
	Bounds
	tokens float64
	at     time.Time
}

// fill fills the bucket for the time that has passed.
func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.Burst, b.tokens+max(0, now.Sub(b.at).Seconds())*b.PerSecond)
	b.at = now
}

// NewBudget returns a Budget in which every service starts with a full bucket.
func NewBudget() *Budget { return &Budget{buckets: map[Key]*bucket{}} }

// Grant takes up to wanted tokens of a service and returns how many it got. The bounds are those of the revision that asks; when
// they change, what is left in the bucket stays.
func (b *Budget) Grant(service Key, wanted int32, bounds Bounds, now time.Time) int32 {
	if bounds == (Bounds{}) {
		return wanted
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	own, ok := b.buckets[service]
	if !ok {
		own = &bucket{Bounds: bounds, tokens: bounds.Burst, at: now}
		b.buckets[service] = own
		b.forget(now)
	}
	own.fill(now)
	own.Bounds = bounds
	own.tokens = min(own.tokens, bounds.Burst)
	granted := max(min(wanted, int32(min(own.tokens, math.MaxInt32))), 0)
	own.tokens -= float64(granted)
	return granted
}

// forget drops buckets that are full again: absent and full are the same.
func (b *Budget) forget(now time.Time) {
	if len(b.buckets)%1024 != 0 {
		return
	}
	for key, own := range b.buckets {
		if own.fill(now); own.tokens >= own.Burst {
			delete(b.buckets, key)
		}
	}
}
