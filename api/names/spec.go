package names

import (
	"strings"
	"time"

	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

// MaxWarmUp bounds for how long the times of a pod's requests do not count.
const MaxWarmUp = time.Hour

// Spec is what a Revision means.
type Spec struct {
	Scaling Scaling
	Cold    Cold
	// Limits are for both proxies. Of knows Handling alone; the rest stands in the Revision's spec.
	Limits wire.Limits
	// Sidecar is what the annotations say about the resources of queue-proxy.
	Sidecar Sidecar
	// PodInfo mounts the pod's annotations into queue-proxy.
	PodInfo bool
	Records string
	WarmUp  time.Duration
	// Shim is the mode of the shim, "" for none.
	Shim string
	// ConcurrencyVariable is the variable in which the serving container finds
	// containerConcurrency, "" for none.
	ConcurrencyVariable string
}

// Of decides what the annotations of a Revision mean: an annotation counts before a setting, and a
// setting before the built-in default. An invalid annotation reads as absent; the error of its path
// says why. Admission refuses errors, so nobody else needs to look at them.
func Of(annotations map[string]string, c *rules.Config) (Spec, *apis.FieldError) {
	r := &reader{annotations: annotations}
	s := Spec{
		Scaling: r.scaling(c),
		Cold:    r.cold(&c.Defaults),
		Limits:  wire.Limits{Handling: r.handling(c.Defaults.Handling)},
		Sidecar: r.sidecar(),
		PodInfo: c.Features.Enabled(rules.KeyQueueProxyMountPodInfo) ||
			c.Features.Allowed(rules.KeyQueueProxyMountPodInfo) && annotations[FeaturePodInfoAnnotation] == "enabled",
		Records:             r.records(),
		WarmUp:              ptr.Deref(r.duration(WarmUpAnnotation), wire.DefaultWarmUp),
		Shim:                r.shim(),
		ConcurrencyVariable: r.concurrencyVariable(),
	}
	return s, r.errs
}

// ValidateTemplateAnnotations says what is wrong with the annotations of a Revision or its
// template.
func ValidateTemplateAnnotations(annotations map[string]string, c *rules.Config) *apis.FieldError {
	s, errs := Of(annotations, c)
	for key := range annotations {
		if strings.HasPrefix(key, NetworkingGroup+"/") {
			errs = errs.Also(apis.ErrInvalidKeyName(key, apis.CurrentField,
				`networking annotations belong to the Service or Route, under "metadata.annotations"`))
		}
	}
	return errs.Also(s.Scaling.validate(annotations, c.Autoscaling))
}
