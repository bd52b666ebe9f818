package revision

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// Reasons of a Revision's conditions, apart from those that are copied. Tools match on them.
const (
	reasonResolvingDigests = servingv1.ReasonResolvingDigests
	reasonDeploying        = servingv1.ReasonDeploying
	reasonNoProgress       = servingv1.ReasonProgressDeadlineExceeded
	reasonStartedLate      = "StartedLate"
	reasonNotOwned         = servingv1.ReasonNotOwned
	reasonContainerMissing = servingv1.ReasonContainerMissing
	reasonRefused          = "FailedCreate"
)

// observation is what a Revision's status depends on, apart from the Revision.
type observation struct {
	// template is what the user asked for.
	template   *corev1.PodSpec
	deployment *appsv1.Deployment
	autoscaler *autoscalingv1alpha1.PodAutoscaler
	pods       []*corev1.Pod
	// news is of the newest pod that hangs, and hint is what that pod waits for.
	news news
	hint string
	// newest: its Configuration has made no other revision since, and waits for it.
	newest bool
	// reserve: no Route leads to it.
	reserve bool
	// away: it has no Deployment because it needs none (away.go).
	away bool
	now  time.Time
}

// current returns the pods that count. A pod that a node evicted or rejected, or that ended with
// its node, stays as an object until somebody deletes it, also at zero. Its ReplicaSet makes
// another if one is wanted: then only the newest pod tells of the revision.
func (o observation) current() []*corev1.Pod {
	wanted := !o.away && (o.deployment == nil || ptr.Deref(o.deployment.Spec.Replicas, 1) > 0)
	var newest metav1.Time
	for _, pod := range o.pods {
		if newest.Before(&pod.CreationTimestamp) {
			newest = pod.CreationTimestamp
		}
	}
	return slices.DeleteFunc(slices.Clone(o.pods), func(pod *corev1.Pod) bool {
		ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
		return ended && (!wanted || pod.CreationTimestamp.Before(&newest))
	})
}

// replaced reports whether a pod that ended says nothing of a revision that was up: its ReplicaSet
// makes another, or the Deployment says why it cannot. A node evicts pods of revisions that are
// well, too. But if the pod replaced one that ended, and soon ended too, the next will do no
// better.
func (o observation) replaced(pod *corev1.Pod) bool {
	lasted := endedAt(pod).Sub(pod.CreationTimestamp.Time) >= time.Minute
	return o.initialized() && !alive(pod) && (lasted || !slices.ContainsFunc(o.pods, func(before *corev1.Pod) bool {
		return before != pod && !alive(before) && !pod.CreationTimestamp.Time.Before(endedAt(before)) &&
			pod.CreationTimestamp.Sub(endedAt(before)) < time.Minute
	}))
}

