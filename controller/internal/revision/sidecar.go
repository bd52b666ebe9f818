package revision

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/wire"
)

// makeSidecar is the container queue-proxy of a revision whose containers are as the user wrote
// them.
func makeSidecar(rev *servingv1.Revision, containers []corev1.Container, serving int, in Inputs) (*corev1.Container, error) {
	s := in.Settings
	user := containers[serving]
	probes, startup, err := probesJSON(containers, serving, rev.Spec.Port(), s.Features.Enabled(rules.KeyMultiContainerProbing))
	if err != nil {
		return nil, fmt.Errorf("probes of revision %s/%s: %w", rev.Namespace, rev.Name, err)
	}
	// The trailing dots spare the resolver its search list: one look-up each.
	activators := fmt.Sprintf("activator-announce.%s.svc.%s.:%d", in.SystemNamespace, in.ClusterDomain, wire.PortAnnounce)
	if onlyKubeletKnows(containers) {
		activators = "" // a command decides whether the pod is ready, so queue-proxy cannot say that it is
	}
	dataPort := int32(wire.PortHTTP1)
	if rev.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C {
		dataPort = wire.PortH2C
	}
	ports := []corev1.ContainerPort{
		{Name: "http-autometric", ContainerPort: wire.PortMetrics, Protocol: corev1.ProtocolTCP},
		{Name: "http-usermetric", ContainerPort: wire.PortUserMetrics, Protocol: corev1.ProtocolTCP},
	}
	if s.Observability.RuntimeProfiling {
		ports = append(ports, corev1.ContainerPort{Name: "profiling-port", ContainerPort: wire.PortProfiling, Protocol: corev1.ProtocolTCP})
	}
	ports = append(ports,
		corev1.ContainerPort{Name: "queue-port", ContainerPort: dataPort, Protocol: corev1.ProtocolTCP},
		corev1.ContainerPort{Name: "https-port", ContainerPort: wire.PortTLS, Protocol: corev1.ProtocolTCP})

	environment, err := sidecarEnv(rev, dataPort, in)
	if err != nil {
		return nil, err
	}
	environment = append(environment,
		corev1.EnvVar{Name: "SERVING_READINESS_PROBE", Value: probes},
		corev1.EnvVar{Name: "EBB_STARTUP_PROBE", Value: startup},
		corev1.EnvVar{Name: "EBB_ACTIVATORS", Value: activators})
	// An empty value means what an absent one does, and every revision's template lies in etcd and
	// in caches.
	environment = slices.DeleteFunc(environment, func(e corev1.EnvVar) bool { return e.Value == "" && e.ValueFrom == nil })
	yes, no := true, false
	c := &corev1.Container{
		Name:           sidecarName,
		Image:          s.Deployment.QueueSidecarImage,
		Resources:      sidecarResources(rev.Annotations, user, s),
		Ports:          ports,
		ReadinessProbe: sidecarReadiness(user.ReadinessProbe, dataPort),
		Env:            environment,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no,
			ReadOnlyRootFilesystem:   &yes,
			RunAsNonRoot:             &yes,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if mountsPodInfo(rev, s) {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: podInfoVolume, MountPath: podInfoPath, ReadOnly: true})
	}
	if len(s.Deployment.QueueSidecarTokenAudiences) > 0 {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: tokenVolume, MountPath: tokensPath, ReadOnly: true})
	}
	if in.TLS {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: certsVolume, MountPath: certsPath, ReadOnly: true})
	}
	return c, nil
}

func sidecarEnv(rev *servingv1.Revision, dataPort int32, in Inputs) ([]corev1.EnvVar, error) {
	s := in.Settings
	observability, err := json.Marshal(observabilityOf(s.Observability))
	if err != nil {
		return nil, fmt.Errorf("encode observability settings for queue-proxy: %w", err)
	}
	plain := func(name, value string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: value} }
	flag := func(name string, on bool) corev1.EnvVar { return plain(name, fmt.Sprint(on)) }
	seconds := func(v *int64) string {
		if v == nil {
			return "0"
		}
		return fmt.Sprint(*v)
	}
	level := s.Logging.LevelOf("queueproxy")
	action := names.ResponseTimeoutEnd
	if cut, _ := names.CutsResponses(rev.Annotations, s.Defaults.ResponseTimeoutAction); cut { // admission refused errors
		action = names.ResponseTimeoutCut
	}
	tls := s.Deployment.QueueSidecarTLS
	return []corev1.EnvVar{
		plain("SERVING_NAMESPACE", rev.Namespace),
		plain("SERVING_SERVICE", rev.Labels[names.ServiceLabel]),
		plain("SERVING_CONFIGURATION", rev.Labels[names.ConfigurationLabel]),
		plain("SERVING_REVISION", rev.Name),
		fieldEnv("SERVING_POD", "metadata.name"),
		fieldEnv("SERVING_POD_IP", "status.podIP"),
		fieldEnv("HOST_IP", "status.hostIP"),
		plain("QUEUE_SERVING_PORT", fmt.Sprint(dataPort)),
		plain("QUEUE_SERVING_TLS_PORT", fmt.Sprint(wire.PortTLS)),
		plain("USER_PORT", fmt.Sprint(rev.Spec.Port())),
		plain("CONTAINER_CONCURRENCY", seconds(rev.Spec.ContainerConcurrency)),
		plain("REVISION_TIMEOUT_SECONDS", seconds(rev.Spec.TimeoutSeconds)),
		plain("REVISION_RESPONSE_START_TIMEOUT_SECONDS", seconds(rev.Spec.ResponseStartTimeoutSeconds)),
		plain("REVISION_IDLE_TIMEOUT_SECONDS", seconds(rev.Spec.IdleTimeoutSeconds)),
		plain("RESPONSE_TIMEOUT_ACTION", action),
		flag("ENABLE_HTTP2_AUTO_DETECTION", s.Features.Enabled(rules.KeyAutodetectHTTP2)),
		flag("ENABLE_HTTP_FULL_DUPLEX", strings.EqualFold(rev.Annotations[names.FeatureHTTPFullDuplexAnnotation], "enabled")),
		flag("ENABLE_MULTI_CONTAINER_PROBES", s.Features.Enabled(rules.KeyMultiContainerProbing)),
		plain("SERVING_LOGGING_CONFIG", s.Logging.Raw),
		plain("SERVING_LOGGING_LEVEL", strings.ToLower(level.String())),
		plain("OBSERVABILITY_CONFIG", string(observability)),
		plain("SYSTEM_NAMESPACE", in.SystemNamespace),
		plain("ROOT_CA", s.Deployment.QueueSidecarRootCA),
		plain("QUEUE_PROXY_TLS_MIN_VERSION", tls.MinVersion),
		plain("QUEUE_PROXY_TLS_MAX_VERSION", tls.MaxVersion),
		plain("QUEUE_PROXY_TLS_CIPHER_SUITES", tls.CipherSuites),
		plain("QUEUE_PROXY_TLS_CURVE_PREFERENCES", tls.CurvePreferences),
		plain("EBB_DRAIN_TOKEN", wire.DrainToken(string(rev.UID))),
		plain("EBB_AUTOSCALER", fmt.Sprintf("autoscaler.%s.svc.%s.:%d", in.SystemNamespace, in.ClusterDomain, wire.PortStats)),
	}, nil
}

