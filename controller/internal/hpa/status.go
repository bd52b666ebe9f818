package hpa

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

const rule = autoscalingv1alpha1.RuleHPA

// setConditions sets the status. Requests go to the pods directly; the activators get them only
// while no pod is ready. Only pods that are ready count: a HorizontalPodAutoscaler counts those
// that never will be, too.
//
//	Active                  True while at least min-scale pods are ready, and at least one; else Unknown. This
//	                        class does not scale to zero
//	ScaleTargetInitialized  True once Active was
//	SKSReady                True while a pod is ready
func setConditions(pa *autoscalingv1alpha1.PodAutoscaler, hpa *autoscalingv2.HorizontalPodAutoscaler, d *appsv1.Deployment, least int32, now metav1.MicroTime) {
	s := &pa.Status
	s.ServiceName, s.MetricsServiceName = names.PublicService(pa.Name), names.PrivateService(pa.Name)
	s.Mode, s.NumActivators = autoscalingv1alpha1.ModeServe, 0
	s.AsleepReplicas, s.Asleep = nil, "" // of another class; it would hide that pods fail

	ready, wanted := int32(0), int32(0)
	if d != nil {
		ready, wanted = d.Status.ReadyReplicas, 1
		if d.Spec.Replicas != nil {
			wanted = *d.Spec.Replicas
		}
	}
	if hpa.Status.DesiredReplicas > 0 {
		wanted = hpa.Status.DesiredReplicas
	}
	s.ActualScale, s.DesiredScale = &ready, &wanted
	enough := ready >= max(least, 1)
	if enough {
		s.MarkActive()
	} else {
		s.MarkActivating("Queued", "Requests are held until enough pods are ready.")
	}
	if enough || initialized(pa) {
		s.MarkScaleTargetInitialized()
	} else {
		s.MarkScaleTargetNotInitialized("", "The initial scale has not been reached yet.")
	}
	if ready > 0 {
		s.MarkSKSReady()
	} else {
		s.MarkSKSNotReady("No pod is ready, so activators take the requests.")
	}
	if before := s.Decision; hpa.Status.DesiredReplicas > 0 && (before == nil || before.Rule != rule || before.Desired != wanted) {
		s.Decision = &autoscalingv1alpha1.Decision{Time: now, Desired: wanted, Rule: rule, Reason: reason(hpa), Inputs: inputs(hpa)}
	}
}

// reason returns how Kubernetes explains its decision.
func reason(hpa *autoscalingv2.HorizontalPodAutoscaler) string {
	text := fmt.Sprintf("HorizontalPodAutoscaler %s wants %d pods", hpa.Name, hpa.Status.DesiredReplicas)
	for _, kind := range []autoscalingv2.HorizontalPodAutoscalerConditionType{autoscalingv2.ScalingActive, autoscalingv2.ScalingLimited} {
		for _, c := range hpa.Status.Conditions {
			// That scaling is not limited is not worth a word.
			if c.Type == kind && c.Message != "" && (kind == autoscalingv2.ScalingActive || c.Status == corev1.ConditionTrue) {
				text += "; " + c.Message
			}
		}
	}
	return text
}

func inputs(hpa *autoscalingv2.HorizontalPodAutoscaler) map[string]string {
	all := map[string]string{"current": fmt.Sprint(hpa.Status.CurrentReplicas)}
	for _, m := range hpa.Status.CurrentMetrics {
		switch {
		case m.Resource != nil && m.Resource.Current.AverageUtilization != nil:
			all[string(m.Resource.Name)] = fmt.Sprintf("%d%%", *m.Resource.Current.AverageUtilization)
		case m.Resource != nil && m.Resource.Current.AverageValue != nil:
			all[string(m.Resource.Name)] = m.Resource.Current.AverageValue.String()
		case m.Pods != nil && m.Pods.Current.AverageValue != nil:
			all[m.Pods.Metric.Name] = m.Pods.Current.AverageValue.String()
		}
	}
	return all
}
