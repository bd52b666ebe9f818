package spec

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/internal/interned"
	"ebb.dev/ebb/settings"
)

// Source is the loop's Source over a lister of PodAutoscalers.
type Source struct {
	// Get returns a PodAutoscaler, nil when there is none.
	Get      func(namespace, name string) *v1alpha1.PodAutoscaler
	Settings *settings.Store
	Owns     func(loop.Key) bool
	Log      *slog.Logger

	// Ignored counts annotations that were invalid or contradicted others, once for each generation
	// of an object.
	Ignored atomic.Int64

	rules interned.Few[*revision.Rules]

	// told is the generation of each object at which its problems were logged.
	mutex sync.Mutex
	told  map[types.UID]int64
}

// Spec implements loop.Source.
func (s *Source) Spec(key loop.Key) *loop.Spec {
	pa := s.Get(key.Namespace, key.Name)
	snapshot := s.Settings.Load()
	if pa == nil || pa.DeletionTimestamp != nil || !s.Owns(key) || !Ours(pa, snapshot.Autoscaler) {
		return nil
	}
	spec, problems := Resolve(pa, snapshot.Rules())
	spec.Rules = s.rules.Same(spec.Rules)
	s.tell(key, pa, problems)
	return spec
}

// Given implements loop.Options.Given.
func (s *Source) Given(key loop.Key) bool {
	pa := s.Get(key.Namespace, key.Name)
	return pa != nil && pa.DeletionTimestamp == nil && s.Owns(key) && !Ours(pa, s.Settings.Load().Autoscaler)
}

func (s *Source) tell(key loop.Key, pa *v1alpha1.PodAutoscaler, problems []string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if len(problems) == 0 {
		delete(s.told, pa.UID)
		return
	}
	if s.told == nil || len(s.told) > 10_000 {
		s.told = map[types.UID]int64{}
	}
	if generation, ok := s.told[pa.UID]; ok && generation == pa.Generation {
		return
	}
	s.told[pa.UID] = pa.Generation
	s.Ignored.Add(int64(len(problems)))
	s.Log.Warn("some annotations of a PodAutoscaler are ignored", "podautoscaler", key.String(), "problems", problems)
}
