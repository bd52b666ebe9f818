package hpa

import (
	"fmt"
	"maps"
	"math"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/kmeta"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/settings"
)

// scales returns the bounds:
//
//	min  0 for a revision that no Route leads to; at least the initial scale, if that is more than
//	     one pod, until that many were ready, or Kubernetes may want fewer before; at most max
//	max  0 means no maximum; at most max-scale-limit
func scales(pa *autoscalingv1alpha1.PodAutoscaler, s names.Scaling, a settings.Autoscaler) names.Scales {
	b, _ := s.Scales(a)
	if pa.Spec.Reachability == autoscalingv1alpha1.ReachabilityUnreachable {
		b.Min = 0
	}
	if b.Initial > 1 && !initialized(pa) {
		b.Min = max(b.Min, b.Initial)
	}
	return b
}

// initialized reports whether the revision once had its initial pods, with this PodAutoscaler or
// another.
func initialized(pa *autoscalingv1alpha1.PodAutoscaler) bool {
	return pa.Annotations[names.InitializedAnnotation] == "true" || pa.Status.IsScaleTargetInitialized()
}

// MakeHPA returns the HorizontalPodAutoscaler of a PodAutoscaler.
//
//	annotation metric  metrics
//	cpu, none          CPU utilization in percent of what the pods request
//	memory             mean memory in Mi
//	any other          mean of that metric of the pods, by the custom metrics API
//
// Without a target there are no metrics, and Kubernetes aims for 80 % of CPU.
func MakeHPA(pa *autoscalingv1alpha1.PodAutoscaler, c *rules.Config) *autoscalingv2.HorizontalPodAutoscaler {
	s, _ := names.ScalingOf(pa.Annotations, c)
	b := scales(pa, s, c.Autoscaling)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{
			Name: pa.Name, Namespace: pa.Namespace, Labels: maps.Clone(pa.Labels), Annotations: maps.Clone(pa.Annotations),
			OwnerReferences: []metav1.OwnerReference{*kmeta.NewControllerRef(pa)},
		},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: pa.Spec.ScaleTargetRef.APIVersion,
				Kind: pa.Spec.ScaleTargetRef.Kind, Name: pa.Spec.ScaleTargetRef.Name},
			MaxReplicas: math.MaxInt32,
		},
	}
	if b.Max > 0 {
		hpa.Spec.MaxReplicas = b.Max
	}
	if b.Min > 0 {
		hpa.Spec.MinReplicas = &b.Min
	}
	if s.Target != nil {
		hpa.Spec.Metrics = []autoscalingv2.MetricSpec{metric(s.Metric, *s.Target)}
	}
	if _, _, given := names.Lookup(pa.Annotations, names.WindowAnnotation); given {
		seconds := int32(s.Window.Round(time.Second) / time.Second)
		hpa.Spec.Behavior = &autoscalingv2.HorizontalPodAutoscalerBehavior{
			ScaleUp:   &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &seconds},
			ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &seconds},
		}
	}
	return hpa
}

func metric(name string, target float64) autoscalingv2.MetricSpec {
	// Larger targets are the same as none.
	whole := int64(math.Ceil(min(target, math.MaxInt32)))
	switch name {
	case "", names.MetricCPU:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name:   corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: ptr.To(int32(whole))}}}
	case names.MetricMemory:
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
			Name: corev1.ResourceMemory,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
				AverageValue: ptr.To(resource.MustParse(fmt.Sprintf("%dMi", whole)))}}}
	}
	// A quantity is precise to thousandths.
	average := resource.NewMilliQuantity(int64(math.Ceil(min(target, math.MaxInt32)*1000)), resource.DecimalSI)
	return autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
		Metric: autoscalingv2.MetricIdentifier{Name: name},
		Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: average}}}
}

// stored returns a spec with Kubernetes' defaults. Specs are compared in this form, or each
// reconcile would remove the defaults.
func stored(spec autoscalingv2.HorizontalPodAutoscalerSpec) autoscalingv2.HorizontalPodAutoscalerSpec {
	spec = *spec.DeepCopy()
	if spec.MinReplicas == nil {
		spec.MinReplicas = ptr.To[int32](1)
	}
	if len(spec.Metrics) == 0 {
		spec.Metrics = []autoscalingv2.MetricSpec{metric(names.MetricCPU, 80)}
	}
	if spec.Behavior == nil {
		return spec
	}
	percent := autoscalingv2.HPAScalingPolicy{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15}
	for rules, policies := range map[*autoscalingv2.HPAScalingRules][]autoscalingv2.HPAScalingPolicy{
		spec.Behavior.ScaleUp:   {{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15}, percent},
		spec.Behavior.ScaleDown: {percent},
	} {
		if rules != nil && rules.SelectPolicy == nil {
			rules.SelectPolicy = ptr.To(autoscalingv2.MaxChangePolicySelect)
		}
		if rules != nil && len(rules.Policies) == 0 {
			rules.Policies = policies
		}
	}
	return spec
}
