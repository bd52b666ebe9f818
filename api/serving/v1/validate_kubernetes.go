package v1

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"
)

// The rules in this file are Kubernetes', for pods. Without them admission accepts a Service, or
// its dry run, whose Deployment is refused later.

// invalid is the error of a value with problems, nil if it has none.
func invalid(value any, field string, problems []string) *apis.FieldError {
	if len(problems) == 0 {
		return nil
	}
	return apis.ErrInvalidValue(value, field, strings.Join(problems, "; "))
}

func invalidKey(key, field string, problems []string) *apis.FieldError {
	if len(problems) == 0 {
		return nil
	}
	return apis.ErrInvalidKeyName(key, field, strings.Join(problems, "; "))
}

// validatePodMetadata checks what the API server checks of an object, and not of a template.
func validatePodMetadata(meta *metav1.ObjectMeta) *apis.FieldError {
	errs := validateLabels(meta.Labels, "labels")
	for key := range meta.Annotations {
		errs = errs.Also(invalidKey(key, "annotations", validation.IsQualifiedName(strings.ToLower(key))))
	}
	if err := apivalidation.ValidateAnnotationsSize(meta.Annotations); err != nil {
		errs = errs.Also(apis.ErrGeneric(err.Error(), "annotations"))
	}
	return errs
}

func validateLabels(labels map[string]string, field string) (errs *apis.FieldError) {
	for key, value := range labels {
		errs = errs.Also(invalidKey(key, field, validation.IsQualifiedName(key)), invalid(value, key, validation.IsValidLabelValue(value)).ViaField(field))
	}
	return errs
}

// validateReference checks the name of a Secret or ConfigMap. What it is a prefix of may be meant
// where Kubernetes takes that, too.
func validateReference(name string, prefix bool) *apis.FieldError {
	if name == "" {
		return apis.ErrMissingField("name")
	}
	return invalid(name, "name", apivalidation.NameIsDNSSubdomain(name, prefix))
}

func validateKey(name, key string) *apis.FieldError {
	errs := validateReference(name, false)
	if key == "" {
		return errs.Also(apis.ErrMissingField("key"))
	}
	return errs.Also(invalid(key, "key", validation.IsConfigMapKey(key)))
}

// descends says why a path leads out of the folder that it is in.
func descends(p string) (problems []string) {
	if path.IsAbs(p) {
		problems = append(problems, "must be a relative path")
	}
	if slices.Contains(strings.Split(p, "/"), "..") {
		problems = append(problems, "must not contain '..'")
	}
	return problems
}

// validateFile checks the path and mode of a file in a volume.
func validateFile(p string, mode *int32) *apis.FieldError {
	if p == "" {
		return apis.ErrMissingField("path").Also(validateMode(mode, "mode"))
	}
	problems := descends(p)
	if len(problems) == 0 && strings.HasPrefix(p, "..") {
		problems = []string{"must not start with '..'"}
	}
	return invalid(p, "path", problems).Also(validateMode(mode, "mode"))
}

func validateMode(mode *int32, field string) *apis.FieldError {
	if mode == nil || *mode >= 0 && *mode <= 0o777 {
		return nil
	}
	return withDetails(apis.ErrOutOfBoundsValue(*mode, 0, 0o777, field), "0777 is 511 in decimal")
}

func validateSeccompProfile(p *corev1.SeccompProfile) (errs *apis.FieldError) {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.SeccompProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			errs = withDetails(apis.ErrMissingField("localhostProfile"), "type is Localhost")
		} else {
			errs = invalid(*p.LocalhostProfile, "localhostProfile", descends(*p.LocalhostProfile))
		}
	case corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined:
		if p.LocalhostProfile != nil {
			errs = withDetails(apis.ErrDisallowedFields("localhostProfile"), "type is not Localhost")
		}
	case "":
		errs = apis.ErrMissingField("type")
	default:
		errs = apis.ErrInvalidValue(p.Type, "type", "must be RuntimeDefault, Localhost or Unconfined")
	}
	return errs.ViaField("seccompProfile")
}

