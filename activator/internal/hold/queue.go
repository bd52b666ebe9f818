// Package hold keeps requests until a pod of their revision has a free slot.
//
// Owns: for each revision, which requests wait, how many are in flight at which pod, and which pods
// are out for a moment. Reads: the pods that backends publishes. Writes: nothing outside. Never:
// holds a lock across I/O, binds a request to a pod that has no free slot, or knows another
// revision's queue (only the shared Budget, which is a few atomic counters).
package hold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/activator/internal/reach"
	"ebb.dev/ebb/activator/pick"
)

const (
	// FailAfter is how long a request waits for a revision that is said to be unable to start, and
	// how long that must have been said: a condition may be older than the attempt that this very
	// request caused, and a first failure may pass.
	FailAfter = 3 * time.Second
	// RoomAfter is the same for a pod that no node takes. Nodes that lost the API server are gone
	// for the scheduler until they report, every ten seconds, and pods that end make room.
	RoomAfter = 15 * time.Second
	// unschedulable is the reason for which RoomAfter is. A failure begins with its reason.
	unschedulable = "Unschedulable"
	// attemptEnds is how long without a request the next one counts as a new attempt to start the
	// revision.
	attemptEnds = time.Minute
	// retryFull is how long a pod that refused is left alone unless it says itself that it has a
	// free slot.
	retryFull = 5 * time.Millisecond
	// retryFullBatch bounds how many of the pods that refused are tried again each retryFull.
	retryFullBatch = 4
	// restFirst is the pause after a failed connection before the pod may be the last resort; it
	// doubles with each failure up to restMost. Until the pod has answered, one request in each
	// rest is tried there, however many wait.
	restFirst = 20 * time.Millisecond
	restMost  = 500 * time.Millisecond
	// suspectTimes is how many times its rest a pod stays suspect: others are preferred.
	suspectTimes = 5
	// wokeFor is how long after an answer a pod that is announced as asleep counts as awake. It
	// says itself that it woke, standby.SettleTime after it did.
	wokeFor = 100 * time.Millisecond
)

// ErrDeleted is what waiting requests get when their revision is deleted.
var ErrDeleted = errors.New("the revision was deleted")

// Backend is a pod that takes requests.
type Backend struct {
	Address netip.AddrPort
	// Pod tells two pods apart that had the same address one after the other.
	Pod string
	// Asleep says that the pod sleeps. A request wakes it.
	Asleep bool
	// Far says that the pod is in another zone, and that there are others.
	Far bool
}

// same is what identifies a pod.
func (b Backend) same() Backend {
	b.Asleep, b.Far = false, false
	return b
}

// pod is one backend with what this activator has there. Guarded by the queue's mutex.
type pod struct {
	Backend
	reach    *reach.Pod // what Options.Open returned
	inFlight int
	// refused is when the pod last said that it has no free slot; zero when it may be tried.
	refused time.Time
	// rests is until when the pod is not tried at all, suspect until when others are preferred.
	rests, suspect time.Time
	// woke is when it last answered although it is announced as asleep.
	woke time.Time
	// failures is how many connections failed since the pod answered last. It is written with the
	// mutex, and read without it.
	failures atomic.Int32
}

// Queue holds the requests of one revision.
type Queue struct {
	share   *Share
	options Options
	limit   int

	mutex   sync.Mutex
	pods    []*pod // in address order
	flagged int    // how many pods are refused, suspect, asleep or far; 0 makes State cheap
	now     time.Time
	cursor  int
	order   uint64
	first   *waiter
	last    *waiter
	held    int64
	flying  int64

	maxWaiting  int64     // 0 is the Budget's bound alone
	failure     string    // why no pod can start; "" when one can
	failing     time.Time // since when
	attempt     time.Time
	lastRequest time.Time
	deleted     bool
	timer       *time.Timer
	timerAt     time.Time
}

