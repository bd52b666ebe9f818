package admit

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/names"
)

// PodDryRun asks the API server whether it would take a pod made of a template. Nothing is created.
func PodDryRun(client kubernetes.Interface) DryRun {
	return func(ctx context.Context, namespace string, parent *metav1.ObjectMeta, spec *corev1.PodSpec) error {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: names.Child("dry-run-validation", "-"+parent.Name), Namespace: namespace},
			Spec:       *spec.DeepCopy(),
		}
		// Probes are queue-proxy's or get the port that only the real pod has.
		for i := range pod.Spec.Containers {
			c := &pod.Spec.Containers[i]
			c.ReadinessProbe, c.LivenessProbe, c.StartupProbe = nil, nil, nil
		}
		_, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
}
