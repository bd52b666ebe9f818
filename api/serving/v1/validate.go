package v1

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
)

// Validate says what is wrong with the Service, errors and warnings; nil is nothing.
func (s *Service) Validate(req rules.Request[Service]) *apis.FieldError {
	if req.Subresource == "status" {
		return nil
	}
	errs := validateMetadata(&s.ObjectMeta, names.LiveAnnotations...).Also(validateVisibility(s.Labels).ViaField("labels"))
	_, rollout := names.RolloutDuration(s.Annotations)
	_, guard := names.RolloutGuard(s.Annotations)
	_, overrule := names.RolloutOverrule(s.Annotations)
	steps := validateSteps(s.Annotations, s.Spec.Traffic).Also(warnUnjudged(s.Annotations, s.Spec.Traffic))
	_, async := names.ParseAsync(s.Annotations)
	errs = errs.Also(rollout.ViaField("annotations")).Also(guard.ViaField("annotations")).
		Also(overrule.ViaField("annotations")).Also(steps.ViaField("annotations")).Also(async.ViaField("annotations"))
	var oldTemplate *RevisionTemplateSpec
	if req.Old != nil {
		errs = errs.Also(validateUserInfo(&s.ObjectMeta, &req.Old.ObjectMeta, s.Spec, req.Old.Spec))
		oldTemplate = &req.Old.Spec.Template
	}
	errs = errs.ViaField("metadata")
	spec := s.Spec.Template.validate(req.Config, &s.ObjectMeta, oldTemplate).ViaField("template")
	if req.Old != nil && equality.Semantic.DeepEqual(s.Spec.Template, req.Old.Spec.Template) &&
		!(equality.Semantic.DeepEqual(s.Spec.Traffic, req.Old.Spec.Traffic) && sameKeys(&s.ObjectMeta, &req.Old.ObjectMeta)) {
		spec = spec.Filter(apis.ErrorLevel)
	}
	return errs.Also(spec.Also(validateTraffic(s.Spec.Traffic, inService)).ViaField("spec"))
}

// Validate says what is wrong with the Configuration, errors and warnings; nil is nothing.
func (c *Configuration) Validate(req rules.Request[Configuration]) *apis.FieldError {
	if req.Subresource == "status" {
		return nil
	}
	errs := validateMetadata(&c.ObjectMeta, names.LiveAnnotations...)
	errs = errs.Also(validateOwned(&c.ObjectMeta, names.ServiceLabel, "Service"))
	var oldTemplate *RevisionTemplateSpec
	if req.Old != nil {
		errs = errs.Also(validateUserInfo(&c.ObjectMeta, &req.Old.ObjectMeta, c.Spec, req.Old.Spec))
		oldTemplate = &req.Old.Spec.Template
	}
	errs = errs.ViaField("metadata")
	spec := c.Spec.Template.validate(req.Config, &c.ObjectMeta, oldTemplate).ViaField("template").ViaField("spec")
	if req.Old != nil && equality.Semantic.DeepEqual(c.Spec.Template, req.Old.Spec.Template) && !sameKeys(&c.ObjectMeta, &req.Old.ObjectMeta) {
		spec = spec.Filter(apis.ErrorLevel)
	}
	return errs.Also(spec)
}

// sameKeys: neither labels nor annotations changed. With the same template that tells a manifest
// that is applied again, which is warned about each time, from a change of something else, such as
// traffic, which is none of the template's business.
func sameKeys(meta, old *metav1.ObjectMeta) bool {
	return equality.Semantic.DeepEqual(meta.Labels, old.Labels) && equality.Semantic.DeepEqual(meta.Annotations, old.Annotations)
}

// Validate says what is wrong with the Route, errors and warnings; nil is nothing.
func (r *Route) Validate(req rules.Request[Route]) *apis.FieldError {
	if req.Subresource == "status" {
		return nil
	}
	errs := validateMetadata(&r.ObjectMeta)
	errs = errs.Also(validateOwned(&r.ObjectMeta, names.ServiceLabel, "Service"))
	errs = errs.Also(validateVisibility(r.Labels).ViaField("labels"))
	_, rollout := names.RolloutDuration(r.Annotations)
	_, guard := names.RolloutGuard(r.Annotations)
	_, overrule := names.RolloutOverrule(r.Annotations)
	steps := validateSteps(r.Annotations, r.Spec.Traffic)
	_, async := names.ParseAsync(r.Annotations)
	errs = errs.Also(rollout.ViaField("annotations")).Also(guard.ViaField("annotations")).
		Also(overrule.ViaField("annotations")).Also(steps.ViaField("annotations")).Also(async.ViaField("annotations"))
	if req.Old != nil {
		errs = errs.Also(validateUserInfo(&r.ObjectMeta, &req.Old.ObjectMeta, r.Spec, req.Old.Spec))
	}
	return errs.ViaField("metadata").Also(validateTraffic(r.Spec.Traffic, inRoute).ViaField("spec"))
}

