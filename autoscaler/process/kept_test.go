package process

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

// What is kept of a PodAutoscaler is what the loop and the writer read of it, and revisions at zero
// share nearly all of it.
func TestAKeptPodAutoscalerIsReadAsItWas(t *testing.T) {
	full := atZero("hello")
	full.ResourceVersion, full.Labels[names.ServiceLabel] = "7", "another"
	full.DeletionTimestamp = ptr.To(metav1.Unix(7, 0))
	full.Status.Mode, full.Status.DesiredScale, full.Status.IdleTimes = v1alpha1.ModeProxy, ptr.To(int32(0)), "1m20s=3.2"
	full.Status.Learned = &v1alpha1.LearnedTarget{Time: metav1.Unix(8, 0), Concurrency: "3", Throughput: "4"}
	full.Spec.ScaleTargetRef = corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "of-another"}
	for what, pa := range map[string]*v1alpha1.PodAutoscaler{"at zero": atZero("hello"), "with all": full, "empty": {}} {
		for i := range pa.Status.Conditions { // as the API has them
			at := &pa.Status.Conditions[i].LastTransitionTime.Inner
			*at = metav1.NewTime(at.Truncate(time.Second))
		}
		want := pa.DeepCopy()
		want.OwnerReferences, want.Status.Decision = nil, nil
		want.Labels = map[string]string{}
		for _, key := range []string{names.ServiceLabel, names.ConfigurationLabel} {
			if value := pa.Labels[key]; value != "" {
				want.Labels[key] = value
			}
		}
		k, err := keep(pa)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, k.podAutoscaler()); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	one, _ := keep(atZero("hello"))
	two, _ := keep(atZero("hi"))
	if one.asks != two.asks || one.says != two.says {
		t.Errorf("two at zero differ: %s and %s, %s and %s", one.asks.Value(), two.asks.Value(), one.says.Value(), two.says.Value())
	}
}
