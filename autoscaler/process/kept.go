package process

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/internal/interned"
)

// kept is what is kept of a PodAutoscaler: a few hundred bytes. What it asks for and what its
// status says are the same for many, except for names and times, so these are kept as texts that
// equal ones share. Whose the object is and how its last decision came about are not kept: nobody
// reads them, and what is written to it are patches.
type kept struct {
	interned.Identity
	uid                    types.UID
	generation             int64
	service, configuration string
	asks, says             unique.Handle[string]
	since                  []int64 // of each condition, in seconds
}

func (k *kept) key() loop.Key { return loop.Key{Namespace: k.Namespace, Name: k.Name} }

// own stands for the name of the object in these texts. No name has it.
const own = "*"

// keep makes a kept of a PodAutoscaler, which nobody else may use.
func keep(pa *v1alpha1.PodAutoscaler) (*kept, error) {
	k := &kept{Identity: interned.IdentityOf(pa), uid: pa.UID, generation: pa.Generation}
	k.service, k.configuration = interned.Part(pa.Name, pa.Labels[names.ServiceLabel]), interned.Part(pa.Name, pa.Labels[names.ConfigurationLabel])
	for _, field := range named(pa) {
		if rest, is := strings.CutPrefix(*field, pa.Name); is {
			*field = own + rest
		}
	}
	conditions := pa.Status.Conditions
	k.since = make([]int64, len(conditions))
	for i := range conditions {
		if at := &conditions[i].LastTransitionTime.Inner; !at.IsZero() {
			k.since[i], *at = at.Unix(), metav1.Time{}
		}
	}
	pa.Status.Decision = nil
	var err error
	if k.asks, err = text(&v1alpha1.PodAutoscaler{Spec: pa.Spec,
		ObjectMeta: metav1.ObjectMeta{Annotations: pa.Annotations, DeletionTimestamp: pa.DeletionTimestamp}}); err != nil {
		return nil, err
	}
	k.says, err = text(&pa.Status)
	return k, err
}

// named returns the fields that have names made of the object's own.
func named(pa *v1alpha1.PodAutoscaler) []*string {
	return []*string{&pa.Spec.ScaleTargetRef.Name, &pa.Status.ServiceName, &pa.Status.MetricsServiceName}
}

func text(o any) (unique.Handle[string], error) {
	encoded, err := json.Marshal(o)
	if err != nil {
		return unique.Handle[string]{}, fmt.Errorf("keep a PodAutoscaler: %w", err)
	}
	return unique.Make(string(encoded)), nil
}

// podAutoscaler returns the object, without what is not kept.
func (k *kept) podAutoscaler() *v1alpha1.PodAutoscaler {
	pa := &v1alpha1.PodAutoscaler{}
	// What an object was encoded to can be decoded.
	_ = json.Unmarshal([]byte(k.asks.Value()), pa)
	_ = json.Unmarshal([]byte(k.says.Value()), &pa.Status)
	pa.Namespace, pa.Name, pa.UID, pa.ResourceVersion, pa.Generation = k.Namespace, k.Name, k.uid, k.Version, k.generation
	pa.Labels = map[string]string{}
	for key, value := range map[string]string{names.ServiceLabel: k.service, names.ConfigurationLabel: k.configuration} {
		if value != "" {
			pa.Labels[key] = value
		}
	}
	for _, field := range named(pa) {
		if rest, is := strings.CutPrefix(*field, own); is {
			*field = pa.Name + rest
		}
	}
	for i, at := range k.since {
		if at != 0 {
			pa.Status.Conditions[i].LastTransitionTime.Inner = metav1.NewTime(time.Unix(at, 0))
		}
	}
	return pa
}