// Validate says what is wrong with the Revision, errors and warnings; nil is nothing.
func (r *Revision) Validate(req rules.Request[Revision]) *apis.FieldError {
	if req.Subresource == "status" {
		return nil
	}
	errs := validateName(&r.ObjectMeta).
		Also(names.ValidateTemplateAnnotations(r.Annotations, req.Config).ViaField("annotations")).
		Also(validateOwned(&r.ObjectMeta, names.ConfigurationLabel, "Configuration")).
		ViaField("metadata")
	if req.Old == nil {
		return errs.Also(r.Spec.validate(req.Config).ViaField("spec"), validateShim(r.Annotations, &r.Spec, req.Config))
	}
	if !equality.Semantic.DeepEqual(r.Spec, req.Old.Spec) {
		errs = errs.Also(&apis.FieldError{
			Message: "Immutable fields changed (-old +new)",
			Paths:   []string{"spec"},
			Details: difference(req.Old.Spec, r.Spec),
		})
	}
	return errs
}

// validateMetadata checks what Services, Configurations and Routes have alike. Of the annotations
// about autoscaling they may have those that are live.
func validateMetadata(meta *metav1.ObjectMeta, live ...string) *apis.FieldError {
	return validateName(meta).Also(names.ValidateNoScaling(meta.Annotations, live).
		Also(names.ValidateLive(meta.Annotations)).ViaField("annotations"))
}

// validateVisibility refuses what would be taken for no label at all, and so make public what was
// meant to be private.
func validateVisibility(labels map[string]string) *apis.FieldError {
	value, ok := labels[names.VisibilityLabel]
	if !ok || value == names.VisibilityClusterLocal {
		return nil
	}
	return apis.ErrInvalidValue(value, names.VisibilityLabel,
		fmt.Sprintf("must be %q; without the label the host is public", names.VisibilityClusterLocal))
}

func validateName(meta *metav1.ObjectMeta) *apis.FieldError {
	if meta.Name == "" && meta.GenerateName != "" {
		// Kubernetes appends five characters.
		if problems := validation.IsDNS1035Label(strings.TrimRight(meta.GenerateName, "-")); len(problems) > 0 {
			return &apis.FieldError{
				Message: fmt.Sprintf("not a DNS 1035 label prefix: %v", problems), Paths: []string{"generateName"},
			}
		}
		return nil
	}
	return validateLabel(meta.Name, "name")
}

// validateLabel requires the first label of a host name.
func validateLabel(name, field string) *apis.FieldError {
	if name == "" {
		return apis.ErrMissingField(field)
	}
	if problems := validation.IsDNS1035Label(name); len(problems) > 0 {
		return &apis.FieldError{Message: fmt.Sprintf("not a DNS 1035 label: %v", problems), Paths: []string{field}}
	}
	return nil
}

// validateOwned requires that a label which Ebb sets stands for an owner.
func validateOwned(meta *metav1.ObjectMeta, label, kind string) *apis.FieldError {
	value, ok := meta.Labels[label]
	if !ok {
		return nil
	}
	for _, owner := range meta.OwnerReferences {
		if owner.Kind == kind && owner.Name == value {
			return nil
		}
	}
	err := apis.ErrMissingField(label).ViaField("labels")
	err.Details = fmt.Sprintf("the label is set by Ebb; no owner of kind %s named %q stands in metadata.ownerReferences", kind, value)
	return err
}

func validateUserInfo(meta, old *metav1.ObjectMeta, spec, oldSpec any) *apis.FieldError {
	if len(meta.OwnerReferences) > 0 {
		return nil
	}
	return apis.ValidateCreatorAndModifier(oldSpec, spec, old.Annotations, meta.Annotations, names.ServingGroup).ViaField("annotations")
}

func (t *RevisionTemplateSpec) validate(config *rules.Config, parent *metav1.ObjectMeta, old *RevisionTemplateSpec) *apis.FieldError {
	errs := t.validateName(parent, old).Also(validatePodMetadata(&t.ObjectMeta)).ViaField("metadata").
		Also(names.ValidateTemplateAnnotations(t.Annotations, config).
			Also(names.ValidateFallback(t.Annotations, parent.Name)).ViaField("annotations").ViaField("metadata"))
	if old != nil && t.Name != "" && t.Name == old.Name && !equality.Semantic.DeepEqual(t, old) {
		errs = errs.Also(&apis.FieldError{
			Message: "Saw the following changes without a name change (-old +new)",
			Paths:   []string{apis.CurrentField},
			Details: difference(old, t),
		})
	}
	return errs.Also(t.Spec.validate(config).ViaField("spec"), validateShim(t.Annotations, &t.Spec, config))
}

func (t *RevisionTemplateSpec) validateName(parent *metav1.ObjectMeta, old *RevisionTemplateSpec) *apis.FieldError {
	if t.Name == "" {
		if t.GenerateName != "" {
			return apis.ErrDisallowedFields("generateName")
		}
		return nil
	}
	if parent.Name == "" || parent.GenerateName != "" && old == nil {
		err := apis.ErrDisallowedFields("name")
		err.Details = "a Revision can be named only when its parent has a name of its own, not a generated one"
		return err
	}
	errs := validateLabel(t.Name, "name")
	if !strings.HasPrefix(t.Name, parent.Name+"-") {
		errs = errs.Also(apis.ErrInvalidValue(t.Name, "name", fmt.Sprintf("must have prefix %q", parent.Name+"-")))
	}
	return errs
}