// waiter is one held request. Guarded by the queue's mutex; ready is closed when pod or err is set.
type waiter struct {
	previous, next *waiter
	ticket         *Ticket
	ready          chan struct{}
	pod            *pod
	err            error
}

// Ticket is a request's place in the queue. It keeps its place when a pod refuses the request.
type Ticket struct {
	// Waited is set once the request had to wait, Since is when that began.
	Waited bool
	Since  time.Time
	// Cold is set when there was no pod at all at that moment.
	Cold  bool
	order uint64
}

// Options are what a queue's owner wants to be told; each may be nil, and none may block.
type Options struct {
	// Pressure is called, without the lock, when the queue forms and whenever it has doubled.
	Pressure func(waiting int)
	// Open is called, under the lock, when a pod is first listed; what it returns is closed when
	// the pod is no longer listed.
	Open func(Backend) *reach.Pod
}

// New returns the queue of a revision whose pods take limit requests each (0: no limit). The queue
// closes the share when it is deleted.
func New(limit int, share *Share, options Options) *Queue {
	return &Queue{limit: limit, share: share, options: options}
}

// Share is what the revision's requests use of the budget.
func (q *Queue) Share() *Share { return q.share }

// Try binds the request to a pod with a free slot if there is one now and nobody waits for it.
func (q *Queue) Try() (Slot, bool) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.first != nil {
		return Slot{}, false
	}
	p := q.chooseLocked()
	return Slot{q, p}, p != nil
}

// Acquire binds the request to a pod with a free slot, waiting for one until ctx ends. The error is
// ctx's cause, ErrDeleted, *FullError or *CannotStartError.
func (q *Queue) Acquire(ctx context.Context, t *Ticket) (Slot, error) {
	q.mutex.Lock()
	if q.first == nil {
		if p := q.chooseLocked(); p != nil {
			q.mutex.Unlock()
			return Slot{q, p}, nil
		}
	}
	w, waiting, err := q.enqueueLocked(t)
	q.mutex.Unlock()
	if err != nil {
		return Slot{}, err
	}
	if q.options.Pressure != nil && waiting > 0 && waiting&(waiting-1) == 0 {
		q.options.Pressure(int(waiting))
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		q.mutex.Lock()
		switch {
		case w.pod != nil: // granted in the same moment: the slot goes to the next
			q.releaseLocked(w.pod)
			q.dispatchLocked()
		case w.err == nil:
			q.removeLocked(w)
		}
		q.mutex.Unlock()
		return Slot{}, context.Cause(ctx)
	}
	if w.err != nil {
		return Slot{}, w.err
	}
	return Slot{q, w.pod}, nil
}

// enqueueLocked adds a waiter at its ticket's place, and returns how many wait.
func (q *Queue) enqueueLocked(t *Ticket) (*waiter, int64, error) {
	if q.deleted {
		return nil, 0, ErrDeleted
	}
	now := time.Now()
	if q.attempt.IsZero() || now.Sub(q.lastRequest) > attemptEnds {
		q.attempt = now
	}
	q.lastRequest = now
	if t.order == 0 {
		if q.failure != "" && !q.aliveLocked(now) && !now.Before(q.failsLocked(q.attempt)) {
			return nil, 0, &CannotStartError{Reason: q.failure}
		}
		if q.maxWaiting > 0 && q.held >= q.maxWaiting {
			return nil, 0, &FullError{What: fmt.Sprintf("%d requests of this service wait already, the most it allows", q.held), Own: true}
		}
		if err := q.share.hold(); err != nil {
			return nil, 0, err
		}
		q.order++
		t.order, t.Since, t.Waited, t.Cold = q.order, now, true, len(q.pods) == 0
	} else {
		q.share.holdAgain()
	}
	w := &waiter{ticket: t, ready: make(chan struct{})}
	// A request that a pod refused is older than nearly all others: look for its place from the
	// front.
	after := q.last
	if after != nil && after.ticket.order > t.order {
		after = nil
		for next := q.first; next != nil && next.ticket.order < t.order; next = next.next {
			after = next
		}
	}
	w.previous = after
	if after == nil {
		w.next, q.first = q.first, w
	} else {
		w.next, after.next = after.next, w
	}
	if w.next == nil {
		q.last = w
	} else {
		w.next.previous = w
	}
	q.held++
	q.dispatchLocked()
	return w, q.held, nil
}

