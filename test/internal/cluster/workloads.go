package cluster

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// PodIsReady reports whether a pod has the condition Ready.
func PodIsReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ReadyPods returns the pods that are Ready and that nobody has deleted. Who has deleted pods and
// waits for others asks for these: the status of their Deployment tells of the deleted ones for a
// while.
func ReadyPods(pods []corev1.Pod) (ready []corev1.Pod) {
	for i := range pods {
		if pods[i].DeletionTimestamp == nil && PodIsReady(&pods[i]) {
			ready = append(ready, pods[i])
		}
	}
	return ready
}

// AwaitDeployment waits until a Deployment has as many pods as it wants, all of them available and
// of its newest template.
func (c *Cluster) AwaitDeployment(ctx context.Context, namespace, name string) error {
	return Until(ctx, func() (bool, string, error) {
		d, err := c.Kube.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		done, seen := rolledOut(d)
		return done, seen, nil
	})
}

// rolledOut looks at the status only if it is about the spec of now.
func rolledOut(d *appsv1.Deployment) (done bool, seen string) {
	want, s := ptr.Deref(d.Spec.Replicas, 1), &d.Status
	done = s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && s.Replicas == want
	return done, fmt.Sprintf("%s: generation %d of %d, %d pods, %d updated, %d available, want %d",
		d.Name, s.ObservedGeneration, d.Generation, s.Replicas, s.UpdatedReplicas, s.AvailableReplicas, want)
}
