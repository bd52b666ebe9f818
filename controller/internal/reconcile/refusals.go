package reconcile

import (
	"sync"

	"ebb.dev/ebb/controller/internal/apply"
)

// Refusals is what the API server refuses a PodAutoscaler: the Services and EndpointSlices of its
// revision. Its own status is the autoscaler's, so the Revision of the same name tells it. One
// replica has the lease of both, because they have one name.
type Refusals struct {
	mu    sync.Mutex
	by    map[Key]string
	tells []func(Key)
}

// Tell calls the function with a key when its refusal changes.
func (r *Refusals) Tell(tell func(Key)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tells = append(r.tells, tell)
}

// Note keeps the error of a reconcile if it is a refusal, and forgets the last one otherwise.
func (r *Refusals) Note(key Key, err error) {
	message := ""
	if apply.IsRefused(err) {
		message = err.Error()
	}
	r.mu.Lock()
	changed, tells := r.by[key] != message, r.tells
	if message == "" {
		delete(r.by, key)
	} else {
		if r.by == nil {
			r.by = map[Key]string{}
		}
		r.by[key] = message
	}
	r.mu.Unlock()
	if changed {
		for _, tell := range tells {
			tell(key)
		}
	}
}

// Of returns the refusal of a key, or "".
func (r *Refusals) Of(key Key) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[key]
}
