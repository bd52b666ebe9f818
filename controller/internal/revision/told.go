package revision

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// letTell makes queue-proxy read what the user container tells of its load, if the revision is
// scaled by it.
func letTell(rev *servingv1.Revision, sidecar *corev1.Container) error {
	scaling, _ := names.ParseScaling(rev.Annotations) // admission rejected errors
	told := scaling.WireTold(rev.Spec.Port())
	if len(told) == 0 {
		return nil
	}
	text, err := json.Marshal(told)
	if err != nil {
		return fmt.Errorf("encode metrics for queue-proxy: %w", err)
	}
	sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: "EBB_TOLD_METRICS", Value: string(text)})
	return nil
}
