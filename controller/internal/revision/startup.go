package revision

import (
	corev1 "k8s.io/api/core/v1"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// startupLimit is how the pods of a revision get more CPU until they answer. Pods are made with
// their own limit, and the autoscaler raises it before their containers start: so a quota, a
// LimitRange or a Kubernetes that cannot resize keeps no pod from starting.
type startupLimit struct {
	// limit is names.StartupLimitAnnotation, "" if they start with their own limit.
	limit string
	// reason and message say what keeps them from starting with more, although it was asked for.
	reason, message string
}

// startupOf returns how the pods of a revision start. The first row that matches decides.
//
//	the revision                                            starts with  reason
//	no startup-cpu, or the class is not Ebb's               its own
//	its serving container has no CPU limit, or no lower one  its own
//	QoS class Guaranteed                                    its own      GuaranteedQoS
//	any other                                               startup-cpu
func startupOf(rev *servingv1.Revision, m names.Spec, s *settings.Snapshot) startupLimit {
	user, asked := rev.Spec.ServingContainer(), m.Scaling.Startup.CPU
	if asked == 0 || user == nil || m.Scaling.Class != names.ClassKPA {
		return startupLimit{}
	}
	own := user.Resources.Limits.Cpu().MilliValue()
	switch {
	case own == 0 || own >= asked:
		return startupLimit{}
	case guaranteed(rev.Spec.Containers, sidecarResources(m.Sidecar, *user, s)):
		return startupLimit{reason: "GuaranteedQoS", message: "Pods start with their own CPU limit: they have the QoS class Guaranteed, " +
			"which no change of a limit may take from them. Request less than the limits."}
	}
	return startupLimit{limit: names.StartupLimit{Container: user.Name, Low: own, High: asked}.String()}
}

// conditionStartupCPULimited exists, and is True, only if pods do not get the CPU that was asked
// for until they answer, or keep it. It does not count for Ready.
const conditionStartupCPULimited apis.ConditionType = "StartupCPULimited"

// reportStartup tells what keeps pods from it: the revision itself, or else what the autoscaler
// says of the last ones.
func reportStartup(manager apis.ConditionManager, l startupLimit, pa *autoscalingv1alpha1.PodAutoscaler) {
	reason, message := l.reason, l.message
	if l.limit != "" && pa != nil {
		if c := pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionStartupCPULimited); c.IsTrue() {
			reason, message = c.Reason, c.Message
		}
	}
	if reason == "" {
		_ = manager.ClearCondition(conditionStartupCPULimited) // it fails only for conditions that count
		return
	}
	manager.SetCondition(apis.Condition{Type: conditionStartupCPULimited, Status: corev1.ConditionTrue,
		Severity: apis.ConditionSeverityInfo, Reason: reason, Message: message})
}
