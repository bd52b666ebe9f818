package v1

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/google/go-containerregistry/pkg/name"
	"golang.org/x/net/http/httpguts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

type containerRole int

const (
	servingContainer containerRole = iota
	sidecar
	initContainer
)

// containerCheck is what the rules of one container depend on.
type containerCheck struct {
	c       *corev1.Container
	role    containerRole
	f       rules.Features
	pod     *RevisionSpec
	volumes map[string]*corev1.Volume
	// mounted collects the volumes that some container mounts.
	mounted sets.Set[string]
}

var (
	reservedPorts    = sets.New(names.SidecarPorts...)
	reservedEnv      = sets.New("K_SERVICE", "K_CONFIGURATION", "K_REVISION")
	servedPortNames  = sets.New("", "http1", "h2c")
	messagePolicies  = sets.New(corev1.TerminationMessagePolicy(""), corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	imagePolicies    = sets.New(corev1.PullPolicy(""), corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	handlersOfProbes = []string{"httpGet", "tcpSocket", "exec", "grpc"}
)

func (v *containerCheck) validate() *apis.FieldError {
	c := v.c
	errs := v.validateFields()
	errs = errs.Also(v.validateEnv(), v.validatePorts(), v.validateProbes(), v.validateSecurityContext(), v.validateVolumeMounts())
	switch _, err := name.ParseReference(c.Image, name.WeakValidation); {
	case c.Image == "":
		errs = errs.Also(apis.ErrMissingField("image"))
	case err != nil:
		errs = errs.Also(&apis.FieldError{
			Message: "Failed to parse image reference", Paths: []string{"image"},
			Details: fmt.Sprintf("image: %q, error: %v", c.Image, err),
		})
	}
	if !messagePolicies.Has(c.TerminationMessagePolicy) {
		errs = errs.Also(apis.ErrInvalidValue(c.TerminationMessagePolicy, "terminationMessagePolicy",
			"must be File or FallbackToLogsOnError"))
	}
	if !imagePolicies.Has(c.ImagePullPolicy) {
		errs = errs.Also(apis.ErrInvalidValue(c.ImagePullPolicy, "imagePullPolicy", "must be Always, IfNotPresent or Never"))
	}
	return errs.Also(v.validateResources())
}

// validateFields refuses the fields that are not for users to set.
func (v *containerCheck) validateFields() *apis.FieldError {
	c := v.c
	mask := corev1.Container{
		Name: c.Name, Image: c.Image, Args: c.Args, Command: c.Command, WorkingDir: c.WorkingDir, Env: c.Env, EnvFrom: c.EnvFrom,
		Ports: c.Ports, Resources: c.Resources, SecurityContext: c.SecurityContext, ImagePullPolicy: c.ImagePullPolicy,
		TerminationMessagePath: c.TerminationMessagePath, TerminationMessagePolicy: c.TerminationMessagePolicy,
		VolumeMounts: c.VolumeMounts,
	}
	if v.role != initContainer {
		mask.ReadinessProbe, mask.LivenessProbe, mask.StartupProbe = c.ReadinessProbe, c.LivenessProbe, c.StartupProbe
	}
	return apis.CheckDisallowedFields(*c, mask)
}

func (v *containerCheck) validateEnv() (errs *apis.FieldError) {
	for i := range v.c.Env {
		errs = errs.Also(v.validateVariable(&v.c.Env[i]).ViaFieldIndex("env", i))
	}
	for i := range v.c.EnvFrom {
		source := &v.c.EnvFrom[i]
		if source.Prefix != "" {
			errs = errs.Also(invalid(source.Prefix, "prefix", validation.IsRelaxedEnvVarName(source.Prefix)).ViaFieldIndex("envFrom", i))
		}
		if ref := source.SecretRef; ref != nil {
			errs = errs.Also(validateReference(ref.Name, true).ViaField("secretRef").ViaFieldIndex("envFrom", i))
		}
		if ref := source.ConfigMapRef; ref != nil {
			errs = errs.Also(validateReference(ref.Name, true).ViaField("configMapRef").ViaFieldIndex("envFrom", i))
		}
		if (source.ConfigMapRef == nil) == (source.SecretRef == nil) {
			errs = errs.Also(exactlyOne(source.SecretRef != nil, "configMapRef", "secretRef").ViaFieldIndex("envFrom", i))
		}
	}
	return errs
}

func (v *containerCheck) validateVariable(variable *corev1.EnvVar) (errs *apis.FieldError) {
	switch {
	case variable.Name == "":
		errs = errs.Also(apis.ErrMissingField("name"))
	case reservedEnv.Has(variable.Name), variable.Name == "PORT" && v.role == servingContainer:
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("%q is a reserved environment variable", variable.Name), Paths: []string{"name"},
		})
	default:
		errs = errs.Also(invalid(variable.Name, "name", validation.IsRelaxedEnvVarName(variable.Name)))
	}
	source := variable.ValueFrom
	if source == nil {
		return errs
	}
	count := 0
	for _, set := range []bool{source.FieldRef != nil, source.ResourceFieldRef != nil, source.ConfigMapKeyRef != nil, source.SecretKeyRef != nil} {
		if set {
			count++
		}
	}
	if count != 1 {
		errs = errs.Also(exactlyOne(count > 1, "configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef").ViaField("valueFrom"))
	}
	if ref := source.SecretKeyRef; ref != nil {
		errs = errs.Also(validateKey(ref.Name, ref.Key).ViaField("secretKeyRef").ViaField("valueFrom"))
	}
	if ref := source.ConfigMapKeyRef; ref != nil {
		errs = errs.Also(validateKey(ref.Name, ref.Key).ViaField("configMapKeyRef").ViaField("valueFrom"))
	}
	if source.FieldRef != nil && source.FieldRef.FieldPath == "" {
		errs = errs.Also(apis.ErrMissingField("valueFrom.fieldRef.fieldPath"))
	}
	if source.ResourceFieldRef != nil && source.ResourceFieldRef.Resource == "" {
		errs = errs.Also(apis.ErrMissingField("valueFrom.resourceFieldRef.resource"))
	}
	if source.FieldRef != nil && !v.f.Allowed(rules.KeyPodSpecFieldRef) {
		errs = errs.Also(needsFlag(rules.KeyPodSpecFieldRef, "fieldRef").ViaField("valueFrom"))
	}
	if source.ResourceFieldRef != nil && !v.f.Allowed(rules.KeyPodSpecFieldRef) {
		errs = errs.Also(needsFlag(rules.KeyPodSpecFieldRef, "resourceFieldRef").ViaField("valueFrom"))
	}
	return errs
}

