package v1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

// needsFlag refuses fields until a flag is set, and says which and how.
func needsFlag(key rules.FlagKey, fields ...string) *apis.FieldError {
	err := apis.ErrDisallowedFields(fields...)
	err.Details = howToSet(key)
	return err
}

func howToSet(key rules.FlagKey) string {
	return fmt.Sprintf("set %s to \"enabled\" in ConfigMap config-features of namespace knative-serving to allow it, for example: "+
		"kubectl patch configmap config-features -n knative-serving --type merge -p '{\"data\":{\"%s\":\"enabled\"}}'", key, key)
}

func securedByDefault(f rules.Features) bool {
	return f[rules.KeySecurePodDefaults] == rules.Enabled || f[rules.KeySecurePodDefaults] == rules.AllowRootBounded
}

func (rs *RevisionSpec) validate(config *rules.Config) *apis.FieldError {
	d := &config.Defaults
	errs := rs.validatePod(config.Features)
	if t := rs.TimeoutSeconds; t != nil && *t != 0 && (*t < 0 || *t > d.MaxTimeoutSeconds) {
		err := apis.ErrOutOfBoundsValue(*t, 0, d.MaxTimeoutSeconds, "timeoutSeconds")
		if *t > d.MaxTimeoutSeconds { // as the hour that Cloud Run allows
			err.Details = "set max-revision-timeout-seconds in ConfigMap config-defaults of namespace knative-serving to allow more"
		}
		errs = errs.Also(err)
	}
	for _, timeout := range []struct {
		field string
		value *int64
	}{{"responseStartTimeoutSeconds", rs.ResponseStartTimeoutSeconds}, {"idleTimeoutSeconds", rs.IdleTimeoutSeconds}} {
		if timeout.value != nil && *timeout.value < 0 {
			errs = errs.Also(apis.ErrOutOfBoundsValue(*timeout.value, 0, d.MaxTimeoutSeconds, timeout.field))
		}
	}
	if cc := rs.ContainerConcurrency; cc != nil {
		least := int64(0)
		if !d.AllowConcurrencyZero {
			least = 1
		}
		if *cc < least || *cc > d.ContainerConcurrencyMax {
			errs = errs.Also(apis.ErrOutOfBoundsValue(*cc, least, d.ContainerConcurrencyMax, "containerConcurrency"))
		}
	}
	return errs
}

func (rs *RevisionSpec) validatePod(f rules.Features) *apis.FieldError {
	errs := rs.validatePodFields(f)
	volumes, volumeErrs := validateVolumes(rs.Volumes, f)
	errs = errs.Also(volumeErrs)
	mounted := sets.New[string]()

	if len(rs.Containers) == 0 {
		errs = errs.Also(apis.ErrMissingField("containers"))
	}
	if len(rs.Containers) > 1 && !f.Enabled(rules.KeyMultiContainer) {
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("multi-container is off, but found %d containers", len(rs.Containers)),
			Paths:   []string{"containers"},
			Details: howToSet(rules.KeyMultiContainer),
		})
	}
	errs = errs.Also(rs.validatePortCount())

	used := sets.New[string]()
	serving := rs.ServingContainer()
	for i := range rs.Containers {
		c := &rs.Containers[i]
		v := containerCheck{c: c, f: f, pod: rs, volumes: volumes, mounted: mounted, role: sidecar}
		if c == serving {
			v.role = servingContainer
		}
		errs = errs.Also(v.validate().Also(validateContainerName(c.Name, used)).ViaFieldIndex("containers", i))
	}
	if len(rs.InitContainers) > 0 && !f.Enabled(rules.KeyPodSpecInitContainers) {
		errs = errs.Also(needsFlag(rules.KeyPodSpecInitContainers, "initContainers"))
	}
	for i := range rs.InitContainers {
		c := &rs.InitContainers[i]
		v := containerCheck{c: c, f: f, pod: rs, volumes: volumes, mounted: mounted, role: initContainer}
		errs = errs.Also(v.validate().Also(validateContainerName(c.Name, used)).ViaFieldIndex("initContainers", i))
	}
	for i := range rs.Volumes {
		if name := rs.Volumes[i].Name; name != "" && !mounted.Has(name) {
			errs = errs.Also((&apis.FieldError{
				Message: fmt.Sprintf("volume with name %q not mounted", name),
				Paths:   []string{"name"},
			}).ViaFieldIndex("volumes", i))
		}
	}
	return errs
}

// validatePortCount requires at most one port in the pod, and exactly one when there are several
// containers, because it says which of them gets the requests.
func (rs *RevisionSpec) validatePortCount() *apis.FieldError {
	count := 0
	var paths []string
	for i := range rs.Containers {
		if n := len(rs.Containers[i].Ports); n > 0 {
			count += n
			paths = append(paths, fmt.Sprintf("containers[%d].ports", i))
		}
	}
	switch {
	case count > 1:
		return &apis.FieldError{
			Message: "more than one container port is set",
			Paths:   paths,
			Details: "Only a single port is allowed across all containers",
		}
	case count == 0 && len(rs.Containers) > 1:
		err := apis.ErrMissingField("containers[*].ports")
		err.Details = "with several containers one of them must name the port that gets the requests"
		return err
	}
	return nil
}