func (q *Queue) removeLocked(w *waiter) {
	if w.previous == nil {
		q.first = w.next
	} else {
		w.previous.next = w.next
	}
	if w.next == nil {
		q.last = w.previous
	} else {
		w.next.previous = w.previous
	}
	w.previous, w.next = nil, nil
	q.held--
	q.share.release()
}

// dispatchLocked grants free slots to waiting requests in order of arrival, fails those that waited
// long enough for a revision that cannot start, and sets the timer for whatever else time brings.
func (q *Queue) dispatchLocked() {
	for q.first != nil {
		p := q.chooseLocked()
		if p == nil {
			break
		}
		w := q.first
		q.removeLocked(w)
		w.pod = p
		close(w.ready)
	}
	if q.first == nil {
		return
	}
	now := time.Now()
	if q.failure != "" && !q.aliveLocked(now) {
		for q.first != nil && !now.Before(q.failsLocked(q.first.ticket.Since)) {
			q.failLocked(q.first, &CannotStartError{Reason: q.failure})
		}
	}
	if q.first != nil {
		q.setTimerLocked(now)
	}
}

// failsLocked is when what has waited since then is told that the revision cannot start.
func (q *Queue) failsLocked(since time.Time) time.Time {
	lasts := FailAfter
	if reason, _, _ := strings.Cut(q.failure, ":"); reason == unschedulable {
		lasts = RoomAfter
	}
	own, all := since.Add(FailAfter), q.failing.Add(lasts)
	if all.After(own) {
		return all
	}
	return own
}

func (q *Queue) failLocked(w *waiter, err error) {
	q.removeLocked(w)
	w.err = err
	close(w.ready)
}

// chooseLocked takes a slot at the pod that pick chooses, or returns nil.
func (q *Queue) chooseLocked() *pod {
	if len(q.pods) == 0 {
		return nil
	}
	if q.flagged > 0 {
		q.now = time.Now()
	}
	i, _ := pick.Choose((*view)(q), q.limit, q.cursor, rand.Uint64())
	if i < 0 {
		return nil
	}
	q.cursor = i + 1
	p := q.pods[i]
	if p.failures.Load() > 0 {
		p.rests = q.now.Add(p.rest())
	}
	p.inFlight++
	q.flying++
	return p
}

func (q *Queue) releaseLocked(p *pod) {
	p.inFlight--
	q.flying--
}

// aliveLocked says whether some pod is neither suspect nor resting.
func (q *Queue) aliveLocked(now time.Time) bool {
	for _, p := range q.pods {
		if !now.Before(p.suspect) {
			return true
		}
	}
	return false
}

// view shows a Queue's pods to pick; it is used under the queue's lock.
type view Queue

func (v *view) Len() int           { return len(v.pods) }
func (v *view) InFlight(i int) int { return v.pods[i].inFlight }
func (v *view) State(i int) pick.State {
	if v.flagged == 0 {
		return pick.Open
	}
	switch p := v.pods[i]; {
	case v.now.Before(p.rests):
		return pick.Resting
	case v.now.Before(p.suspect):
		return pick.Suspect
	case !p.refused.IsZero() && (v.first != nil || v.now.Sub(p.refused) < retryFull):
		return pick.Full // while requests wait, the timer says whose turn it is to be tried again
	case p.Asleep && p.inFlight == 0 && v.now.Sub(p.woke) >= wokeFor: // with a request in flight it wakes
		return pick.Asleep
	case p.Far:
		return pick.Far
	}
	return pick.Open
}
