package revision

import (
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
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// makeSidecar is the container queue-proxy of a revision, without its environment. The user
// container is as its author wrote it.
func makeSidecar(rev *servingv1.Revision, m names.Spec, user corev1.Container, in Inputs) *corev1.Container {
	s := in.Settings
	dataPort := dataPort(rev)
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
	yes, no := true, false
	c := &corev1.Container{
		Name:           sidecarName,
		Image:          s.Deployment.QueueSidecarImage,
		Resources:      sidecarResources(m.Sidecar, user, s),
		Ports:          ports,
		ReadinessProbe: sidecarReadiness(user.ReadinessProbe, dataPort),
		Env:            []corev1.EnvVar{fieldEnv(wire.EnvPod, "metadata.name"), fieldEnv(wire.EnvPodIP, "status.podIP")},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no,
			ReadOnlyRootFilesystem:   &yes,
			RunAsNonRoot:             &yes,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	if m.PodInfo {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: podInfoVolume, MountPath: podInfoPath, ReadOnly: true})
	}
	if len(s.Deployment.QueueSidecarTokenAudiences) > 0 {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: tokenVolume, MountPath: tokensPath, ReadOnly: true})
	}
	if in.TLS {
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: certsVolume, MountPath: certsPath, ReadOnly: true})
	}
	return c
}

// dataPort is where queue-proxy takes requests.
func dataPort(rev *servingv1.Revision) int32 {
	if rev.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C {
		return wire.PortH2C
	}
	return wire.PortHTTP1
}

// sidecarOf is what queue-proxy is told of a revision whose containers are as their author wrote
// them.
func sidecarOf(rev *servingv1.Revision, m names.Spec, containers []corev1.Container, serving int, in Inputs) (*wire.Sidecar, error) {
	s, port := in.Settings, rev.Spec.Port()
	readiness, startup := probesToRun(containers, serving, s.Features.Enabled(rules.KeyMultiContainerProbing))
	t := wire.NewSidecar()
	t.Namespace, t.Service, t.Configuration = rev.Namespace, rev.Labels[names.ServiceLabel], rev.Labels[names.ConfigurationLabel]
	t.Revision = rev.Name
	t.Port, t.UserPort = int(dataPort(rev)), int(port)
	t.Limits, t.Records, t.Told, t.WarmUp = m.Limits, m.Records, m.Scaling.WireTold(port), m.WarmUp
	if m.Scaling.Class == names.ClassKPA { // nobody else keeps busy pods
		t.BusyFor = m.Scaling.BusyFor
	}
	t.DetectHTTP2 = s.Features.Enabled(rules.KeyAutodetectHTTP2)
	// The trailing dots spare the resolver its search list: one look-up each.
	t.Autoscaler = fmt.Sprintf("autoscaler.%s.svc.%s.:%d", in.SystemNamespace, in.ClusterDomain, wire.PortStats)
	if !onlyKubeletKnows(containers) { // or queue-proxy cannot say that the pod is ready
		t.Activators = fmt.Sprintf("activator-announce.%s.svc.%s.:%d", in.SystemNamespace, in.ClusterDomain, wire.PortAnnounce)
	}
	t.DrainToken = wire.DrainToken(string(rev.UID))
	t.LogConfig = s.Logging.Raw
	t.LogLevel = strings.ToLower(s.Logging.LevelOf("queueproxy").String())
	t.Observability = observability(s.Observability)
	t.RootCA, t.TLS = s.Deployment.QueueSidecarRootCA, wire.SidecarTLS(s.Deployment.QueueSidecarTLS)
	var err error
	if t.Probes, err = wireProbes(readiness, port); err == nil {
		t.StartupProbes, err = wireProbes(startup, port)
	}
	if err != nil {
		return nil, fmt.Errorf("probes of revision %s/%s: %w", rev.Namespace, rev.Name, err)
	}
	return t, nil
}

func observability(o settings.Observability) wire.Observability {
	told := wire.Observability{
		EnableRequestLog:      o.EnableRequestLog,
		EnableProbeRequestLog: o.EnableProbeRequestLog,
		RequestMetrics:        wire.Export{Protocol: o.RequestMetrics.Protocol, Endpoint: o.RequestMetrics.Endpoint},
		Tracing:               wire.Tracing(o.Tracing),
		RuntimeProfiling:      o.RuntimeProfiling,
	}
	if o.RequestMetrics.Interval > 0 {
		told.RequestMetrics.Interval = o.RequestMetrics.Interval.String()
	}
	if o.EnableRequestLog {
		told.RequestLogTemplate = o.RequestLogTemplate
	}
	return told
}

// setTold gives queue-proxy the variables that do not come from the kubelet.
func setTold(sidecar *corev1.Container, told *wire.Sidecar) {
	var env []corev1.EnvVar
	for _, one := range told.Env() {
		name, value, _ := strings.Cut(one, "=")
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	sidecar.Env = append(env, sidecar.Env...)
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

// probesToRun are the probes that queue-proxy runs: the serving container's, or with
// multi-container probing those of all containers that have one, the serving container's first. A
// startup probe must have passed before readiness counts; one that only the kubelet can run is left
// out (see onlyKubeletKnows).
func probesToRun(containers []corev1.Container, serving int, all bool) (readiness, startup []*corev1.Probe) {
	readiness = append(readiness, containers[serving].ReadinessProbe)
	for i, c := range containers {
		if all && i != serving && c.ReadinessProbe != nil {
			readiness = append(readiness, c.ReadinessProbe)
		}
		if c.StartupProbe != nil && c.StartupProbe.Exec == nil {
			startup = append(startup, c.StartupProbe)
		}
	}
	return readiness, startup
}

// onlyKubeletKnows reports whether some container's readiness or start is decided by a command.
func onlyKubeletKnows(containers []corev1.Container) bool {
	return slices.ContainsFunc(containers, func(c corev1.Container) bool {
		return c.ReadinessProbe != nil && c.ReadinessProbe.Exec != nil || c.StartupProbe != nil && c.StartupProbe.Exec != nil
	})
}

// wireProbes are resolved probes as queue-proxy can run them. A command inside another container it
// cannot run: it looks whether the port accepts, and the kubelet runs the command.
func wireProbes(given []*corev1.Probe, port int32) ([]wire.Probe, error) {
	var all []wire.Probe
	for _, p := range given {
		if p == nil {
			p = &corev1.Probe{}
		}
		text, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		one, err := wire.ReadProbes(string(text), int(port))
		if err != nil {
			return nil, err
		}
		all = append(all, one...)
	}
	return all, nil
}