func validateContainerName(name string, used sets.Set[string]) *apis.FieldError {
	switch {
	case name == "":
		return nil
	case name == "queue-proxy":
		return &apis.FieldError{Message: fmt.Sprintf("%q is a reserved container name", name), Paths: []string{"name"}}
	case used.Has(name):
		return &apis.FieldError{Message: fmt.Sprintf("duplicate container name %q", name), Paths: []string{"name"}}
	}
	used.Insert(name)
	return invalid(name, "name", validation.IsDNS1123Label(name))
}

func (rs *RevisionSpec) validatePodFields(f rules.Features) (errs *apis.FieldError) {
	for _, flagged := range []struct {
		set   bool
		key   rules.FlagKey
		field string
	}{
		{rs.Affinity != nil && *rs.Affinity != (corev1.Affinity{}), rules.KeyPodSpecAffinity, "affinity"},
		{len(rs.TopologySpreadConstraints) > 0, rules.KeyPodSpecTopologySpreadConstraints, "topologySpreadConstraints"},
		{len(rs.HostAliases) > 0, rules.KeyPodSpecHostAliases, "hostAliases"},
		{len(rs.NodeSelector) > 0, rules.KeyPodSpecNodeSelector, "nodeSelector"},
		{len(rs.Tolerations) > 0, rules.KeyPodSpecTolerations, "tolerations"},
		{rs.RuntimeClassName != nil, rules.KeyPodSpecRuntimeClassName, "runtimeClassName"},
		{rs.DNSPolicy != "", rules.KeyPodSpecDNSPolicy, "dnsPolicy"},
		{rs.DNSConfig != nil, rules.KeyPodSpecDNSConfig, "dnsConfig"},
		{rs.ShareProcessNamespace != nil, rules.KeyPodSpecShareProcessNamespace, "shareProcessNamespace"},
		{rs.HostIPC, rules.KeyPodSpecHostIPC, "hostIPC"},
		{rs.HostPID, rules.KeyPodSpecHostPID, "hostPID"},
		{rs.HostNetwork, rules.KeyPodSpecHostNetwork, "hostNetwork"},
		{rs.PriorityClassName != "", rules.KeyPodSpecPriorityClassName, "priorityClassName"},
		{rs.SchedulerName != "", rules.KeyPodSpecSchedulerName, "schedulerName"},
	} {
		if flagged.set && !f.Allowed(flagged.key) {
			errs = errs.Also(needsFlag(flagged.key, flagged.field))
		}
	}
	errs = errs.Also(rs.validatePodSecurityContext(f))
	// Whatever is not in this copy is not for users to set.
	mask := &corev1.PodSpec{
		Affinity: rs.Affinity, TopologySpreadConstraints: rs.TopologySpreadConstraints, HostAliases: rs.HostAliases,
		NodeSelector: rs.NodeSelector, Tolerations: rs.Tolerations, RuntimeClassName: rs.RuntimeClassName,
		DNSPolicy: rs.DNSPolicy, DNSConfig: rs.DNSConfig, ShareProcessNamespace: rs.ShareProcessNamespace,
		HostIPC: rs.HostIPC, HostPID: rs.HostPID, HostNetwork: rs.HostNetwork, PriorityClassName: rs.PriorityClassName,
		SchedulerName: rs.SchedulerName, SecurityContext: rs.SecurityContext,

		Containers: rs.Containers, InitContainers: rs.InitContainers, Volumes: rs.Volumes,
		ServiceAccountName: rs.ServiceAccountName, ImagePullSecrets: rs.ImagePullSecrets,
		EnableServiceLinks: rs.EnableServiceLinks, AutomountServiceAccountToken: rs.AutomountServiceAccountToken,
	}
	errs = errs.Also(apis.CheckDisallowedFields(rs.PodSpec, *mask))

	if name := rs.ServiceAccountName; name != "" {
		errs = errs.Also(invalid(name, "serviceAccountName", validation.IsDNS1123Subdomain(name)))
	}
	if name := rs.PriorityClassName; name != "" {
		errs = errs.Also(invalid(name, "priorityClassName", validation.IsDNS1123Subdomain(name)))
	}
	if name := rs.RuntimeClassName; name != nil {
		errs = errs.Also(invalid(*name, "runtimeClassName", validation.IsDNS1123Subdomain(*name)))
	}
	errs = errs.Also(validateLabels(rs.NodeSelector, "nodeSelector"), rs.validateDNS())
	for i, secret := range rs.ImagePullSecrets {
		if secret.Name == "" {
			errs = errs.Also(apis.ErrMissingField("name").ViaFieldIndex("imagePullSecrets", i))
		}
	}
	return errs
}
