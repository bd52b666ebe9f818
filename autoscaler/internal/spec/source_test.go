package spec

import (
	"testing"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/settings"
)

// A lost lease must not look like a change of the class: its revisions would all be woken.
func TestOnlyARevisionOfThisReplicaIsGivenAway(t *testing.T) {
	for name, c := range map[string]struct {
		class string
		owns  bool
		want  bool
	}{
		"ours":                      {names.ClassKPA, true, false},
		"ours, and the lease went":  {names.ClassKPA, false, false},
		"another's":                 {names.ClassHPA, true, true},
		"another's, and not to say": {names.ClassHPA, false, false},
		"deleted":                   {"", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Source{Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return c.owns },
				Get: func(string, string) *v1alpha1.PodAutoscaler {
					if c.class == "" {
						return nil
					}
					pa := &v1alpha1.PodAutoscaler{}
					pa.Annotations = map[string]string{names.ClassAnnotation: c.class}
					return pa
				}}
			if got := s.Given(loop.Key{Namespace: "ns", Name: "a"}); got != c.want {
				t.Errorf("given away: %v", got)
			}
		})
	}
}
