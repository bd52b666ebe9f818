package v1beta1

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// SetDefaults fills what the DomainMapping leaves open and records who writes it.
func (dm *DomainMapping) SetDefaults(req rules.Request[DomainMapping]) {
	dm.Spec.Ref.SetDefaults(apis.WithinParent(context.Background(), dm.ObjectMeta))
	var old *metav1.ObjectMeta
	if req.Old != nil {
		old = &req.Old.ObjectMeta
	}
	servingv1.SetUserInfo(&dm.ObjectMeta, old, req.User, func() bool { return equality.Semantic.DeepEqual(dm.Spec, req.Old.Spec) })
}

// Validate says what is wrong with the DomainMapping.
func (dm *DomainMapping) Validate(req rules.Request[DomainMapping]) *apis.FieldError {
	if req.Subresource == "status" {
		return nil
	}
	errs := dm.validateMetadata(req).ViaField("metadata")
	if dm.Spec.TLS != nil && dm.Spec.TLS.SecretName == "" {
		errs = errs.Also(apis.ErrMissingField("spec.tls.secretName"))
	}
	errs = errs.Also(dm.Spec.Ref.Validate(apis.WithinParent(context.Background(), dm.ObjectMeta)).ViaField("spec", "ref"))
	return errs.Also(ValidateRef(dm.Spec.Ref).ViaField("spec", "ref"))
}

// ValidateRef refuses a reference whose parts are no names. The controller asks the API server for
// what is referred to, so no part may lead to another path than that of one object.
func ValidateRef(ref duckv1.KReference) (errs *apis.FieldError) {
	group, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || group.Group != "" && len(validation.IsDNS1123Subdomain(group.Group)) > 0 ||
		group.Version != "" && len(validation.IsDNS1123Label(group.Version)) > 0 {
		errs = errs.Also(apis.ErrInvalidValue(ref.APIVersion, "apiVersion"))
	}
	if ref.Group != "" && len(validation.IsDNS1123Subdomain(ref.Group)) > 0 {
		errs = errs.Also(apis.ErrInvalidValue(ref.Group, "group"))
	}
	if ref.Name != "" && len(validation.IsDNS1123Subdomain(ref.Name)) > 0 {
		errs = errs.Also(apis.ErrInvalidValue(ref.Name, "name"))
	}
	if ref.Namespace != "" && len(validation.IsDNS1123Label(ref.Namespace)) > 0 {
		errs = errs.Also(apis.ErrInvalidValue(ref.Namespace, "namespace"))
	}
	return errs
}

func (dm *DomainMapping) validateMetadata(req rules.Request[DomainMapping]) (errs *apis.FieldError) {
	if dm.GenerateName != "" {
		errs = errs.Also(apis.ErrDisallowedFields("generateName"))
	}
	if problems := validation.IsFullyQualifiedDomainName(nil, dm.Name); dm.GenerateName == "" && len(problems) > 0 {
		errs = errs.Also(apis.ErrGeneric("invalid name \""+dm.Name+"\": "+problems[0].Detail, "name"))
	}
	if domain := req.Config.ClusterDomain; domain != "" && (dm.Name == domain || strings.HasSuffix(dm.Name, "."+domain)) {
		errs = errs.Also(apis.ErrGeneric("invalid name \""+dm.Name+"\": must not be a subdomain of cluster local domain \""+
			domain+"\"", "name"))
	}
	if req.Old != nil && len(dm.OwnerReferences) == 0 {
		errs = errs.Also(apis.ValidateCreatorAndModifier(req.Old.Spec, dm.Spec, req.Old.Annotations, dm.Annotations,
			names.ServingGroup).ViaField("annotations"))
	}
	return errs
}
