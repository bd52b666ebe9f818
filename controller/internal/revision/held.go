package revision

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// lasting returns the trouble to show. While nothing tells whether the one before is over, that
// one stays, so the conditions do not change with each attempt.
//
//	the revision                       its pods                          the trouble before
//	has a pod that is ready or asleep  -                                 is over
//	wants no pods, was up once         -                                 is over after restsFor, or without a Route:
//	                                                                     a request is another attempt
//	any other                          have another trouble              gives way to it
//	any other                          there is none                     stays
//	any other                          wait for what it was about        stays
//	any other                          got past what it was about        is over
//
// That no pod was ready within the progress deadline is a trouble of its own only of a pod that got
// past the one before.
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
	case t.reason == reasonNoProgress && !was.none() && !o.gotPast(was):
		return was
	case !t.none() || was.none() || o.initialized() && !o.wantsPods() && o.rests() == 0:
		return t
	case was.reason == corev1.PodReasonUnschedulable && s.Deployment.PodIsAlwaysSchedulable:
		return t
	case o.gotPast(was):
		return trouble{}
	}
	return was
}

// restsFor is how long a revision that is at zero again, because its pods did not start for
// requests, says why. Without it, requests that go on would have it Ready between two attempts. It
// is no longer, because activators hold no request for long of a revision that fails.
const restsFor = time.Minute

// rests returns for how long what failed still counts at zero. For a revision without a Route it
// does not: nobody could wake it, and a Route takes none that fails.
func (o observation) rests() time.Duration {
	active := o.autoscaler.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive)
	switch {
	case o.reserve:
		return 0
	case !active.IsFalse(): // the autoscaler has yet to say it
		return restsFor
	}
	return max(0, active.LastTransitionTime.Inner.Add(restsFor).Sub(o.now))
}

// lateAfter is how much longer than its progress deadline the autoscaler waits for a revision. A
// pod that was held up for longer does not have all the time that it was promised.
const lateAfter = 30 * time.Second

// late returns what ResourcesAvailable says of an attempt whose pod the cluster held up, or "". If
// such an attempt fails, that tells nothing of the container. The condition is what remembers it.
//
//	the condition before                                 late is
//	says so, of this attempt                             what it says
//	has a trouble that a pod got past after lateAfter    told from now on
//	any other                                            ""
//
// To wait for a node, as each attempt does where nodes are added, must take half of the deadline.
func (o observation) late(before *servingv1.RevisionStatus, t trouble, s *settings.Snapshot) string {
	c, pa := before.GetCondition(servingv1.RevisionConditionResourcesAvailable), o.autoscaler
	if c == nil || pa == nil || o.initialized() || pa.Class(s.Autoscaler.Class) != names.ClassKPA {
		return ""
	}
	if c.IsUnknown() && c.Reason == reasonDeploying ||
		c.IsFalse() && c.Reason == reasonStartedLate && !c.LastTransitionTime.Inner.Before(&pa.CreationTimestamp) {
		return c.Message
	}
	was, least := shownOf(c), lateAfter
	if was.reason == corev1.PodReasonUnschedulable && o.deployment != nil {
		least = time.Duration(ptr.Deref(o.deployment.Spec.ProgressDeadlineSeconds, 0)) * time.Second / 2
	}
	switch {
	case was.none(), was.reason == reasonStartedLate, o.now.Sub(pa.CreationTimestamp.Time) < least:
		return ""
	case t.container, o.gotPast(was):
		return "The pod started late, and gets another attempt if it is not ready in time. It waited before: " + unadvised(was.message)
	}
	return ""
}

// inactive reports whether the autoscaler wants no pods. Then it gave up a revision that never was
// up.
func (o observation) inactive() bool {
	return o.autoscaler != nil && o.autoscaler.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive).IsFalse()
}

// shown returns the trouble that the conditions tell, if it is one of pods.
func shown(before *servingv1.RevisionStatus) trouble {
	if c := before.GetCondition(servingv1.RevisionConditionContainerHealthy); c.IsFalse() && c.Reason != reasonContainerMissing {
		return trouble{container: true, reason: c.Reason, message: c.Message}
	}
	return shownOf(before.GetCondition(servingv1.RevisionConditionResourcesAvailable))
}

// shownOf returns the trouble that ResourcesAvailable tells, if it is one of pods.
func shownOf(c *apis.Condition) trouble {
	if c.IsFalse() && c.Reason != reasonNotOwned && c.Reason != reasonNoProgress {
		return trouble{reason: c.Reason, message: c.Message}
	}
	return trouble{}
}

// gotPast reports whether a pod without a trouble of its own shows that an earlier one is over.
func (o observation) gotPast(was trouble) bool {
	return slices.ContainsFunc(o.pods, func(pod *corev1.Pod) bool { return alive(pod) && gotPast(was, pod) })
}

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
