package revision

import (
	"math"
	"strconv"

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

// sidecarResources are queue-proxy's requests and limits. The last word that is given wins:
//
//	built-in or config-deployment < feature queueproxy.resource-defaults (limits and memory only where config is silent)
//	< percentage of the user container < explicit annotation
func sidecarResources(annotations map[string]string, user corev1.Container, s *settings.Snapshot) corev1.ResourceRequirements {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for name, q := range s.Deployment.QueueSidecarRequests {
		requests[name] = q.DeepCopy()
	}
	for name, q := range s.Deployment.QueueSidecarLimits {
		limits[name] = q.DeepCopy()
	}
	if s.Features.Enabled(rules.KeyQueueProxyResourceDefaults) {
		unless(limits, corev1.ResourceCPU, "1000m")
		unless(requests, corev1.ResourceMemory, "400Mi")
		unless(limits, corev1.ResourceMemory, "800Mi")
	}
	if percent, ok := percentage(annotations); ok {
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
				share.into[share.name] = portion(whole, percent, share.bounds, share.name)
			}
		}
	}
	for _, explicit := range []struct {
		key  string
		into corev1.ResourceList
		name corev1.ResourceName
	}{
		{names.SidecarCPURequestAnnotation, requests, corev1.ResourceCPU},
		{names.SidecarCPULimitAnnotation, limits, corev1.ResourceCPU},
		{names.SidecarMemoryRequestAnnotation, requests, corev1.ResourceMemory},
		{names.SidecarMemoryLimitAnnotation, limits, corev1.ResourceMemory},
		{names.SidecarStorageRequestAnnotation, requests, corev1.ResourceEphemeralStorage},
		{names.SidecarStorageLimitAnnotation, limits, corev1.ResourceEphemeralStorage},
	} {
		if text, given := annotations[explicit.key]; given {
			if q, err := resource.ParseQuantity(text); err == nil { // the webhook refused anything else
				explicit.into[explicit.name] = q
			}
		}
	}
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

func percentage(annotations map[string]string) (float64, bool) {
	text, given := annotations[names.SidecarResourcePercentAnnotation]
	if !given {
		text, given = annotations[names.SidecarResourcePercentAnnotationAlt]
	}
	if !given {
		return 0, false
	}
	percent, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(percent) || percent < 0.1 || percent > 100 {
		return 0, false
	}
	return percent, true
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
