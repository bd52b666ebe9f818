package revision

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"ebb.dev/ebb/controller/internal/reconcile"
)

// newsOfDeployment leaves out what a Deployment only counts: a pod that comes and goes changes its
// status four times.
func newsOfDeployment(before, after any) reconcile.Urgency {
	a, ok1 := before.(*appsv1.Deployment)
	b, ok2 := after.(*appsv1.Deployment)
	if !ok1 || !ok2 || a.UID != b.UID || !a.DeletionTimestamp.Equal(b.DeletionTimestamp) || atZero(a) != atZero(b) ||
		!equality.Semantic.DeepEqual(a.Labels, b.Labels) || !equality.Semantic.DeepEqual(a.Annotations, b.Annotations) ||
		!equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) || !equality.Semantic.DeepEqual(a.Spec, b.Spec) ||
		!equality.Semantic.DeepEqual(complaints(a), complaints(b)) {
		return reconcile.AtOnce
	}
	return reconcile.Never
}

// complaints are the conditions of which deploymentTrouble reads some, if the status is of the
// present spec.
func complaints(d *appsv1.Deployment) []appsv1.DeploymentCondition {
	if d.Status.ObservedGeneration < d.Generation {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(d.Status.Conditions), func(c appsv1.DeploymentCondition) bool {
		return !cannotCreate(c) && (c.Type != appsv1.DeploymentProgressing || c.Status != corev1.ConditionFalse)
	})
}

// newsOfPod lets the steps of a pod that starts or ends well wait for one another. What fails, or
// does so no more, and whether the pod is ready, is told at once.
func newsOfPod(before, after any) reconcile.Urgency {
	a, _ := before.(*corev1.Pod)
	b, _ := after.(*corev1.Pod)
	switch {
	case a != nil && !goesWell(a), b != nil && !goesWell(b):
		return reconcile.AtOnce
	case a == nil, b != nil && (!b.DeletionTimestamp.IsZero() || podReady(a) == podReady(b)), b == nil && !a.DeletionTimestamp.IsZero():
		return reconcile.Soon
	}
	return reconcile.AtOnce
}

// goesWell reports whether nothing of a pod has failed so far. What ends because the pod is to end
// has not.
func goesWell(pod *corev1.Pod) bool {
	switch {
	case !pod.DeletionTimestamp.IsZero():
		return true
	case pod.Status.Phase == corev1.PodFailed, pod.Status.Phase == corev1.PodSucceeded,
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse
		}):
		return false
	}
	return !slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		done := s.State.Terminated
		return s.RestartCount > 0 || s.LastTerminationState.Terminated != nil || done != nil && (done.ExitCode != 0 || !s.Ready) ||
			s.State.Waiting != nil && !starting(s.State.Waiting.Reason)
	})
}
