package hold

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"ebb.dev/ebb/activator/internal/reach"
)

// Slot is the right to have one request in flight at a pod. Exactly one of its ends must be called:
// Release, Refused or Failed.
type Slot struct {
	queue *Queue
	pod   *pod
}

// Address is where to send the request.
func (s Slot) Address() netip.AddrPort { return s.pod.Address }

// Reach is what Options.Open returned for the pod.
func (s Slot) Reach() *reach.Pod { return s.pod.reach }

// Pod is the pod's name, as far as it is known.
func (s Slot) Pod() string { return s.pod.Pod }

// Release gives the slot back at the end of the exchange. answered says that the pod has responded,
// which ends any suspicion.
func (s Slot) Release(answered bool) {
	q := s.queue
	q.mutex.Lock()
	q.releaseLocked(s.pod)
	if q.flagged > 0 {
		s.pod.refused = time.Time{} // a slot is free there now
		if answered {
			s.pod.trust()
			if s.pod.Asleep {
				s.pod.woke = time.Now()
			}
		}
		q.recountLocked()
	}
	if q.first != nil {
		q.dispatchLocked()
	}
	q.mutex.Unlock()
}

// Refused gives the slot back because the pod itself has no free one: others fill it.
func (s Slot) Refused() {
	s.fail(func(p *pod) { p.refused = time.Now() })
}

// Failed gives the slot back because no connection to the pod could be made.
func (s Slot) Failed() {
	s.fail(func(p *pod) {
		now := time.Now()
		p.failures.Add(1)
		p.rests, p.suspect = now.Add(p.rest()), now.Add(suspectTimes*p.rest())
	})
}

// Answered says that the pod has responded, while the request is still there. Those that wait go to
// it at once if it was suspect.
func (s Slot) Answered() {
	if s.pod.failures.Load() == 0 {
		return
	}
	q := s.queue
	q.mutex.Lock()
	defer q.mutex.Unlock()
	s.pod.trust()
	q.recountLocked()
	if q.first != nil {
		q.dispatchLocked()
	}
}

// silentFor is how long a pod is suspect whose node did not answer. Who found out does so again
// each second.
const silentFor = 3 * time.Second

// Silent says that nobody answers on the node of these pods. Others are preferred for a while, and
// a request that goes to one of them all the same opens a new connection: what is sent on one that
// was idle is lost.
func (q *Queue) Silent(addresses map[netip.Addr]bool) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	now, found := time.Now(), false
	for _, p := range q.pods {
		if !addresses[p.Address.Addr()] {
			continue
		}
		found = true
		p.failures.CompareAndSwap(0, 1)
		p.suspect = now.Add(silentFor)
		if p.reach != nil {
			go p.reach.CloseIdle() // many take a while
		}
	}
	if found {
		q.recountLocked()
		q.dispatchLocked()
	}
}

// rest is the pause after the failures that the pod has had in a row.
func (p *pod) rest() time.Duration {
	return min(restFirst<<min(p.failures.Load()-1, 5), restMost)
}

func (s Slot) fail(change func(*pod)) {
	q := s.queue
	q.mutex.Lock()
	q.releaseLocked(s.pod)
	change(s.pod)
	q.recountLocked()
	q.dispatchLocked()
	q.mutex.Unlock()
}

func (p *pod) trust() {
	p.failures.Store(0)
	p.rests, p.suspect = time.Time{}, time.Time{}
}

// recountLocked counts the pods that State has to look at.
func (q *Queue) recountLocked() {
	q.flagged = 0
	for _, p := range q.pods {
		if !p.refused.IsZero() || p.failures.Load() > 0 || p.Asleep || p.Far {
			q.flagged++
		}
	}
}

// SlotFree is called when a pod says that it keeps a slot for this activator. It reports whether a
// request waited for it.
func (q *Queue) SlotFree(address netip.AddrPort) bool {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.first == nil {
		return false
	}
	for _, p := range q.pods {
		if p.Address == address {
			p.refused = time.Time{}
			p.trust()
			q.recountLocked()
			before := q.held
			q.dispatchLocked()
			return q.held < before
		}
	}
	return false
}

