package cluster

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ScaleActivators sets the number of activator replicas and waits until they are ready. It returns
// a function that sets the previous minimum again.
func (c *Cluster) ScaleActivators(ctx context.Context, n int32) (restore func(context.Context) error, err error) {
	set := func(ctx context.Context, n int32) error {
		bound := fmt.Appendf(nil, `{"spec":{"minReplicas":%d}}`, n)
		if _, err := c.Kube.AutoscalingV2().HorizontalPodAutoscalers(System).Patch(ctx, "activator", types.MergePatchType, bound, metav1.PatchOptions{}); err != nil {
			return err
		}
		replicas := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n) // at once, without waiting for the HorizontalPodAutoscaler's next sync
		_, err := c.Kube.AppsV1().Deployments(System).Patch(ctx, "activator", types.MergePatchType, replicas, metav1.PatchOptions{}, "scale")
		return err
	}
	before, err := c.Kube.AutoscalingV2().HorizontalPodAutoscalers(System).Get(ctx, "activator", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	restore = func(ctx context.Context) error { return set(ctx, *before.Spec.MinReplicas) }
	if err := set(ctx, n); err != nil {
		return restore, err
	}
	return restore, Until(ctx, func() (bool, string, error) {
		deployment, err := c.Kube.AppsV1().Deployments(System).Get(ctx, "activator", metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		// Its status can still tell of pods that are going: of those that another test had.
		pods, err := c.Kube.CoreV1().Pods(System).List(ctx, metav1.ListOptions{LabelSelector: "app=activator"})
		if err != nil {
			return false, err.Error(), nil
		}
		ready := len(ReadyPods(pods.Items))
		done := deployment.Status.ObservedGeneration >= deployment.Generation && ready == int(n)
		return done, fmt.Sprintf("%d of %d activators are ready", ready, n), nil
	})
}