// validateInitPort checks the port of an init container. The serving container's is Ebb's.
func validateInitPort(p *corev1.ContainerPort, used sets.Set[string]) (errs *apis.FieldError) {
	if p.ContainerPort == 0 {
		errs = apis.ErrMissingField("containerPort")
	}
	if p.Name != "" {
		problems := validation.IsValidPortName(p.Name)
		if used.Has(p.Name) {
			problems = append(problems, "must be unique")
		}
		errs = errs.Also(invalid(p.Name, "name", problems))
		used.Insert(p.Name)
	}
	switch p.Protocol {
	case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		errs = errs.Also(apis.ErrInvalidValue(p.Protocol, "protocol", "must be TCP, UDP or SCTP"))
	}
	return errs
}

func (rs *RevisionSpec) validateDNS() *apis.FieldError {
	switch rs.DNSPolicy {
	case "", corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault:
		return nil
	case corev1.DNSNone:
		if rs.DNSConfig == nil || len(rs.DNSConfig.Nameservers) == 0 {
			return withDetails(apis.ErrMissingField("dnsConfig.nameservers"), "dnsPolicy is None")
		}
		return nil
	}
	return apis.ErrInvalidValue(rs.DNSPolicy, "dnsPolicy", "must be ClusterFirst, ClusterFirstWithHostNet, Default or None")
}

// isHugePages and isExtended tell the kinds of resources that cannot be overcommitted: their
// request is their limit.
func isHugePages(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

func isExtended(name corev1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

func resourceNameProblems(name corev1.ResourceName) []string {
	problems := validation.IsQualifiedName(string(name))
	switch {
	case len(problems) > 0:
	case isExtended(name):
		// A quota names it so.
		if strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) {
			return []string{"must not begin with " + corev1.DefaultResourceRequestsPrefix}
		}
		return validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix + string(name))
	case strings.Contains(string(name), "/"), isHugePages(name), name == corev1.ResourceCPU, name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage:
	default:
		return []string{"must be cpu, memory, ephemeral-storage, hugepages-<size>, or a name with a domain such as example.com/gpu"}
	}
	return problems
}

func (v *containerCheck) validateResources() (errs *apis.FieldError) {
	r := v.c.Resources
	errs = errs.Also(apis.CheckDisallowedFields(r, corev1.ResourceRequirements{Limits: r.Limits, Requests: r.Requests}),
		validateQuantities(r.Requests).ViaField("requests"), validateQuantities(r.Limits).ViaField("limits"))
	for name, request := range r.Requests {
		limit, limited := r.Limits[name]
		switch exact := isHugePages(name) || isExtended(name); {
		case exact && (!limited || request.Cmp(limit) != 0):
			errs = errs.Also(apis.ErrInvalidValue(request.String(), string(name), "must have a limit, and be equal to it").ViaField("requests"))
		case limited && request.Cmp(limit) > 0:
			errs = errs.Also(apis.ErrInvalidValue(request.String(), string(name),
				fmt.Sprintf("must not be more than the limit, %s", limit.String())).ViaField("requests"))
		}
	}
	return errs.Also(requireMemory(r)).ViaField("resources")
}

// requireMemory refuses huge pages of a container that asks for neither CPU nor memory.
func requireMemory(r corev1.ResourceRequirements) *apis.FieldError {
	has := func(is func(corev1.ResourceName) bool) bool {
		names := slices.AppendSeq(slices.Collect(maps.Keys(r.Limits)), maps.Keys(r.Requests))
		return slices.ContainsFunc(names, is)
	}
	if !has(isHugePages) || has(func(name corev1.ResourceName) bool {
		return name == corev1.ResourceCPU || name == corev1.ResourceMemory
	}) {
		return nil
	}
	return withDetails(apis.ErrMissingOneOf("requests.cpu", "requests.memory"), "huge pages need one of them")
}

func validateQuantities(list corev1.ResourceList) (errs *apis.FieldError) {
	for name, quantity := range list {
		errs = errs.Also(invalidKey(string(name), apis.CurrentField, resourceNameProblems(name)))
		var problems []string
		if quantity.Sign() < 0 {
			problems = append(problems, "must not be negative")
		}
		if isExtended(name) && quantity.MilliValue()%1000 != 0 {
			problems = append(problems, "must be a whole number")
		}
		if isHugePages(name) && !wholePages(name, quantity) {
			problems = append(problems, "must be a multiple of the size of a page")
		}
		errs = errs.Also(invalid(quantity.String(), string(name), problems))
	}
	return errs
}

func wholePages(name corev1.ResourceName, quantity resource.Quantity) bool {
	size, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	return err == nil && size.Value() > 0 && size.MilliValue()%1000 == 0 && quantity.Value()%size.Value() == 0
}