func (v *containerCheck) validatePorts() (errs *apis.FieldError) {
	used := sets.New[string]()
	for i := range v.c.Ports {
		errs = errs.Also(v.validatePort(&v.c.Ports[i], used).ViaFieldIndex("ports", i))
	}
	return errs
}

func (v *containerCheck) validatePort(p *corev1.ContainerPort, used sets.Set[string]) (errs *apis.FieldError) {
	errs = errs.Also(apis.CheckDisallowedFields(*p, corev1.ContainerPort{Name: p.Name, ContainerPort: p.ContainerPort, Protocol: p.Protocol}))
	if p.ContainerPort < 0 || p.ContainerPort > math.MaxUint16 {
		errs = errs.Also(apis.ErrOutOfBoundsValue(p.ContainerPort, 0, math.MaxUint16, "containerPort"))
	}
	if v.role == initContainer {
		return errs.Also(validateInitPort(p, used))
	}
	if reservedPorts.Has(p.ContainerPort) {
		errs = errs.Also(apis.ErrInvalidValue(p.ContainerPort, "containerPort", "the port is in use by queue-proxy"))
	}
	if p.Protocol != "" && p.Protocol != corev1.ProtocolTCP {
		errs = errs.Also(apis.ErrInvalidValue(p.Protocol, "protocol", "must be TCP"))
	}
	if !servedPortNames.Has(p.Name) {
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("Port name %v is not allowed", p.Name), Paths: []string{"name"},
			Details: "Name must be empty, or one of: 'h2c', 'http1'",
		})
	}
	return errs
}

func (v *containerCheck) validateProbes() (errs *apis.FieldError) {
	if v.role == initContainer {
		// The mask has refused them.
		return nil
	}
	for _, probe := range []struct {
		field string
		probe *corev1.Probe
	}{{"readinessProbe", v.c.ReadinessProbe}, {"livenessProbe", v.c.LivenessProbe}, {"startupProbe", v.c.StartupProbe}} {
		if probe.probe == nil {
			continue
		}
		if v.role == sidecar && !v.f.Enabled(rules.KeyMultiContainerProbing) {
			errs = errs.Also(needsFlag(rules.KeyMultiContainerProbing, probe.field))
			continue
		}
		errs = errs.Also(v.validateProbe(probe.probe, probe.field == "readinessProbe").ViaField(probe.field))
	}
	return errs
}

