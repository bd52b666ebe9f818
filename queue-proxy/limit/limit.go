// Package limit is the concurrency limit of one pod and the bounded queue in front of it.
//
// Owns: how many requests run, and which wait in what order. Reads, writes: nothing else. Never:
// locks, reads a clock or wakes anybody; the caller guards it and wakes the Waiter it is given.
//
// The truth table of Enter, which is the specification:
//
//	slots free | queue empty | queue has room | outcome
//	yes        | yes         | -              | Admitted
//	yes        | no          | -              | (cannot be: Leave and Cancel hand a free slot to the first in the queue)
//	no         | -           | yes            | Queued
//	no         | -           | no             | Full
package limit

// Outcome is what Enter decided.
type Outcome uint8

// The outcomes.
const (
	Admitted Outcome = iota
	Queued
	Full
)

// Limit lets Slots requests run at once and MaxWaiting wait, together at most MaxBytes heavy (0:
// no such bound). The zero value with Slots 0 admits everything.
type Limit struct {
	Slots      int
	MaxWaiting int
	MaxBytes   int64

	running     int
	waiting     int
	bytes       int64
	first, last *Waiter
}

// Waiter is one request's place. It may be used again after its request has left.
type Waiter struct {
	// Ready has room for one value; the caller receives from it while Queued and the owner of Limit
	// sends.
	Ready chan struct{}

	bytes      int64
	queued     bool
	running    bool
	next, prev *Waiter
}

// Enter decides over a request that weighs bytes in memory while it waits.
func (l *Limit) Enter(w *Waiter, bytes int64) Outcome {
	if l.Slots <= 0 || l.running < l.Slots && l.first == nil {
		l.running++
		w.running = true
		return Admitted
	}
	if l.waiting >= l.MaxWaiting || l.MaxBytes > 0 && l.bytes+bytes > l.MaxBytes {
		return Full
	}
	l.waiting++
	l.bytes += bytes
	w.bytes, w.queued = bytes, true
	w.prev, w.next = l.last, nil
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	return Queued
}

// Leave ends a running request. It returns the one that has its slot now, nil for none; that one
// must be woken.
func (l *Limit) Leave(w *Waiter) *Waiter {
	if !w.running {
		return nil
	}
	w.running = false
	l.running--
	return l.promote()
}

// Cancel gives up a place in the queue. It reports false when the request was promoted meanwhile:
// then it runs, and Leave is due.
func (l *Limit) Cancel(w *Waiter) bool {
	if !w.queued {
		return false
	}
	l.unlink(w)
	return true
}

// Grow makes a waiting request heavier. It reports false, and changes nothing, when that is more
// than may wait. One that does not wait has no weight.
func (l *Limit) Grow(w *Waiter, bytes int64) bool {
	switch {
	case !w.queued:
		return true
	case l.MaxBytes > 0 && l.bytes+bytes > l.MaxBytes:
		return false
	}
	l.bytes += bytes
	w.bytes += bytes
	return true
}

// Free is how many requests could start at once; a Limit without Slots has no number for it.
func (l *Limit) Free() int { return max(l.Slots-l.running, 0) }

// Running and Waiting are the requests in each state; Bytes is the weight of those that wait.
func (l *Limit) Running() int { return l.running }
func (l *Limit) Waiting() int { return l.waiting }
func (l *Limit) Bytes() int64 { return l.bytes }

func (l *Limit) promote() *Waiter {
	w := l.first
	if w == nil || l.running >= l.Slots {
		return nil
	}
	l.unlink(w)
	l.running++
	w.running = true
	return w
}

func (l *Limit) unlink(w *Waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.prev, w.next, w.queued = nil, nil, false
	l.waiting--
	l.bytes -= w.bytes
}
