package reconcile

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/client-go/tools/cache"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// Urgency is when the key of an object is reconciled because the object changed.
type Urgency uint8

const (
	AtOnce Urgency = iota
	// Soon is within soonWithin, and not at all if the key is reconciled before.
	Soon
	Never
)

// soonWithin is for how long a key waits for more to change.
const soonWithin = time.Second

// WatchNews is Watch for objects of which not every change matters. before is nil for an object
// that was added, after for one that was deleted. urgency runs in the informer's handler, so it
// must not block.
func (c *Controller) WatchNews(informer cache.SharedIndexInformer, toKeys func(object any) []Key, urgency func(before, after any) Urgency) {
	c.handle(informer, c.handler(toKeys, c.Enqueue, urgency))
}

// always is the urgency of what has only one.
func always(_, _ any) Urgency { return AtOnce }

// soon holds the keys that wait for more to change.
type soon struct {
	mutex sync.Mutex
	keys  map[Key]*time.Timer
}

// add calls due after soonWithin, unless the key waits already.
func (s *soon) add(key Key, due func()) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.keys[key] != nil {
		return
	}
	if s.keys == nil {
		s.keys = map[Key]*time.Timer{}
	}
	s.keys[key] = time.AfterFunc(soonWithin, func() {
		s.drop(key)
		due()
	})
}

// drop is called for a key that is reconciled now.
func (s *soon) drop(key Key) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if timer := s.keys[key]; timer != nil {
		timer.Stop()
		delete(s.keys, key)
	}
}

// BesidesScale leaves out a change of a Revision that tells only how many pods it has. Each cold
// start makes two.
func BesidesScale(before, after any) Urgency {
	a, ok1 := before.(*servingv1.Revision)
	b, ok2 := after.(*servingv1.Revision)
	if !ok1 || !ok2 || a.UID != b.UID || a.Generation != b.Generation || !a.DeletionTimestamp.Equal(b.DeletionTimestamp) ||
		!maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) || !slices.Equal(a.Finalizers, b.Finalizers) ||
		!equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) || !equality.Semantic.DeepEqual(withoutScale(a), withoutScale(b)) {
		return AtOnce
	}
	return Never
}

func withoutScale(rev *servingv1.Revision) servingv1.RevisionStatus {
	s := rev.Status
	s.ActualReplicas, s.DesiredReplicas, s.Conditions = nil, nil, make(duckv1.Conditions, 0, len(s.Conditions))
	for _, c := range rev.Status.Conditions {
		if c.Type != servingv1.RevisionConditionActive {
			s.Conditions = append(s.Conditions, c)
		}
	}
	return s
}
