package act

import (
	"context"
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

// rank says which orders go first. Those before other are what raisers take.
type rank int

const (
	urgent rank = iota // no pod is ready
	raise
	other
	ranks
)

func rankOf(o loop.Order) rank {
	switch {
	case o.Urgent:
		return urgent
	case o.Scale && o.From >= 0 && o.Replicas > o.From:
		return raise
	}
	return other
}

// Retries of an order that failed begin at firstRetry and double up to lastRetry, or to lastRaise
// if requests may wait for it: they go on as soon as the API server is back.
const (
	firstRetry = 50 * time.Millisecond
	lastRaise  = time.Second
	lastRetry  = 10 * time.Second
)

// queue holds the orders that wait and says which is next, one at a time per revision. It has no
// lock, no clock and no I/O, so that a test can play every order of events on it.
type queue struct {
	tasks map[loop.Key]*task
	lines [ranks][]loop.Key
	// owns says which revisions are this replica's. Orders of others are dropped.
	owns    func(loop.Key) bool
	dropped int64
	// queued is called for each revision that joins a line.
	queued func(rank)
}

// task is the newest order of a revision that has not begun, or the one under way.
type task struct {
	order loop.Order
	full  bool // order waits
	busy  bool // a worker is at an earlier one
	lost  bool // the revision was lost while the worker is at it
	stop  context.CancelFunc
	// paused says that the order failed and waits for its retry.
	paused bool
	retry  time.Duration
}

// put adds an order, or replaces the one of the same revision that has not begun.
func (q *queue) put(o loop.Order) {
	if !q.owns(o.Key) { // it was decided before the loss
		q.dropped++
		return
	}
	t := q.tasks[o.Key]
	if t == nil {
		t = &task{}
		q.tasks[o.Key] = t
	}
	if t.full {
		o = merge(t.order, o)
	}
	t.order = o
	switch {
	case t.paused && o.Scale: // the scale to write changed, so it is tried at once
		t.paused = false
	case !t.full:
		t.full, t.retry = true, 0
	case rankOf(o) == other:
		return
	}
	// Requests may wait now. A second place in a line is harmless.
	if !t.busy {
		q.join(o.Key, rankOf(o))
	}
}

// merge combines two orders. A scale that the older one has not written is still written, and so is
// a status: the loop takes the older one for told, so the newer one is not held.
func merge(older, newer loop.Order) loop.Order {
	if older.UID != newer.UID {
		return newer
	}
	if older.Scale {
		newer.From, newer.Since = older.From, older.Since
		newer.Scale = true
	}
	newer.Verify = newer.Verify || older.Verify
	newer.Urgent = newer.Urgent || older.Urgent
	newer.Held = newer.Held && older.Held
	return newer
}

func (q *queue) join(key loop.Key, r rank) {
	q.lines[r] = append(q.lines[r], key)
	q.queued(r)
}

// next takes the order that begins now, nil if there is none. A raiser takes only what adds pods.
func (q *queue) next(raiser bool) *task {
	for {
		key, ok := q.first(raiser)
		if !ok {
			return nil
		}
		t := q.tasks[key]
		switch {
		case t == nil || !t.full || t.busy || t.paused: // it has begun from another place in a line
		case raiser && rankOf(t.order) == other: // it was to add pods when it was queued
			q.join(key, other)
		default:
			t.full, t.busy = false, true
			return t
		}
	}
}

func (q *queue) first(raiser bool) (key loop.Key, ok bool) {
	end := ranks
	if raiser {
		end = other
	}
	for r := range end {
		if line := q.lines[r]; len(line) > 0 {
			q.lines[r] = line[1:]
			return line[0], true
		}
	}
	return key, false
}

func (q *queue) drop(key loop.Key) {
	q.dropped++
	delete(q.tasks, key)
}

// done takes the result of an order that next returned. If retry is not zero, the caller calls
// resume after that time.
func (q *queue) done(t *task, order loop.Order, failed bool) (retry time.Duration) {
	t.busy = false
	lost := t.lost || !q.owns(order.Key)
	t.lost = false
	switch {
	case lost && !t.full && failed:
		q.drop(order.Key)
	case !t.full && !failed:
		delete(q.tasks, order.Key)
	case lost || !failed: // a newer order came meanwhile
		t.retry = 0
		q.join(order.Key, rankOf(t.order))
	default:
		if t.full {
			order = merge(order, t.order)
		}
		t.order, t.full, t.paused = order, true, true
		most := lastRaise
		if rankOf(order) == other {
			most = lastRetry
		}
		t.retry = min(max(2*t.retry, firstRetry), most)
		return t.retry
	}
	return 0
}

// resume queues an order whose retry is due.
func (q *queue) resume(t *task) {
	if key := t.order.Key; t.paused && q.tasks[key] == t {
		t.paused = false
		q.join(key, rankOf(t.order))
	}
}

// release drops the orders of revisions that this replica does not own any more, and stops the
// workers that are at one. It reports whether there are such.
func (q *queue) release() (busy bool) {
	for key, t := range q.tasks {
		switch {
		case q.owns(key):
		case t.busy:
			t.full, t.lost, busy = false, true, true
			if t.stop != nil {
				t.stop()
			}
		default:
			q.drop(key)
		}
	}
	return busy
}