// sidecarReadiness is what the kubelet asks: queue-proxy, with the timing of the user's probe. A
// period of 0, the default, means that queue-proxy looks at the user container every few
// milliseconds by itself; the kubelet then asks every second.
func sidecarReadiness(user *corev1.Probe, dataPort int32) *corev1.Probe {
	p := &corev1.Probe{}
	if user != nil {
		p.InitialDelaySeconds = user.InitialDelaySeconds
		p.TimeoutSeconds = user.TimeoutSeconds
		p.PeriodSeconds = user.PeriodSeconds
		p.SuccessThreshold = user.SuccessThreshold
		p.FailureThreshold = user.FailureThreshold
	}
	if p.PeriodSeconds == 0 {
		p.TimeoutSeconds = 10
	}
	p.ProbeHandler = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Port:        intstr.FromInt32(dataPort),
		HTTPHeaders: []corev1.HTTPHeader{{Name: wire.HeaderNetworkProbe, Value: wire.ProbeQueue}},
	}}
	wholePeriod(p)
	atLeastEvery(readinessPeriod, p)
	return p
}

// wholePeriod replaces the period that only queue-proxy understands.
func wholePeriod(p *corev1.Probe) {
	if p.PeriodSeconds == 0 {
		p.PeriodSeconds = 1
	}
}

// probesJSON are the values of SERVING_READINESS_PROBE and EBB_STARTUP_PROBE: the serving
// container's probe, or with multi-container probing an array of the probes of all containers that
// have one, the serving container's first. A startup probe must have passed before readiness
// counts; one that only the kubelet can run is left out (see onlyKubeletKnows).
func probesJSON(containers []corev1.Container, serving int, port int32, all bool) (readiness, startup string, err error) {
	first := userProbe(containers[serving].ReadinessProbe, port)
	var value any = first
	if all {
		probes := []*corev1.Probe{first}
		for i, c := range containers {
			if i != serving && c.ReadinessProbe != nil {
				probes = append(probes, userProbe(c.ReadinessProbe, port))
			}
		}
		value = probes
	}
	text, err := json.Marshal(value)
	if err != nil {
		return "", "", err
	}
	var starts []*corev1.Probe
	for _, c := range containers {
		if c.StartupProbe != nil && c.StartupProbe.Exec == nil {
			starts = append(starts, userProbe(c.StartupProbe, port))
		}
	}
	if len(starts) == 0 {
		return string(text), "", nil
	}
	startText, err := json.Marshal(starts)
	return string(text), string(startText), err
}

// onlyKubeletKnows reports whether some container's readiness or start is decided by a command.
func onlyKubeletKnows(containers []corev1.Container) bool {
	return slices.ContainsFunc(containers, func(c corev1.Container) bool {
		return c.ReadinessProbe != nil && c.ReadinessProbe.Exec != nil || c.StartupProbe != nil && c.StartupProbe.Exec != nil
	})
}

// userProbe is a readiness probe as queue-proxy can run it. A command inside another container it
// cannot: it looks whether the port accepts, and the kubelet runs the command.
func userProbe(given *corev1.Probe, port int32) *corev1.Probe {
	p := given.DeepCopy()
	if p == nil {
		p = &corev1.Probe{SuccessThreshold: 1}
	}
	target := intstr.FromInt32(port)
	switch {
	case p.HTTPGet != nil:
		if p.HTTPGet.Port.IntValue() <= 0 {
			p.HTTPGet.Port = target
		}
		p.HTTPGet.Scheme = corev1.URIScheme(cmp.Or(strings.ToUpper(string(p.HTTPGet.Scheme)), string(corev1.URISchemeHTTP)))
	case p.TCPSocket != nil:
		if p.TCPSocket.Port.IntValue() <= 0 {
			p.TCPSocket.Port = target
		}
	case p.GRPC != nil:
		if p.GRPC.Port == 0 {
			p.GRPC.Port = port
		}
	default:
		p.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: target}}
	}
	return p
}