// endedAt is when a pod ended. One that its node rejected never began.
func endedAt(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for _, c := range pod.Status.Conditions {
		if c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}

// initialized reports whether the revision once had its initial pods, with this PodAutoscaler or,
// before it was parked, another.
func (o observation) initialized() bool {
	return o.autoscaler != nil && (o.autoscaler.Annotations[names.InitializedAnnotation] == "true" || o.autoscaler.Status.IsScaleTargetInitialized())
}

// asleep reports whether there are pods that are not ready because they sleep. Nothing of the pod
// itself or of the Deployment tells it.
func (o observation) asleep() bool {
	return o.autoscaler != nil && ptr.Deref(o.autoscaler.Status.AsleepReplicas, 0) > 0
}

// failing returns the trouble of a revision without a pod that is ready or asleep. While there is
// one, requests are answered, and users need not know about the others.
func (o observation) failing(s *settings.Snapshot) trouble {
	t := podTrouble(o, s.Deployment.PodIsAlwaysSchedulable)
	pod := hanging(o)
	switch {
	case o.wantsPods() && !slices.ContainsFunc(o.pods, alive) && notCreated(o.deployment):
		t = deploymentTrouble(o.deployment, o.current()) // that a pod ended does not tell why there is no other
	case t.reason == corev1.PodReasonUnschedulable && o.news.trouble.reason == provisioning:
		t.message = sentence(t.message) + " " + o.news.trouble.message
	case t.none() && pod != nil && o.news.pod == pod.UID && creating(pod):
		t = o.news.trouble
	}
	if t.none() && o.wantsPods() {
		if t = deploymentTrouble(o.deployment, o.current()); !t.none() && o.hint != "" {
			t.message = sentence(t.message) + " " + o.hint
		}
	}
	return t
}

// setConditions sets the Revision's conditions. They depend on the observation more than on their
// old values, so a revision that recovers is Ready again.
//
//	ready pods  trouble         initialized  autoscaler   ResourcesAvailable              ContainerHealthy
//	> 0         -               yes          any          True                            True
//	> 0         -               no           any          Unknown Deploying               True
//	0           container's     any          any          as without it                   False ExitCode<N>
//	0           cluster's       any          any          False with its reason           Unknown (True if it ran before)
//	0           none            yes          any          True                            True
//	0           none            no           inactive     False ProgressDeadlineExceeded  Unknown Deploying
//	                                                      or StartedLate
//	0           none            no           else         Unknown Deploying               Unknown Deploying
//
// lasting says how long a trouble counts, and late which pods started late.
func setConditions(rev *servingv1.Revision, o observation, s *settings.Snapshot) {
	manager := rev.GetConditionSet().Manage(&rev.Status)
	const resources, container = servingv1.RevisionConditionResourcesAvailable, servingv1.RevisionConditionContainerHealthy

	t, initialized := o.lasting(&rev.Status, s), o.initialized()
	late := o.late(&rev.Status, t, s)
	copyActive(manager, o)
	m := rev.Meaning(s.Rules())
	reportStandby(manager, standbyOf(rev, m, s))
	reportStartup(manager, startupOf(rev, m, s), o.autoscaler)

	switch gaveUp := o.inactive() && readyPods(o.current()) == 0; {
	case late != "" && (t.reason == reasonNoProgress || gaveUp && (t.none() || t.container)):
		manager.MarkFalse(resources, reasonStartedLate, "%s", late)
	case !t.none() && !t.container:
		manager.MarkFalse(resources, t.reason, "%s", t.message)
	case initialized:
		manager.MarkTrue(resources)
	case gaveUp:
		manager.MarkFalse(resources, reasonNoProgress, "%s", neverAchieved(&rev.Status))
	default:
		manager.MarkUnknown(resources, reasonDeploying, "%s", late)
	}

	switch {
	case t.container:
		manager.MarkFalse(container, t.reason, "%s", t.message)
	case readyPods(o.current()) > 0 || initialized && t.none():
		manager.MarkTrue(container)
	case initialized:
		// The trouble is the cluster's; see above. The container is as it was.
	default:
		manager.MarkUnknown(container, reasonDeploying, "%s", o.hint)
	}

	setReplicas(rev, o)
	rev.Status.LogURL = strings.ReplaceAll(s.Observability.RevisionURLTemplate, "${REVISION_UID}", string(rev.UID))
}

// neverAchieved says that a revision was given up, and all that was known of its pods before they
// were gone.
func neverAchieved(before *servingv1.RevisionStatus) string {
	resources, container := before.GetCondition(servingv1.RevisionConditionResourcesAvailable), before.GetCondition(servingv1.RevisionConditionContainerHealthy)
	switch {
	case resources.IsFalse() && resources.Reason == reasonNoProgress && resources.Message != "":
		return resources.Message
	case container.IsUnknown() && container.GetReason() == reasonDeploying && container.GetMessage() != "":
		return "Initial scale was never achieved. " + container.GetMessage()
	}
	return "Initial scale was never achieved"
}

// setReplicas publishes what the PodAutoscaler reports. A revision that is up always has both
// numbers, because clients of a Ready Revision read them: those it had, or else what its pods and
// its Deployment say.
//
//	PodAutoscaler reports  initialized  published
//	both                   any          both as reported
//	else                   no           neither
//	else                   yes          as before; from pods and Deployment if there was nothing
func setReplicas(rev *servingv1.Revision, o observation) {
	status := &rev.Status
	if pa := o.autoscaler; pa != nil && pa.Status.ActualScale != nil && ptr.Deref(pa.Status.DesiredScale, -1) >= 0 {
		status.ActualReplicas, status.DesiredReplicas = ptr.To(*pa.Status.ActualScale), ptr.To(*pa.Status.DesiredScale)
	} else if !o.initialized() {
		status.ActualReplicas, status.DesiredReplicas = nil, nil
	} else if status.ActualReplicas == nil || status.DesiredReplicas == nil {
		actual := int32(readyPods(o.current()))
		status.ActualReplicas, status.DesiredReplicas = &actual, ptr.To(actual)
		if o.deployment != nil {
			status.DesiredReplicas = ptr.To(ptr.Deref(o.deployment.Spec.Replicas, actual))
		}
	}
}

func pulling(reason string) bool { return reason == "ErrImagePull" || reason == "ImagePullBackOff" }

// copyActive copies the PodAutoscaler's Active, which does not count for Ready. The old value stays
// until the autoscaler sets the status of a PodAutoscaler that was created again. While requests
// wait, it says for what.
func copyActive(manager apis.ConditionManager, o observation) {
	pa := o.autoscaler
	c := apis.Condition{Type: servingv1.RevisionConditionActive, Status: corev1.ConditionUnknown, Severity: apis.ConditionSeverityInfo,
		Reason: reasonDeploying}
	if pa != nil {
		if active := pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive); active != nil {
			c.Status, c.Reason, c.Message = active.Status, active.Reason, active.Message
			if active.IsUnknown() && o.hint != "" {
				c.Message = strings.TrimSpace(active.Message + " " + o.hint)
			}
		} else if manager.GetCondition(servingv1.RevisionConditionActive).IsFalse() && pa.Annotations[names.InitializedAnnotation] == "true" {
			return
		}
	}
	manager.SetCondition(c)
}
