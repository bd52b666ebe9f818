package plans

import (
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/ingress/plan"
)

const (
	// patience is how long a request waits for a plan of its host. No request depends on it whose
	// Route is Ready: it is for what comes before that, and for a watch that is behind.
	patience = time.Second
	// maxWaiting is how many requests may wait so. For refusedFor after one has waited in vain,
	// others for the same host do not wait. maxRefused is how many hosts are remembered for that.
	maxWaiting = 1000
	maxRefused = 1000
	refusedFor = time.Second
	// maxHost is the longest name that a host has.
	maxHost = 253
	// waitCost is what such a request costs in memory: goroutines, buffers, its head.
	waitCost = 32 << 10
)

// Room bounds the requests that wait for a plan, so that hosts that nobody knows cost little.
type Room struct {
	// Account is where the memory of these requests is taken from.
	Account forward.Account
	// Patience is how long a request may wait.
	Patience time.Duration
	// Answered counts the requests that were answered 404, after a wait or without.
	Answered atomic.Int64

	mutex   sync.Mutex
	waiting int
	// refused says until when requests for a host do not wait. The names are in a ring, the oldest
	// at next.
	refused map[string]time.Time
	ring    [maxRefused]string
	next    int
}

// NewRoom returns a room without a request.
func NewRoom(account forward.Account) *Room {
	return &Room{Account: account, Patience: patience, refused: map[string]time.Time{}}
}

// place is what a request waits for.
func place(host string, from plan.Visibility) string {
	return string(from) + " " + plan.Canonical(host)
}

// Enter reports whether a request may wait. Leave must follow. Nobody waits for what no plan can
// have: a name is kept, and a client may send a long one.
func (r *Room) Enter(host string, from plan.Visibility, now time.Time) bool {
	if len(host) > maxHost || from != plan.External && from != plan.ClusterLocal {
		return false
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.waiting >= maxWaiting || now.Before(r.refused[place(host, from)]) || r.Account.Take(waitCost) != nil {
		return false
	}
	r.waiting++
	return true
}

// Leave ends the wait of a request, in vain or not.
func (r *Room) Leave(host string, from plan.Visibility, now time.Time, vain bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.waiting--
	r.Account.Give(waitCost)
	if !vain {
		return
	}
	name := place(host, from)
	if _, known := r.refused[name]; !known {
		delete(r.refused, r.ring[r.next])
		r.ring[r.next] = name
		r.next = (r.next + 1) % maxRefused
	}
	r.refused[name] = now.Add(refusedFor)
}

// Waiting is how many requests wait.
func (r *Room) Waiting() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.waiting
}
