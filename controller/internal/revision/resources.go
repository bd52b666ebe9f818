package revision

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/settings"
)

// bounds clamp what a percentage of the user container's resources gives queue-proxy.
type bounds struct{ low, high resource.Quantity }

func between(low, high string) bounds {
	return bounds{resource.MustParse(low), resource.MustParse(high)}
}

// sidecarResources returns queue-proxy's requests and limits. The last one that is set wins:
//
//	built-in or config-deployment < feature queueproxy.resource-defaults (limits and memory only where config is silent)
//	< percentage of the user container < explicit annotation
func sidecarResources(template names.Sidecar, user corev1.Container, s *settings.Snapshot) corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	maps.Copy(requests, s.Deployment.QueueSidecarRequests)
	maps.Copy(limits, s.Deployment.QueueSidecarLimits)
	if s.Features.Enabled(rules.KeyQueueProxyResourceDefaults) {
		unless(limits, corev1.ResourceCPU, "1000m")
		unless(requests, corev1.ResourceMemory, "400Mi")
		unless(limits, corev1.ResourceMemory, "800Mi")
	}
	if percent := template.Percentage; percent != nil {
		for _, share := range []struct {
			of, into corev1.ResourceList
			name     corev1.ResourceName
			bounds
		}{
			{user.Resources.Requests, requests, corev1.ResourceCPU, between("25m", "100m")},
			{user.Resources.Limits, limits, corev1.ResourceCPU, between("40m", "500m")},
			{user.Resources.Requests, requests, corev1.ResourceMemory, between("50Mi", "200Mi")},
			{user.Resources.Limits, limits, corev1.ResourceMemory, between("200Mi", "500Mi")},
		} {
			if whole, given := share.of[share.name]; given {
				share.into[share.name] = portion(whole, *percent, share.bounds, share.name)
			}
		}
	}
	maps.Copy(requests, template.Requests)
	maps.Copy(limits, template.Limits)
	r := corev1.ResourceRequirements{}
	if len(requests) > 0 {
		r.Requests = requests
	}
	if len(limits) > 0 {
		r.Limits = limits
	}
	return r
}

func unless(list corev1.ResourceList, name corev1.ResourceName, value string) {
	if _, given := list[name]; !given {
		list[name] = resource.MustParse(value)
	}
}

// portion is percent of whole within its bounds: CPU in thousandths of a core, memory in bytes.
func portion(whole resource.Quantity, percent float64, b bounds, name corev1.ResourceName) resource.Quantity {
	var part *resource.Quantity
	if name == corev1.ResourceCPU {
		part = resource.NewMilliQuantity(int64(float64(whole.MilliValue())*percent/100), resource.DecimalSI)
	} else {
		part = resource.NewQuantity(int64(float64(whole.Value())*percent/100), resource.BinarySI)
	}
	if part.Cmp(b.low) < 0 {
		return b.low
	}
	if part.Cmp(b.high) > 0 {
		return b.high
	}
	return *part
}
