package revision

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

// deployment makes the Deployment exist as the Revision says. atZero is for a revision that once
// had its initial pods and whose Deployment is created again.
func (r *reconciler) deployment(ctx context.Context, rev *servingv1.Revision, s *settings.Snapshot,
	pa *autoscalingv1alpha1.PodAutoscaler, atZero bool) (*appsv1.Deployment, error) {
	have, found, err := apply.Found(r.deployments.Deployments(rev.Namespace).Get(names.Deployment(rev.Name)))
	if err != nil {
		return nil, err
	}
	replicas := initialReplicas(rev, pa, s)
	if atZero {
		replicas = 0
	}
	want, err := MakeDeployment(rev, replicas, r.inputs(rev, s))
	if err != nil {
		return nil, err
	}
	client := r.mgr.Kube.AppsV1().Deployments(rev.Namespace)
	if found && due(have, want) {
		// The cache has only a part of it, and an update with that would take away the rest.
		if have, err = client.Get(ctx, have.Name, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("read Deployment %s/%s: %w", want.Namespace, want.Name, err)
		}
	}
	after, outcome, err := apply.Child(ctx, client, "Deployment", rev,
		have, found, want, mergeDeployment)
	if outcome == apply.Created && err == nil && !reconcile.IsNew(rev) {
		r.mgr.Events.Eventf(rev, corev1.EventTypeNormal, "Created", "Created Deployment %q", after.Name)
	}
	if err != nil && found {
		return have, err // its pods still run and tell their state
	}
	return after, err
}

func (r *reconciler) autoscaler(ctx context.Context, rev *servingv1.Revision, have *autoscalingv1alpha1.PodAutoscaler,
	neverStarted, wasUp bool) (*autoscalingv1alpha1.PodAutoscaler, error) {
	want := MakePodAutoscaler(rev, reachability(rev, neverStarted))
	if config, found, err := apply.Found(r.configurations.Configurations(rev.Namespace).Get(rev.Labels[names.ConfigurationLabel])); err != nil {
		return have, err
	} else if found {
		maps.Copy(want.Annotations, live(config))
	}
	if wasUp && have == nil {
		want.Annotations[names.InitializedAnnotation] = "true"
	}
	after, _, err := apply.Child(ctx, r.mgr.Ebb.AutoscalingV1alpha1().PodAutoscalers(rev.Namespace), "PodAutoscaler", rev,
		have, have != nil, want, mergePodAutoscaler)
	if err != nil && have != nil {
		return have, err
	}
	return after, err
}

// live returns the annotations of a Configuration that count for its Revisions at once. The
// PodAutoscaler has them from here: Revisions are not written for them.
func live(config *servingv1.Configuration) map[string]string {
	annotations := maps.Clone(config.Annotations)
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !slices.Contains(names.LiveAnnotations, key) })
	return annotations
}

// ofChanged returns the keys of the Revisions of a Configuration whose live annotations, or whose
// newest Revision changed.
func (r *reconciler) ofChanged(before, after *servingv1.Configuration) (keys []reconcile.Key) {
	if maps.Equal(live(before), live(after)) && before.Status.LatestCreatedRevisionName == after.Status.LatestCreatedRevisionName {
		return nil
	}
	for _, rev := range r.madeBy.Of(after.Namespace, after.Name) {
		keys = append(keys, reconcile.Self(rev)...)
	}
	return keys
}

// initialReplicas returns the replicas of a new Deployment: what the autoscaler wanted last, if
// somebody deleted the old Deployment, else the initial scale.
func initialReplicas(rev *servingv1.Revision, pa *autoscalingv1alpha1.PodAutoscaler, s *settings.Snapshot) int32 {
	if pa != nil && pa.DeletionTimestamp.IsZero() && pa.Status.DesiredScale != nil && *pa.Status.DesiredScale >= 0 {
		return *pa.Status.DesiredScale
	}
	scales, _ := rev.Meaning(s.Rules()).Scaling.Scales(s.Autoscaler)
	return scales.Initial
}
