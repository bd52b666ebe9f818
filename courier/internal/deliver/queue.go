package deliver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
)

// queue hands the calls of one service to attempts, while there are any.
type queue struct {
	of      call.Service
	manager *Manager
	freed   chan struct{} // an attempt has ended
	added   chan struct{} // a call was stored

	mu      sync.Mutex
	under   int // attempts
	limiter *rate.Limiter
}

const (
	// lingers is how long the goroutine of an empty queue waits for the next call.
	lingers = 10 * time.Second
	// patience is how long it waits after a failure, or for a Route that does not exist yet, and at
	// most until it looks for calls whose next attempt is due.
	patience = time.Second
	// soonest is how soon it looks again after the last call.
	soonest = 20 * time.Millisecond
	// full is how long it waits for others to leave it memory.
	full = 100 * time.Millisecond
	// batch bounds how many calls are fetched at once.
	batch = 64
)

// run ends when the queue is empty and nothing is under way. The next call wakes it again.
func (q *queue) run(ctx context.Context) {
	var source *store.Queue
	var gone time.Time
	for idle := time.Duration(0); !q.ends(ctx, idle); {
		rules, ok := q.manager.Routes.Rules(q.of)
		if ok {
			gone = time.Time{}
		} else if gone.IsZero() {
			gone = time.Now()
		}
		if !ok && time.Since(gone) < q.manager.Gone {
			q.pause(ctx, patience)
			continue
		}
		if !ok { // a call ends with its first attempt
			rules.Concurrency = 1
		}
		n := min(rules.Concurrency-q.underWay(), batch)
		if n <= 0 {
			q.pause(ctx, patience)
			continue
		}
		if source == nil {
			var err error
			if source, err = q.manager.Store.Queue(ctx, q.of); err != nil {
				q.failed(ctx, err)
				continue
			}
		}
		none, err := q.take(ctx, source, n, rules)
		switch {
		case err != nil:
			q.failed(ctx, err)
			source = nil
		case none:
			idle += q.look(ctx, idle)
		default:
			idle = 0
		}
	}
}

// ends removes the queue from the Manager's if it is to end.
func (q *queue) ends(ctx context.Context, idle time.Duration) bool {
	q.manager.mu.Lock()
	defer q.manager.mu.Unlock()
	if ctx.Err() == nil && (idle < lingers || q.manager.depths[q.of] > 0) {
		return false
	}
	delete(q.manager.queues, q.of)
	return true
}

// take begins up to n calls that are due now; none reports that no call is. Where there is no
// memory for one, or the rate has been reached, it waits a while and does not know.
func (q *queue) take(ctx context.Context, source *store.Queue, n int, rules Rules) (none bool, err error) {
	reserved := q.manager.budget.reserve(q.of.Namespace, n)
	defer func() { q.manager.budget.release(q.of.Namespace, reserved) }()
	if reserved == 0 {
		q.pause(ctx, full)
		return false, nil
	}
	if n = q.paced(reserved, rules.Rate); n == 0 {
		q.pause(ctx, 50*time.Millisecond)
		return false, nil
	}
	messages, err := source.Fetch(n)
	if err != nil {
		return false, err
	}
	none = true
	for message := range messages.Messages() {
		none = false
		reserved--
		q.begin(message, rules)
	}
	return none, messages.Error()
}

// look waits until there may be a call again: one was stored, or that of an earlier one is due. It
// returns how long it would have waited for the latter.
func (q *queue) look(ctx context.Context, idle time.Duration) time.Duration {
	wait := min(max(idle, soonest), patience)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-q.added:
	case <-timer.C:
	}
	return wait
}

func (q *queue) poke() {
	select {
	case q.added <- struct{}{}:
	default:
	}
}

// paced returns how many of n calls may begin now.
func (q *queue) paced(n int, perSecond float64) int {
	if perSecond <= 0 {
		return n
	}
	limit := rate.Limit(perSecond)
	if q.limiter == nil {
		q.limiter = rate.NewLimiter(limit, max(1, int(perSecond/10)))
	} else if q.limiter.Limit() != limit {
		q.limiter.SetLimit(limit)
	}
	n = min(n, int(q.limiter.Tokens()))
	if n <= 0 || !q.limiter.AllowN(time.Now(), n) {
		return 0
	}
	return n
}

func (q *queue) begin(message store.Message, rules Rules) {
	q.mu.Lock()
	q.under++
	q.mu.Unlock()
	ended := q.manager.budget.came(q.of.Namespace, message)
	q.manager.group.Go(func() {
		defer ended()
		q.manager.deliver(q.of, message, rules)
		q.mu.Lock()
		q.under--
		q.mu.Unlock()
		select {
		case q.freed <- struct{}{}:
		default:
		}
	})
}

func (q *queue) underWay() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.under
}

func (q *queue) failed(ctx context.Context, err error) {
	if ctx.Err() == nil {
		q.manager.Log.Warn("calls were not fetched", "service", q.of.String(), "error", err)
	}
	q.pause(ctx, patience)
}

// pause waits until an attempt has ended, or a while.
func (q *queue) pause(ctx context.Context, longest time.Duration) {
	timer := time.NewTimer(longest)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-q.freed:
	case <-timer.C:
	}
}
