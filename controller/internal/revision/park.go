package revision

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// parkAfter is how long no Route has led to a revision before its children are taken away.
const parkAfter = time.Minute

// A revision that nobody routes to and that has no pods is parked: of all that was made for it only the Revision stays. The
// annotation names.ParkedAnnotation is the lock between whoever routes and whoever takes away (decision 0007):
//
//	annotation  routing state  the children                      a Route may lead requests to it
//	none        not reserve    all there                         yes
//	none        reserve        all there                         no, until the labeler has made it active
//	set         reserve        taken away                        no
//	set         not reserve    made anew; then the annotation    no
//	                           is removed
//
// It is set with the version of the Revision that was seen in reserve, so it fails when the labeler was faster; when the labeler
// is slower, the Route waits until the annotation is gone.

// parkable reports whether everything is in place for parking, but for what is left to wait.
func parkable(rev *servingv1.Revision, o observation, s *settings.Snapshot, now time.Time) (wait time.Duration, ok bool) {
	switch {
	case rev.RoutingState() != names.RoutingReserve, rev.Annotations[names.NoGCAnnotation] == "true":
		return 0, false
	case o.deployment == nil, o.autoscaler == nil, !atZero(o.deployment), len(o.pods) > 0:
		return 0, false
	case !wantsNothing(o.autoscaler, s.Autoscaler.Class):
		return 0, false
	}
	since, err := time.Parse(time.RFC3339, rev.Annotations[names.RoutingStateModifiedAnnotation])
	if err != nil {
		return 0, false
	}
	return max(0, since.Add(parkAfter).Sub(now)), true
}

// wantsNothing: the autoscaler is Ebb's own, has said its last word, and it is zero. One of another class may have plans.
func wantsNothing(pa *autoscalingv1alpha1.PodAutoscaler, defaultClass string) bool {
	return cmp.Or(pa.Annotations[names.ClassAnnotation], defaultClass) == names.ClassKPA && pa.Status.ObservedGeneration == pa.Generation &&
		pa.Spec.Reachability == autoscalingv1alpha1.ReachabilityUnreachable &&
		pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive).IsFalse() &&
		pa.Status.DesiredScale != nil && *pa.Status.DesiredScale == 0
}

// park marks the revision; what has to go goes when the mark is seen.
func (r *reconciler) park(ctx context.Context, rev *servingv1.Revision, wasUp bool) error {
	how := names.ParkedNeverUp
	if wasUp {
		how = names.ParkedWasUp
	}
	if err := r.mark(ctx, rev, how); err != nil {
		return err
	}
	r.world.Events.Event(rev, corev1.EventTypeNormal, "Parked", "No Route leads here and no pod runs: only the Revision is kept until one does")
	return nil
}

func (r *reconciler) mark(ctx context.Context, rev *servingv1.Revision, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": rev.ResourceVersion, "annotations": map[string]any{names.ParkedAnnotation: value}}})
	if err != nil {
		return err
	}
	_, err = r.world.Ebb.ServingV1().Revisions(rev.Namespace).Patch(ctx, rev.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("mark revision %s/%s as parked or not: %w", rev.Namespace, rev.Name, err)
	}
	return nil
}

// parked reconciles a revision that carries the mark.
func (r *reconciler) parked(ctx context.Context, rev *servingv1.Revision, s *settings.Snapshot) error {
	d, err := r.deployments.Deployments(rev.Namespace).Get(names.Deployment(rev.Name))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	hasDeployment := err == nil
	pa, err := r.autoscalers.PodAutoscalers(rev.Namespace).Get(names.PodAutoscaler(rev.Name))
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	hasAutoscaler := err == nil
	// What is on its way out has to be gone before anything of that name can be made; the event that says so brings us back.
	going := hasDeployment && !d.DeletionTimestamp.IsZero() || hasAutoscaler && !pa.DeletionTimestamp.IsZero()

	if rev.RoutingState() == names.RoutingReserve && (!hasDeployment || atZero(d)) {
		// In this order, and the Deployment only as it was seen: if somebody has scaled it up since, it stays.
		if hasDeployment && d.DeletionTimestamp.IsZero() {
			err := r.world.Kube.AppsV1().Deployments(rev.Namespace).Delete(ctx, d.Name, together(&d.ObjectMeta))
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("park revision %s/%s: delete Deployment: %w", rev.Namespace, rev.Name, err)
			}
		}
		if hasAutoscaler && pa.DeletionTimestamp.IsZero() {
			options := together(&pa.ObjectMeta)
			options.Preconditions.ResourceVersion = nil
			err := r.world.Ebb.AutoscalingV1alpha1().PodAutoscalers(rev.Namespace).Delete(ctx, pa.Name, options)
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("park revision %s/%s: delete PodAutoscaler: %w", rev.Namespace, rev.Name, err)
			}
		}
		return nil
	}
	if going {
		return nil
	}

	wasUp := rev.Annotations[names.ParkedAnnotation] == names.ParkedWasUp
	if !hasDeployment {
		if _, err := r.deployment(ctx, rev, s, pa, wasUp); err != nil {
			return err
		}
	}
	if !hasAutoscaler {
		if pa, err = r.autoscaler(ctx, rev, nil, false, wasUp); err != nil {
			return err
		}
	}
	if ok, err := r.reachable(pa); err != nil || !ok {
		return err
	}
	return r.mark(ctx, rev, nil)
}

// together are the options that delete an object, as it was seen, with all it owns: its dependents go first, so nothing of it is
// left when it is gone.
func together(seen *metav1.ObjectMeta) metav1.DeleteOptions {
	foreground := metav1.DeletePropagationForeground
	return metav1.DeleteOptions{PropagationPolicy: &foreground,
		Preconditions: &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion}}
}

// reachable reports whether requests to the public Service of a revision find somebody. It looks into the caches that the
// reconciler of Routes looks into, so what is there for one is there for the other.
func (r *reconciler) reachable(pa *autoscalingv1alpha1.PodAutoscaler) (bool, error) {
	service, err := r.services.Services(pa.Namespace).Get(names.PublicService(pa.Name))
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(service, pa) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	slices, err := r.slices.EndpointSlices(pa.Namespace).List(labels.SelectorFromSet(labels.Set{
		names.ServerlessServiceLabel: pa.Name, names.ServiceTypeLabel: names.ServiceTypePublic}))
	if err != nil {
		return false, err
	}
	for _, slice := range slices {
		if metav1.IsControlledBy(slice, pa) && len(slice.Endpoints) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// parkedRevision maps a Service or EndpointSlice to its revision if that waits for it.
func (r *reconciler) parkedRevision(object any) []types.NamespacedName {
	m, ok := object.(metav1.Object)
	if !ok {
		return nil
	}
	rev, err := r.revisions.Revisions(m.GetNamespace()).Get(m.GetLabels()[names.RevisionLabel])
	if err != nil || rev.Annotations[names.ParkedAnnotation] == "" {
		return nil
	}
	return []types.NamespacedName{{Namespace: rev.Namespace, Name: rev.Name}}
}
