package v1

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

func (rs *RevisionSpec) validatePodSecurityContext(f rules.Features) (errs *apis.FieldError) {
	context := rs.SecurityContext
	if context == nil || equality.Semantic.DeepEqual(*context, corev1.PodSecurityContext{}) {
		return nil
	}
	mask := corev1.PodSecurityContext{SeccompProfile: context.SeccompProfile}
	details := howToSet(rules.KeyPodSpecSecurityContext)
	switch {
	case f.Allowed(rules.KeyPodSpecSecurityContext):
		mask.RunAsUser, mask.RunAsGroup, mask.RunAsNonRoot = context.RunAsUser, context.RunAsGroup, context.RunAsNonRoot
		mask.FSGroup, mask.SupplementalGroups = context.FSGroup, context.SupplementalGroups
		details = ""
	case securedByDefault(f):
		if p := context.SeccompProfile; p != nil && p.Type != corev1.SeccompProfileTypeRuntimeDefault && p.Type != corev1.SeccompProfileTypeUnconfined {
			errs = errs.Also(apis.ErrInvalidValue(p.Type, "seccompProfile.type", "must be RuntimeDefault or Unconfined"))
		}
	default:
		return needsFlag(rules.KeyPodSpecSecurityContext, "securityContext")
	}
	if disallowed := apis.CheckDisallowedFields(*context, mask); disallowed != nil {
		disallowed.Details = details
		errs = errs.Also(disallowed)
	}
	errs = errs.Also(validateID(context.RunAsUser, "runAsUser"), validateID(context.RunAsGroup, "runAsGroup"), validateID(context.FSGroup, "fsGroup"),
		validateSeccompProfile(context.SeccompProfile))
	for i, group := range context.SupplementalGroups {
		if group < 0 || group > math.MaxInt32 {
			errs = errs.Also(apis.ErrOutOfBoundsValue(group, 0, math.MaxInt32, apis.CurrentField).ViaFieldIndex("supplementalGroups", i))
		}
	}
	return errs.ViaField("securityContext")
}

func validateID(id *int64, field string) *apis.FieldError {
	if id == nil || *id >= 0 && *id <= math.MaxInt32 {
		return nil
	}
	return apis.ErrOutOfBoundsValue(*id, 0, math.MaxInt32, field)
}

func (v *containerCheck) validateSecurityContext() (errs *apis.FieldError) {
	context := v.c.SecurityContext
	if context == nil {
		return v.warnInsecure(&corev1.SecurityContext{}).ViaField("securityContext")
	}
	errs = errs.Also(apis.CheckDisallowedFields(*context, corev1.SecurityContext{
		Capabilities: context.Capabilities, Privileged: context.Privileged, ReadOnlyRootFilesystem: context.ReadOnlyRootFilesystem,
		RunAsUser: context.RunAsUser, RunAsGroup: context.RunAsGroup, RunAsNonRoot: context.RunAsNonRoot,
		AllowPrivilegeEscalation: context.AllowPrivilegeEscalation, SeccompProfile: context.SeccompProfile,
	}))
	errs = errs.Also(validateID(context.RunAsUser, "runAsUser"), validateID(context.RunAsGroup, "runAsGroup"),
		validateSeccompProfile(context.SeccompProfile))
	if context.Privileged != nil && *context.Privileged {
		errs = errs.Also(apis.ErrInvalidValue(true, "privileged", "only false may be set"))
	}
	if c := context.Capabilities; c != nil {
		bindOnly := len(c.Add) == 1 && c.Add[0] == "NET_BIND_SERVICE" && securedByDefault(v.f)
		if len(c.Add) > 0 && !bindOnly && !v.f.Allowed(rules.KeyContainerSpecAddCapabilities) {
			errs = errs.Also(needsFlag(rules.KeyContainerSpecAddCapabilities, "capabilities.add"))
		}
		for i, dropped := range c.Drop {
			if dropped != "ALL" && strings.EqualFold(string(dropped), "ALL") {
				errs = errs.Also((&apis.FieldError{
					Message: `capability "` + string(dropped) + `" is not known to every runtime; write "ALL"`,
					Paths:   []string{apis.CurrentField},
				}).At(apis.WarningLevel).ViaFieldIndex("drop", i).ViaField("capabilities"))
			}
		}
	}
	return errs.Also(v.warnInsecure(context)).ViaField("securityContext")
}

// warnInsecure names the fields whose unset value is the permissive one, unless the defaulting sets
// them.
func (v *containerCheck) warnInsecure(context *corev1.SecurityContext) *apis.FieldError {
	if securedByDefault(v.f) {
		return nil
	}
	pod := v.pod.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	var fields []string
	if context.RunAsNonRoot == nil && pod.RunAsNonRoot == nil {
		fields = append(fields, "runAsNonRoot")
	}
	if context.AllowPrivilegeEscalation == nil {
		fields = append(fields, "allowPrivilegeEscalation")
	}
	if context.SeccompProfile == nil && pod.SeccompProfile == nil {
		fields = append(fields, "seccompProfile")
	}
	if context.Capabilities == nil {
		fields = append(fields, "capabilities")
	}
	if len(fields) == 0 {
		return nil
	}
	return (&apis.FieldError{
		Message: "Kubernetes leaves this open when it is unset; set it, or let secure-pod-defaults in ConfigMap config-features set it",
		Paths:   fields,
	}).At(apis.WarningLevel)
}
