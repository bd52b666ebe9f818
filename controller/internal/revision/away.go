package revision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/settings"
)

// awayAfter reports whether a revision can do without its Deployment, and after what time. The
// Deployment is then put away: it is deleted, and made again when one of these lines says so
// (decision 0025).
//
//	the revision                                            has a Deployment
//	any, without deployment-retention-period or with no-gc  yes
//	was never up, or another autoscaler scales it           yes
//	its autoscaler wants a pod, or has decided nothing yet  yes; one that is made has as many
//	                                                        replicas as the status says
//	has a pod that has not ended                            yes
//	is at zero for less than the period                     yes
//	is at zero for longer                                   no
//
// All of it is in the status of the PodAutoscaler, which nothing here changes. So the answer is the
// same with and without the Deployment, after a restart, and in another replica.
func awayAfter(rev *servingv1.Revision, o observation, s *settings.Snapshot) (wait time.Duration, ok bool) {
	pa, period := o.autoscaler, s.Deployment.RetentionPeriod
	switch {
	case period == 0, rev.Annotations[names.NoGCAnnotation] == "true":
		return 0, false
	case !o.initialized(), !pa.DeletionTimestamp.IsZero(), pa.Class(s.Autoscaler.Class) != names.ClassKPA:
		return 0, false
	case ptr.Deref(pa.Status.DesiredScale, -1) != 0, ptr.Deref(pa.Status.ActualScale, -1) != 0, o.asleep():
		return 0, false
	}
	for _, pod := range o.pods {
		if pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded {
			return 0, false
		}
	}
	active := pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive)
	if !active.IsFalse() {
		return 0, false
	}
	return max(0, active.LastTransitionTime.Inner.Add(period).Sub(o.now)), true
}

// withoutDeployment reports whether a revision that needs no Deployment has none.
func (r *reconciler) withoutDeployment(rev *servingv1.Revision, o observation, s *settings.Snapshot) (bool, error) {
	if wait, ok := awayAfter(rev, o, s); !ok || wait > 0 {
		return false, nil
	}
	_, found, err := apply.Found(r.deployments.Deployments(rev.Namespace).Get(names.Deployment(rev.Name)))
	return !found, err
}

// putAway deletes the Deployment in this version: if the autoscaler has scaled it up since, it
// stays. The object goes at once and its ReplicaSet after it. One that waited for its ReplicaSet
// would still take a scale, and nobody would make a pod.
func (r *reconciler) putAway(ctx context.Context, rev *servingv1.Revision, o observation, period time.Duration) error {
	if !atZero(o.deployment) || !o.deployment.DeletionTimestamp.IsZero() {
		return nil
	}
	options := together(&o.deployment.ObjectMeta)
	options.PropagationPolicy = ptr.To(metav1.DeletePropagationBackground)
	if err := apply.Delete(ctx, r.mgr.Kube.AppsV1().Deployments(rev.Namespace), "Deployment", o.deployment, options); err != nil {
		return err
	}
	r.mgr.Events.Eventf(rev, corev1.EventTypeNormal, "PutAway", "No pod for %s: the Deployment is deleted, and made again for the next request", period)
	return nil
}
