package revision

import (
	"math"
	"sync"
	"time"
)

// budgetRetry is how soon a scale-up that the budget cut short continues.
const budgetRetry = time.Second

// Budget bounds how many pods one service may add in a time, so that a runaway service does not
// fill the scheduler's queue ahead of others that wake up. The first pod is never refused.
type Budget struct {
	mutex   sync.Mutex
	buckets map[string]*bucket
	price   float64
	shares
}

// Charge sets the price of the memory that sleeping pods take, 1 while there is enough. It rises
// until those whose memory is worth least are gone. Pods that a number or a schedule asks for do
// not pay; see Ask.
func (b *Budget) Charge(price float64) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.price = price
}

// Price returns the price of memory, at least 1.
func (b *Budget) Price() float64 {
	if b == nil {
		return 1
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return max(b.price, 1)
}

// Rate says how a token bucket fills: PerSecond, up to Burst. The zero value means no limit.
type Rate struct{ PerSecond, Burst float64 }

type bucket struct {
	Rate
	tokens float64
	at     time.Time
}

// fill fills the bucket for the time that has passed.
func (b *bucket) fill(now time.Time) {
	b.tokens = min(b.Burst, b.tokens+max(0, now.Sub(b.at).Seconds())*b.PerSecond)
	b.at = now
}

// NewBudget returns a Budget in which every service starts with a full bucket.
func NewBudget() *Budget { return &Budget{buckets: map[string]*bucket{}} }

// Grant takes up to wanted tokens of a service and returns how many it got. The rate is that of the
// revision that asks. When it changes, what is left in the bucket stays.
func (b *Budget) Grant(service string, wanted int32, rate Rate, now time.Time) int32 {
	if rate == (Rate{}) {
		return wanted
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	own, ok := b.buckets[service]
	if !ok {
		own = &bucket{Rate: rate, tokens: rate.Burst, at: now}
		b.buckets[service] = own
		b.forget(now)
	}
	own.fill(now)
	own.Rate = rate
	own.tokens = min(own.tokens, rate.Burst)
	granted := max(min(wanted, int32(min(own.tokens, math.MaxInt32))), 0)
	own.tokens -= float64(granted)
	return granted
}

// forget drops full buckets: a missing bucket counts as full.
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
