package reconcile

import (
	"sync"

	"ebb.dev/ebb/controller/internal/apply"
)

// Refusals is what the API server refuses a PodAutoscaler: the Services and EndpointSlices of its
// revision, its HorizontalPodAutoscaler. Its own status is the autoscaler's, so the Revision of the
// same name tells it. One replica has the lease of both, because they have one name.
type Refusals struct {
	mu    sync.Mutex
	by    map[refusal]string
	tells []func(Key)
}

// OfPods is the name under which a refusal of what lists the pods of a revision is noted, its
// private Service.
const OfPods = "pods"

// refusal is whose objects are refused: reconcilers of one key know nothing of each other.
type refusal struct {
	reconciler string
	key        Key
}

// Tell calls the function with a key when its refusal changes.
func (r *Refusals) Tell(tell func(Key)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tells = append(r.tells, tell)
}

// Note keeps the error of a reconciler if it is a refusal, and forgets its last one otherwise.
func (r *Refusals) Note(reconciler string, key Key, err error) {
	of := refusal{reconciler, key}
	message := ""
	if apply.IsRefused(err) {
		message = err.Error()
	}
	r.mu.Lock()
	changed, tells := r.by[of] != message, r.tells
	if message == "" {
		delete(r.by, of)
	} else {
		if r.by == nil {
			r.by = map[refusal]string{}
		}
		r.by[of] = message
	}
	r.mu.Unlock()
	if changed {
		for _, tell := range tells {
			tell(key)
		}
	}
}

// Of returns what is refused of a key, or "".
func (r *Refusals) Of(key Key) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, by := range []string{OfPods, "endpoints", "hpa"} {
		if message := r.by[refusal{by, key}]; message != "" {
			return message
		}
	}
	return ""
}

// By returns what is refused of a key to one reconciler, or "".
func (r *Refusals) By(reconciler string, key Key) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.by[refusal{reconciler, key}]
}
