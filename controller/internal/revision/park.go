package revision

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/settings"
)

// parkAfter is how long no Route has led to a revision before its children are deleted.
const parkAfter = time.Minute

// A revision without a Route and without pods is parked: its children are deleted, and only the
// Revision stays. The annotation names.ParkedAnnotation is the lock between the reconciler of
// Routes and this one (decision 0007):
//
//	annotation  routing state  the children                      a Route may lead requests to it
//	none        not reserve    exist                             yes
//	none        reserve        exist                             no, until the labeler has made it active
//	set         reserve        deleted                           no
//	set         not reserve    created again; then the           no
//	                           annotation is removed
//
// A revision that an HTTPRoute names is not parked, whatever its state: an update of a Route that
// cannot be written leaves the gateways where they are.
//
// The patch that sets it has the resource version of the Revision in reserve, so it fails if the
// labeler was faster. If the labeler is slower, the Route waits until the annotation is removed.

// parkable reports whether the revision can be parked, and after what time.
func parkable(rev *servingv1.Revision, o observation, s *settings.Snapshot, now time.Time) (wait time.Duration, ok bool) {
	switch {
	case rev.RoutingState() != names.RoutingReserve, rev.Annotations[names.NoGCAnnotation] == "true":
		return 0, false
	case o.newest && !o.initialized(): // its Configuration waits for it
		return 0, false
	case !o.away && (o.deployment == nil || !atZero(o.deployment)), o.autoscaler == nil, len(o.current()) > 0:
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

// wantsNothing reports whether Ebb's own autoscaler has seen the last change and wants no pods.
// Another class may have its own plans.
func wantsNothing(pa *autoscalingv1alpha1.PodAutoscaler, defaultClass string) bool {
	return cmp.Or(pa.Annotations[names.ClassAnnotation], defaultClass) == names.ClassKPA && pa.Status.ObservedGeneration == pa.Generation &&
		pa.Spec.Reachability == autoscalingv1alpha1.ReachabilityUnreachable &&
		pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive).IsFalse() &&
		pa.Status.DesiredScale != nil && *pa.Status.DesiredScale == 0
}

// park sets the annotation, unless gateways lead to the revision. The next reconcile deletes the
// children.
func (r *reconciler) park(ctx context.Context, rev *servingv1.Revision, wasUp bool) error {
	if led, err := r.led.To(rev.Namespace, names.PublicService(rev.Name)); err != nil || led {
		return err
	}
	how := names.ParkedNeverUp
	if wasUp {
		how = names.ParkedWasUp
	}
	if err := r.mark(ctx, rev, how); err != nil {
		return err
	}
	r.mgr.Events.Event(rev, corev1.EventTypeNormal, "Parked", "No Route leads to this Revision and it has no pods: its children are deleted until a Route does")
	return nil
}

func (r *reconciler) mark(ctx context.Context, rev *servingv1.Revision, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": rev.ResourceVersion, "annotations": map[string]any{names.ParkedAnnotation: value}}})
	if err != nil {
		return err
	}
	_, err = r.mgr.Ebb.ServingV1().Revisions(rev.Namespace).Patch(ctx, rev.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("set the annotation of parked Revision %s/%s: %w", rev.Namespace, rev.Name, err)
	}
	return nil
}

// parked reconciles a revision that has the annotation.
func (r *reconciler) parked(ctx context.Context, rev *servingv1.Revision, s *settings.Snapshot) error {
	d, hasDeployment, err := apply.Found(r.deployments.Deployments(rev.Namespace).Get(names.Deployment(rev.Name)))
	if err != nil {
		return err
	}
	pa, hasAutoscaler, err := apply.Found(r.autoscalers.PodAutoscalers(rev.Namespace).Get(names.PodAutoscaler(rev.Name)))
	if err != nil {
		return err
	}
	// A child that is being deleted must be gone before it can be created again. Its deletion
	// causes the next reconcile.
	going := hasDeployment && !d.DeletionTimestamp.IsZero() || hasAutoscaler && !pa.DeletionTimestamp.IsZero()

	if rev.RoutingState() == names.RoutingReserve && (!hasDeployment || atZero(d)) {
		// In this order, and the Deployment only in this version: if somebody has scaled it up
		// since, it stays.
		if hasDeployment && d.DeletionTimestamp.IsZero() {
			if err := apply.Delete(ctx, r.mgr.Kube.AppsV1().Deployments(rev.Namespace), "Deployment", d, together(&d.ObjectMeta)); err != nil {
				return err
			}
		}
		if hasAutoscaler && pa.DeletionTimestamp.IsZero() {
			options := together(&pa.ObjectMeta)
			options.Preconditions.ResourceVersion = nil
			return apply.Delete(ctx, r.mgr.Ebb.AutoscalingV1alpha1().PodAutoscalers(rev.Namespace), "PodAutoscaler", pa, options)
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
		r.unreachable(rev, pa)
		return err
	}
	if ok, err := r.listed(pa); err != nil || !ok {
		r.unreachable(rev, pa)
		return err
	}
	if manager := rev.GetConditionSet().Manage(&rev.Status); manager.GetCondition(servingv1.RevisionConditionResourcesAvailable).GetReason() == reasonRefused {
		manager.MarkTrue(servingv1.RevisionConditionResourcesAvailable) // what was refused is there now
	}
	return r.mark(ctx, rev, nil)
}

// together returns the options that delete this version of an object and its children. The children
// go first, so none is left when the object is gone.
func together(seen *metav1.ObjectMeta) metav1.DeleteOptions {
	foreground := metav1.DeletePropagationForeground
	return metav1.DeleteOptions{PropagationPolicy: &foreground,
		Preconditions: &metav1.Preconditions{UID: &seen.UID, ResourceVersion: &seen.ResourceVersion}}
}

// reachable reports whether the public Service of a revision exists and has endpoints. It reads the
// same caches as the reconciler of Routes, so both see the same. Where hosts may rest, that one
// makes the Service when it needs it.
func (r *reconciler) reachable(pa *autoscalingv1alpha1.PodAutoscaler) (bool, error) {
	if r.mgr.Settings.Load().Gateway.Resting {
		return true, nil
	}
	service, found, err := apply.Found(r.services.Services(pa.Namespace).Get(names.PublicService(pa.Name)))
	if err != nil || !found || !metav1.IsControlledBy(service, pa) {
		return false, err
	}
	return slices.ContainsFunc(r.slices.Of(pa.Namespace, pa.Name), func(slice *discoveryv1.EndpointSlice) bool {
		return slice.Labels[names.ServiceTypeLabel] == names.ServiceTypePublic && metav1.IsControlledBy(slice, pa) && len(slice.Endpoints) > 0
	}), nil
}

// listed reports whether a revision has its private Service, whose EndpointSlices list its pods.
func (r *reconciler) listed(pa *autoscalingv1alpha1.PodAutoscaler) (bool, error) {
	_, found, err := apply.Found(r.services.Services(pa.Namespace).Get(names.PrivateService(pa.Name)))
	return found, err
}

// parkedRevision maps a Service or EndpointSlice to its revision, if that is parked.
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

// revisionsLed maps an HTTPRoute to the revisions in reserve that it names, or named: they may be
// parked now.
func (r *reconciler) revisionsLed(object any) (keys []types.NamespacedName) {
	h, ok := object.(*gatewayv1.HTTPRoute)
	if !ok {
		return nil
	}
	for name := range gateway.Services(h) {
		if rev, err := r.revisions.Revisions(h.Namespace).Get(name); err == nil && rev.RoutingState() == names.RoutingReserve {
			keys = append(keys, types.NamespacedName{Namespace: h.Namespace, Name: name})
		}
	}
	return keys
}
