package v1alpha1

import (
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// SetDefaults fills what the PodAutoscaler leaves open, which is nothing.
func (pa *PodAutoscaler) SetDefaults(rules.Request[PodAutoscaler]) {}

// Validate says what is wrong with the PodAutoscaler.
func (pa *PodAutoscaler) Validate(req rules.Request[PodAutoscaler]) *apis.FieldError {
	if req.Subresource == "status" {
		return nil
	}
	errs := names.ValidateScaling(pa.Annotations, req.Config).ViaField("annotations").ViaField("metadata")
	return errs.Also(pa.Spec.validate(req.Config).ViaField("spec"))
}

func (s *PodAutoscalerSpec) validate(config *rules.Config) (errs *apis.FieldError) {
	ref := s.ScaleTargetRef
	for _, required := range []struct{ name, value string }{
		{"apiVersion", ref.APIVersion}, {"kind", ref.Kind}, {"name", ref.Name},
	} {
		if required.value == "" {
			errs = errs.Also(apis.ErrMissingField(required.name))
		}
	}
	if ref.Namespace != "" {
		errs = errs.Also(apis.ErrDisallowedFields("namespace"))
	}
	errs = errs.ViaField("scaleTargetRef")
	if limit := config.Defaults.ContainerConcurrencyMax; s.ContainerConcurrency < 0 || limit > 0 && s.ContainerConcurrency > limit {
		errs = errs.Also(apis.ErrOutOfBoundsValue(s.ContainerConcurrency, 0, limit, "containerConcurrency"))
	}
	switch s.ProtocolType {
	case ProtocolHTTP1, ProtocolH2C:
	case "":
		errs = errs.Also(apis.ErrMissingField("protocolType"))
	default:
		errs = errs.Also(apis.ErrInvalidValue(s.ProtocolType, "protocolType"))
	}
	switch s.Reachability {
	case ReachabilityUnknown, ReachabilityReachable, ReachabilityUnreachable:
	default:
		errs = errs.Also(apis.ErrInvalidValue(s.Reachability, "reachability"))
	}
	return errs
}
