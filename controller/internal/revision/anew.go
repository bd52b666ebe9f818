package revision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/settings"
)

// A revision that does not come up is given up after its progress deadline. Nobody can wake it: no
// Route leads to it yet. If the cluster was to blame, as for a Secret that is missing, it is tried
// anew after a quarter of the time for which that went on, within these bounds.
const (
	anewAtLeast = time.Minute
	anewAtMost  = 15 * time.Minute
)

// anewAfter reports whether a revision that was given up is to be tried anew, and after what time.
//
//	the revision                                                     is tried anew
//	was up once, or is parked or of another class                    no
//	is in reserve, and not the newest of its Configuration           no
//	has pods, or its autoscaler wants some                           no: an attempt goes on
//	failed by its container, or for a reason that nobody knows       no: it would fail again
//	failed by the cluster, or started late because of that           yes
func anewAfter(rev *servingv1.Revision, o observation, s *settings.Snapshot, now time.Time) (wait time.Duration, ok bool) {
	pa, was := o.autoscaler, shown(&rev.Status)
	if late := shownOf(rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable)); late.reason == reasonStartedLate {
		was = late
	}
	switch {
	case o.initialized(), rev.RoutingState() == names.RoutingReserve && !o.newest, was.none(), was.container:
		return 0, false
	case o.deployment == nil, pa == nil, !atZero(o.deployment), len(o.current()) > 0, !pa.DeletionTimestamp.IsZero():
		return 0, false
	case pa.Class(s.Autoscaler.Class) != names.ClassKPA, pa.Status.ObservedGeneration != pa.Generation:
		return 0, false
	}
	active := pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive)
	if !active.IsFalse() {
		return 0, false
	}
	gaveUp := active.LastTransitionTime.Inner.Time
	pause := min(max(gaveUp.Sub(rev.CreationTimestamp.Time)/4, anewAtLeast), anewAtMost)
	return max(0, gaveUp.Add(pause).Sub(now)), true
}

// anew deletes the Deployment and the PodAutoscaler of a revision that was given up. The next
// reconcile makes both again, with the initial scale. The PodAutoscaler goes first, and the
// Deployment only in this version: if somebody has scaled it up since, it stays.
func (r *reconciler) anew(ctx context.Context, rev *servingv1.Revision, o observation) error {
	options := together(&o.autoscaler.ObjectMeta)
	options.Preconditions.ResourceVersion = nil
	if err := apply.Delete(ctx, r.mgr.Ebb.AutoscalingV1alpha1().PodAutoscalers(rev.Namespace), "PodAutoscaler", o.autoscaler, options); err != nil {
		return err
	}
	if err := apply.Delete(ctx, r.mgr.Kube.AppsV1().Deployments(rev.Namespace), "Deployment", o.deployment, together(&o.deployment.ObjectMeta)); err != nil {
		return err
	}
	r.mgr.Events.Event(rev, corev1.EventTypeNormal, "TriedAnew", "The revision was given up, and is tried anew: what it lacked may be there")
	return nil
}