func (v *containerCheck) validateProbe(p *corev1.Probe, readiness bool) (errs *apis.FieldError) {
	errs = errs.Also(apis.CheckDisallowedFields(*p, corev1.Probe{
		ProbeHandler: p.ProbeHandler, InitialDelaySeconds: p.InitialDelaySeconds, TimeoutSeconds: p.TimeoutSeconds,
		PeriodSeconds: p.PeriodSeconds, SuccessThreshold: p.SuccessThreshold, FailureThreshold: p.FailureThreshold,
	}))
	errs = errs.Also(v.validateProbeHandler(p.ProbeHandler, readiness))
	for _, number := range []struct {
		field string
		value int32
	}{
		{"initialDelaySeconds", p.InitialDelaySeconds}, {"timeoutSeconds", p.TimeoutSeconds}, {"periodSeconds", p.PeriodSeconds},
		{"successThreshold", p.SuccessThreshold}, {"failureThreshold", p.FailureThreshold},
	} {
		if number.value < 0 {
			errs = errs.Also(apis.ErrOutOfBoundsValue(number.value, 0, math.MaxInt32, number.field))
		}
	}
	if !readiness && p.SuccessThreshold > 1 {
		errs = errs.Also(apis.ErrInvalidValue(p.SuccessThreshold, "successThreshold", "must be 1, but for a readinessProbe"))
	}
	if readiness && p.PeriodSeconds == 0 {
		if p.FailureThreshold != 0 {
			errs = errs.Also(withDetails(apis.ErrDisallowedFields("failureThreshold"), "failureThreshold is disallowed when periodSeconds is zero"))
		}
		if p.TimeoutSeconds != 0 {
			errs = errs.Also(withDetails(apis.ErrDisallowedFields("timeoutSeconds"), "timeoutSeconds is disallowed when periodSeconds is zero"))
		}
	}
	return errs
}

func (v *containerCheck) validateProbeHandler(p corev1.ProbeHandler, readiness bool) (errs *apis.FieldError) {
	var given []string
	var port intstr.IntOrString
	if h := p.HTTPGet; h != nil {
		given = append(given, "httpGet")
		port = h.Port
	}
	if h := p.TCPSocket; h != nil {
		given = append(given, "tcpSocket")
		port = h.Port
	}
	if p.Exec != nil {
		given = append(given, "exec")
		if len(p.Exec.Command) == 0 {
			errs = errs.Also(apis.ErrMissingField("exec.command"))
		}
	}
	if p.GRPC != nil {
		given = append(given, "grpc")
		port = intstr.FromInt32(p.GRPC.Port)
	}
	switch len(given) {
	case 0:
		errs = errs.Also(apis.ErrMissingOneOf(handlersOfProbes...))
	case 1:
		if given[0] != "exec" {
			errs = errs.Also(v.validateProbePort(port).ViaField(given[0]))
		}
	default:
		errs = errs.Also(apis.ErrMultipleOneOf(given...))
	}
	if p.HTTPGet != nil {
		errs = errs.Also(validateHTTPProbe(*p.HTTPGet), validateProbeHeaders(p.HTTPGet.HTTPHeaders, readiness))
	}
	return errs
}

// validateHTTPProbe refuses what queue-proxy could not run. It asks the parser that queue-proxy
// uses.
func validateHTTPProbe(h corev1.HTTPGetAction) *apis.FieldError {
	h.Port = intstr.FromInt32(0) // validateProbePort checks the port; the controller resolves its name
	text, err := json.Marshal(corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &h}})
	if err == nil {
		_, err = wire.ReadProbes(string(text), int(names.DefaultUserPort))
	}
	if err != nil {
		return apis.ErrInvalidValue(h.Scheme, "httpGet.scheme", err.Error())
	}
	return nil
}

// validateProbeHeaders takes in a readinessProbe, which queue-proxy runs, any name of a header, and
// in others those that Kubernetes takes.
func validateProbeHeaders(headers []corev1.HTTPHeader, readiness bool) (errs *apis.FieldError) {
	for i, header := range headers {
		problems := validation.IsHTTPHeaderName(header.Name)
		if readiness && httpguts.ValidHeaderFieldName(header.Name) {
			problems = nil
		}
		errs = errs.Also(invalid(header.Name, "name", problems).ViaFieldIndex("httpHeaders", i).ViaField("httpGet"))
	}
	return errs
}

func withDetails(err *apis.FieldError, details string) *apis.FieldError {
	err.Details = details
	return err
}

// validateProbePort checks the port of a probe. The serving container has one port, which need not
// be repeated; a sidecar has none of its own in the spec, so its probes must say.
func (v *containerCheck) validateProbePort(port intstr.IntOrString) *apis.FieldError {
	if port.Type == intstr.Int {
		switch n := port.IntVal; {
		case n == 0 && v.role == sidecar:
			return apis.ErrMissingField("port")
		case n < 0 || n > math.MaxUint16:
			return apis.ErrOutOfBoundsValue(n, 0, math.MaxUint16, "port")
		}
		return nil
	}
	if v.role == servingContainer {
		if len(v.c.Ports) > 0 && port.StrVal == v.c.Ports[0].Name {
			return nil
		}
		if port.StrVal == "" {
			return nil
		}
		return apis.ErrInvalidValue(port.StrVal, "port", "must be the name of the container's port, or a number")
	}
	if port.StrVal == "" {
		return apis.ErrMissingField("port")
	}
	return apis.ErrInvalidValue(port.StrVal, "port", "must be a number: a container beside the serving one has no ports, so none has a name")
}
