package settings

import (
	"text/template"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"ebb.dev/ebb/api/rules"
)

// Rules is the part of the Snapshot that defaulting and validation depend on, in the form in which
// api/ wants it.
func (s *Snapshot) Rules(clusterDomain string) *rules.Config {
	d := s.Defaults
	quantity := func(list corev1.ResourceList, name corev1.ResourceName) *resource.Quantity {
		if q, ok := list[name]; ok {
			return &q
		}
		return nil
	}
	// The texts were compiled when the ConfigMap was read, so they compile.
	compiled := func(text string) *template.Template { return template.Must(template.New("name").Parse(text)) }
	return &rules.Config{
		Defaults: rules.Defaults{
			RevisionTimeoutSeconds:              d.TimeoutSeconds,
			MaxRevisionTimeoutSeconds:           d.MaxTimeoutSeconds,
			RevisionResponseStartTimeoutSeconds: d.ResponseStartTimeoutSeconds,
			RevisionIdleTimeoutSeconds:          d.IdleTimeoutSeconds,
			RevisionCPURequest:                  quantity(d.Requests, corev1.ResourceCPU),
			RevisionCPULimit:                    quantity(d.Limits, corev1.ResourceCPU),
			RevisionMemoryRequest:               quantity(d.Requests, corev1.ResourceMemory),
			RevisionMemoryLimit:                 quantity(d.Limits, corev1.ResourceMemory),
			RevisionEphemeralStorageRequest:     quantity(d.Requests, corev1.ResourceEphemeralStorage),
			RevisionEphemeralStorageLimit:       quantity(d.Limits, corev1.ResourceEphemeralStorage),
			ContainerNameTemplate:               compiled(d.ContainerNameTemplate),
			InitContainerNameTemplate:           compiled(d.InitContainerNameTemplate),
			ContainerConcurrency:                d.ContainerConcurrency,
			ContainerConcurrencyMaxLimit:        d.ContainerConcurrencyMax,
			AllowContainerConcurrencyZero:       d.AllowConcurrencyZero,
			EnableServiceLinks:                  d.EnableServiceLinks,
		},
		Features: s.Features,
		Autoscaling: rules.Autoscaling{
			Class:                 s.Autoscaler.Class,
			AllowZeroInitialScale: s.Autoscaler.AllowZeroInitialScale,
			MinScale:              s.Autoscaler.MinScale,
			MaxScale:              s.Autoscaler.MaxScale,
			MaxScaleLimit:         s.Autoscaler.MaxScaleLimit,
		},
		ClusterDomain: clusterDomain,
	}
}
