package revision

import (
	"math"
	"sync"
	"time"
)

// budgetRetry is how soon a scale-up that the budget cut short continues.
const budgetRetry = time.Second

// Budget is what all revisions share. Without one, nothing is bounded.
type Budget struct {
	ScaleUps ScaleUps
	Memory   Memory
}

// ScaleUps bounds how many pods one service may add in a time, so that a runaway service does not
// fill the scheduler's queue ahead of others that wake up. The first pod is never refused. A
// service that never asked has a full bucket.
type ScaleUps struct {
	mutex   sync.Mutex
	buckets map[string]*bucket
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

// Grant takes up to wanted tokens of a service and returns how many it got. The rate is that of the
// revision that asks. When it changes, what is left in the bucket stays.
func (s *ScaleUps) Grant(service string, wanted int32, rate Rate, now time.Time) int32 {
	if rate == (Rate{}) {
		return wanted
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	own, ok := s.buckets[service]
	if !ok {
		if s.buckets == nil {
			s.buckets = map[string]*bucket{}
		}
		s.forget(now) // before: the new bucket is full, too
		own = &bucket{Rate: rate, tokens: rate.Burst, at: now}
		s.buckets[service] = own
	}
	own.fill(now)
	own.Rate = rate
	own.tokens = min(own.tokens, rate.Burst)
	granted := max(min(wanted, int32(min(own.tokens, math.MaxInt32))), 0)
	own.tokens -= float64(granted)
	return granted
}

// forget drops full buckets: a missing bucket counts as full.
func (s *ScaleUps) forget(now time.Time) {
	if len(s.buckets)%1024 != 0 {
		return
	}
	for key, own := range s.buckets {
		if own.fill(now); own.tokens >= own.Burst {
			delete(s.buckets, key)
		}
	}
}
