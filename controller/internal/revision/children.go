package revision

import (
	"context"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/settings"
)

// deployment brings the Deployment up to date. atZero is for one that is made again for a revision that had its initial pods once.
func (r *reconciler) deployment(ctx context.Context, rev *servingv1.Revision, s *settings.Snapshot,
	pa *autoscalingv1alpha1.PodAutoscaler, atZero bool) (*appsv1.Deployment, error) {
	have, err := r.deployments.Deployments(rev.Namespace).Get(names.Deployment(rev.Name))
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	found := err == nil
	replicas := initialReplicas(rev, pa, s.Autoscaler)
	if atZero {
		replicas = 0
	}
	want, err := MakeDeployment(rev, replicas, r.inputs(rev, s))
	if err != nil {
		return nil, err
	}
	after, outcome, err := apply.Child(ctx, r.world.Kube.AppsV1().Deployments(rev.Namespace), "Deployment", rev,
		have, found, want, mergeDeployment)
	if outcome == apply.Created && err == nil {
		r.world.Events.Eventf(rev, corev1.EventTypeNormal, "Created", "Created Deployment %q", after.Name)
	}
	if err != nil && found {
		return have, err // what runs goes on running and tells how it fares
	}
	return after, err
}

func (r *reconciler) autoscaler(ctx context.Context, rev *servingv1.Revision, have *autoscalingv1alpha1.PodAutoscaler,
	neverStarted, wasUp bool) (*autoscalingv1alpha1.PodAutoscaler, error) {
	want := MakePodAutoscaler(rev, reachability(rev, neverStarted))
	if wasUp && have == nil {
		want.Annotations[names.InitializedAnnotation] = "true"
	}
	after, _, err := apply.Child(ctx, r.world.Ebb.AutoscalingV1alpha1().PodAutoscalers(rev.Namespace), "PodAutoscaler", rev,
		have, have != nil, want, mergePodAutoscaler)
	if err != nil && have != nil {
		return have, err
	}
	return after, err
}

// initialReplicas is what a Deployment is made with: what the autoscaler last wanted, if it has spoken (somebody deleted the
// Deployment), else the initial scale.
func initialReplicas(rev *servingv1.Revision, pa *autoscalingv1alpha1.PodAutoscaler, limits settings.Autoscaler) int32 {
	if pa != nil && pa.Status.DesiredScale != nil && *pa.Status.DesiredScale >= 0 {
		return *pa.Status.DesiredScale
	}
	for _, key := range []string{names.InitialScaleAnnotation, names.AutoscalingGroup + "/initialScale"} {
		if text, given := rev.Annotations[key]; given {
			if n, err := strconv.ParseInt(text, 10, 32); err == nil && (n > 0 || n == 0 && limits.AllowZeroInitialScale) {
				return int32(n)
			}
			break
		}
	}
	return limits.InitialScale
}