// SetPods replaces the pods, which must be in address order. What is in flight at pods that stay is
// kept.
func (q *Queue) SetPods(backends []Backend) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.deleted {
		return
	}
	old := make(map[Backend]*pod, len(q.pods))
	for _, p := range q.pods {
		old[p.same()] = p
	}
	pods := make([]*pod, 0, len(backends))
	for _, b := range backends {
		p := old[b.same()]
		if p == nil {
			p = &pod{Backend: b}
			if q.options.Open != nil {
				p.reach = q.options.Open(b)
			}
		}
		p.Asleep, p.Far = b.Asleep, b.Far
		delete(old, b.same())
		pods = append(pods, p)
	}
	if len(pods) > 0 && len(q.pods) == 0 {
		q.attempt = time.Time{} // it did start
	}
	q.pods = pods
	closeAll(maps.Values(old))
	q.recountLocked()
	q.dispatchLocked()
}

// closeAll closes the connections to pods. Many take a while, and the queue's lock is held.
func closeAll(pods iter.Seq[*pod]) {
	for p := range pods {
		if p.reach != nil {
			go p.reach.Close()
		}
	}
}

// SetFailure says why the revision cannot start, or with "" that nothing prevents it.
func (q *Queue) SetFailure(reason string) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.failure == "" {
		q.failing = time.Now()
	}
	q.failure = reason
	if reason == "" {
		q.attempt = time.Time{}
	}
	q.dispatchLocked()
}

// SetMaxWaiting bounds the requests that wait from now on; those that do are not turned away. 0 is
// no bound but the Budget's.
func (q *Queue) SetMaxWaiting(n int64) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.maxWaiting = n
}

// Delete fails everything that waits, now and later, with ErrDeleted.
func (q *Queue) Delete() {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	if q.deleted {
		return
	}
	q.share.close()
	closeAll(slices.Values(q.pods))
	q.deleted, q.pods, q.flagged = true, nil, 0
	for q.first != nil {
		q.failLocked(q.first, ErrDeleted)
	}
	if q.timer != nil {
		q.timer.Stop()
	}
}

// Load is how many requests wait and how many are in flight now.
func (q *Queue) Load() (waiting, inFlight int64) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	return q.held, q.flying
}

// setTimerLocked arranges for tick at the next moment at which time alone changes something for
// those that wait. It is called only while something waits.
func (q *Queue) setTimerLocked(now time.Time) {
	var next time.Time
	sooner := func(t time.Time) {
		if t.After(now) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	if q.flagged > 0 {
		for _, p := range q.pods {
			sooner(p.rests)
			sooner(p.suspect)
			if !p.refused.IsZero() {
				if again := p.refused.Add(retryFull); again.After(now) {
					sooner(again)
				} else {
					sooner(now.Add(retryFull)) // its turn did not come in this batch
				}
			}
		}
	}
	if q.failure != "" && !q.aliveLocked(now) {
		sooner(q.failsLocked(q.first.ticket.Since))
	}
	switch {
	case next.IsZero():
		return
	case q.timer == nil:
		q.timer = time.AfterFunc(next.Sub(now), q.tick)
	case q.timerAt.IsZero() || next.Before(q.timerAt):
		q.timer.Reset(next.Sub(now))
	default:
		return // an earlier tick will look again
	}
	q.timerAt = next
}

// tick lets the pods that refused longest ago be tried again, a few at a time, and dispatches.
func (q *Queue) tick() {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.timerAt = time.Time{}
	if q.deleted || q.first == nil {
		return
	}
	now := time.Now()
	for range retryFullBatch {
		var oldest *pod
		for _, p := range q.pods {
			if !p.refused.IsZero() && now.Sub(p.refused) >= retryFull && (oldest == nil || p.refused.Before(oldest.refused)) {
				oldest = p
			}
		}
		if oldest == nil {
			break
		}
		oldest.refused = time.Time{}
	}
	q.recountLocked()
	q.dispatchLocked()
}
