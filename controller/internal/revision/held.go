package revision

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// lasting returns the trouble to show. While nothing tells whether the one before is over, that
// one stays, so the conditions do not change with each attempt.
//
//	the revision                       its pods                          the trouble before
//	has a pod that is ready or asleep  -                                 is over
//	wants no pods, was up once         -                                 is over: a request is another attempt
//	any other                          have another trouble              gives way to it
//	any other                          there is none                     stays
//	any other                          wait for what it was about        stays
//	any other                          got past what it was about        is over
func (o observation) lasting(before *servingv1.RevisionStatus, s *settings.Snapshot) trouble {
	if readyPods(o.pods) > 0 || o.asleep() {
		return trouble{}
	}
	t := advised(o.failing(s))
	was := shown(before)
	switch {
	// The kubelet alternates between "cannot pull" and "backs off". That is one trouble.
	case pulling(t.reason) && pulling(was.reason):
		return was
	case !t.none() || was.none() || o.initialized() && !o.wantsPods():
		return t
	case was.reason == corev1.PodReasonUnschedulable && s.Deployment.PodIsAlwaysSchedulable:
		return t
	}
	for _, pod := range o.pods {
		if alive(pod) && gotPast(was, pod) {
			return trouble{}
		}
	}
	return was
}

// shown returns the trouble that the conditions tell, if it is one of pods.
func shown(before *servingv1.RevisionStatus) trouble {
	if c := before.GetCondition(servingv1.RevisionConditionContainerHealthy); c.IsFalse() && c.Reason != reasonContainerMissing {
		return trouble{container: true, reason: c.Reason, message: c.Message}
	}
	if c := before.GetCondition(servingv1.RevisionConditionResourcesAvailable); c.IsFalse() && c.Reason != reasonNotOwned && c.Reason != reasonNoProgress {
		return trouble{reason: c.Reason, message: c.Message}
	}
	return trouble{}
}

// gotPast reports whether a pod without a trouble of its own shows that an earlier one is over.
func gotPast(was trouble, pod *corev1.Pod) bool {
	switch {
	case was.container:
		return started(pod) || prepared(pod)
	case was.reason == reasonRefused:
		return true // there is a pod
	case was.reason == corev1.PodReasonUnschedulable:
		return pod.Spec.NodeName != ""
	case stages[was.reason] > 0:
		return !creating(pod)
	}
	return started(pod)
}

// started reports whether all containers of the user run.
func started(pod *corev1.Pod) bool {
	own := slices.DeleteFunc(slices.Clone(pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool { return s.Name == names.QueueProxyContainer })
	return len(own) > 0 && !slices.ContainsFunc(own, func(s corev1.ContainerStatus) bool { return s.State.Running == nil })
}

// prepared reports whether init containers are done that had to be started again.
func prepared(pod *corev1.Pod) bool {
	again := false
	for _, s := range pod.Status.InitContainerStatuses {
		if !s.Ready {
			return false
		}
		again = again || s.LastTerminationState.Terminated != nil
	}
	return again
}

// alive reports whether a pod can still become ready.
func alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp.IsZero() && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded
}

func (o observation) wantsPods() bool {
	return o.deployment != nil && ptr.Deref(o.deployment.Spec.Replicas, 1) > 0
}
