package revision

import (
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// Reasons of a Revision's conditions that are not copied from elsewhere; tools match on them.
const (
	reasonResolvingDigests = servingv1.ReasonResolvingDigests
	reasonDeploying        = servingv1.ReasonDeploying
	reasonNoProgress       = servingv1.ReasonProgressDeadlineExceeded
	reasonNotOwned         = servingv1.ReasonNotOwned
	reasonContainerMissing = servingv1.ReasonContainerMissing
	reasonRefused          = "FailedCreate"
)

// observation is all that a Revision's status depends on, besides the Revision.
type observation struct {
	deployment *appsv1.Deployment
	autoscaler *autoscalingv1alpha1.PodAutoscaler
	pods       []*corev1.Pod
}

// initialized: the revision had its initial pods once, under this PodAutoscaler or, before it was parked, under another.
func (o observation) initialized() bool {
	return o.autoscaler != nil && (o.autoscaler.Annotations[names.InitializedAnnotation] == "true" || o.autoscaler.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionScaleTargetInitialized).IsTrue())
}

// failing is the trouble of a revision none of whose pods is ready. While one is, requests are answered and nothing is wrong
// that a user must know of.
func (o observation) failing(s *settings.Snapshot) trouble {
	if readyPods(o.pods) > 0 {
		return trouble{}
	}
	if t := podTrouble(o.pods, o.initialized(), s.Deployment.PodIsAlwaysSchedulable); !t.none() {
		return t
	}
	if d := o.deployment; d != nil && d.Spec.Replicas != nil && *d.Spec.Replicas > 0 {
		return deploymentTrouble(d, o.pods)
	}
	return trouble{}
}

// judge writes the Revision's conditions from what is observed. It starts from nothing each time, so what mends itself is Ready
// again.
//
//	ready pods  trouble         initialized  autoscaler   ResourcesAvailable              ContainerHealthy
//	> 0         -               yes          any          True                            True
//	> 0         -               no           any          Unknown Deploying               True
//	0           container's     any          any          as without it                   False ExitCode<N>
//	0           cluster's       any          any          False with its reason           Unknown (True if it ran before)
//	0           none            yes          any          True                            True
//	0           none            no           inactive     False ProgressDeadlineExceeded  as it was
//	0           none            no           else         Unknown Deploying               as it was, at first Unknown Deploying
func judge(rev *servingv1.Revision, o observation, s *settings.Snapshot) {
	manager := rev.GetConditionSet().Manage(&rev.Status)
	const resources, container = servingv1.RevisionConditionResourcesAvailable, servingv1.RevisionConditionContainerHealthy

	copyActive(manager, o.autoscaler)
	t, initialized := o.failing(s), o.initialized()
	inactive := o.autoscaler != nil &&
		o.autoscaler.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive).IsFalse()

	switch {
	case !t.none() && !t.container:
		// The kubelet says in turn that it pulls and that it waits with pulling. That is one trouble, told once.
		if was := manager.GetCondition(resources); !was.IsFalse() || !pulling(was.Reason) || !pulling(t.reason) {
			manager.MarkFalse(resources, t.reason, "%s", t.message)
		}
	case initialized:
		manager.MarkTrue(resources)
	case inactive && readyPods(o.pods) == 0:
		manager.MarkFalse(resources, reasonNoProgress, "Initial scale was never achieved")
	default:
		manager.MarkUnknown(resources, reasonDeploying, "")
	}

	switch {
	case t.container:
		manager.MarkFalse(container, t.reason, "%s", t.message)
	case readyPods(o.pods) > 0 || initialized && t.none():
		manager.MarkTrue(container)
	case initialized:
		// The cluster's trouble is told above; the container itself is as good as it was.
	case manager.GetCondition(container).IsFalse() && manager.GetCondition(container).GetReason() != reasonContainerMissing && len(o.pods) == 0:
		// It failed and was scaled away: the reason stays until a pod proves otherwise.
	default:
		manager.MarkUnknown(container, reasonDeploying, "")
	}

	if o.autoscaler == nil || o.autoscaler.Annotations[names.InitializedAnnotation] != "true" {
		rev.Status.ActualReplicas, rev.Status.DesiredReplicas = nil, nil
	}
	if pa := o.autoscaler; pa != nil && pa.Status.ActualScale != nil && pa.Status.DesiredScale != nil && *pa.Status.DesiredScale >= 0 {
		actual, desired := *pa.Status.ActualScale, *pa.Status.DesiredScale
		rev.Status.ActualReplicas, rev.Status.DesiredReplicas = &actual, &desired
	}
	rev.Status.LogURL = strings.ReplaceAll(s.Observability.RevisionURLTemplate, "${REVISION_UID}", string(rev.UID))
}

func pulling(reason string) bool { return reason == "ErrImagePull" || reason == "ImagePullBackOff" }

// copyActive shows the PodAutoscaler's Active on the Revision; it does not count for Ready. What was known stays until the
// autoscaler has spoken about a PodAutoscaler that was made anew.
func copyActive(manager apis.ConditionManager, pa *autoscalingv1alpha1.PodAutoscaler) {
	c := apis.Condition{Type: servingv1.RevisionConditionActive, Status: corev1.ConditionUnknown, Severity: apis.ConditionSeverityInfo,
		Reason: reasonDeploying}
	if pa != nil {
		if active := pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive); active != nil {
			c.Status, c.Reason, c.Message = active.Status, active.Reason, active.Message
		} else if manager.GetCondition(servingv1.RevisionConditionActive).IsFalse() && pa.Annotations[names.InitializedAnnotation] == "true" {
			return
		}
	}
	manager.SetCondition(c)
}
