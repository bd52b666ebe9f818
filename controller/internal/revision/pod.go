package revision

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Inputs is what the pod of a revision depends on besides the Revision.
type Inputs struct {
	Settings *settings.Snapshot
	// SystemNamespace and ClusterDomain place the activators and the autoscaler.
	SystemNamespace, ClusterDomain string
	// TLS gives queue-proxy the certificate of its namespace to serve with.
	TLS bool
	// KeyName names the key that the Secret names.PodSecret has.
	KeyName string
}

// The names a user sees in a pod.
const (
	sidecarName   = names.QueueProxyContainer
	userPortName  = names.UserPortName
	varLogVolume  = "knative-var-log"
	podInfoVolume = "pod-info"
	tokenVolume   = "knative-token-volume"
	keyVolume     = "ebb-key"
	keyPath       = "/var/run/ebb"
	certsVolume   = "server-certs"
	certsSecret   = names.NamespaceCertificate
	certsPath     = "/var/lib/knative/certs"
	tokensPath    = "/var/run/secrets/tokens"
	podInfoPath   = "/etc/podinfo"
	podInfoFile   = "annotations"
)

// makePodSpec is the pod of a revision: the user's containers, then queue-proxy. The kubelet starts
// containers one after another in this order. A program takes longer to start than queue-proxy, so
// it begins first (decision 0006).
func makePodSpec(rev *servingv1.Revision, m names.Spec, in Inputs) (corev1.PodSpec, error) {
	pod := *rev.Spec.PodSpec.DeepCopy()
	user := rev.Spec.ServingContainer()
	if user == nil {
		return corev1.PodSpec{}, fmt.Errorf("revision %s/%s has no container with a port", rev.Namespace, rev.Name)
	}
	serving := slices.IndexFunc(pod.Containers, func(c corev1.Container) bool { return c.Name == user.Name })
	port := rev.Spec.Port()
	for i := range pod.Containers {
		for _, probe := range probesOf(&pod.Containers[i]) {
			resolveProbe(probe, port)
		}
	}
	// The probes queue-proxy runs are read before they are taken off the containers.
	told, err := sidecarOf(rev, m, pod.Containers, serving, in)
	if err != nil {
		return corev1.PodSpec{}, err
	}
	sidecar := makeSidecar(rev, m, pod.Containers[serving], in)
	digests := map[string]string{}
	for _, status := range rev.Status.ContainerStatuses {
		digests[status.Name] = status.ImageDigest
	}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		if digest := digests[c.Name]; digest != "" {
			c.Image = digest
		}
		prepareContainer(rev, c, i == serving, port)
		if in.Settings.Observability.EnableVarLogCollection {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: varLogVolume, MountPath: "/var/log",
				SubPathExpr: "$(K_INTERNAL_POD_NAMESPACE)_$(K_INTERNAL_POD_NAME)_" + c.Name})
			c.Env = append(c.Env, fieldEnv("K_INTERNAL_POD_NAME", "metadata.name"),
				fieldEnv("K_INTERNAL_POD_NAMESPACE", "metadata.namespace"))
		}
	}
	for i := range pod.InitContainers {
		c := &pod.InitContainers[i]
		c.Env = append(c.Env, identityEnv(rev)...)
		setCommonFields(c)
	}
	tellConcurrency(rev, m.ConcurrencyVariable, &pod.Containers[serving])
	if err := addShim(rev, m.Shim, in.Settings, &pod, &pod.Containers[serving], sidecar); err != nil {
		return corev1.PodSpec{}, err
	}
	if err := standbyOf(rev, m, in.Settings).enableStandby(&pod, sidecar, told, port); err != nil {
		return corev1.PodSpec{}, err
	}
	pod.Volumes = append(pod.Volumes, makeVolumes(m, in)...)
	addKey(rev, &pod, sidecar, told)
	setTold(sidecar, told)
	pod.Containers = append(pod.Containers, *sidecar)
	schedule(rev, &pod, in.Settings.Deployment)
	return pod, nil
}

// schedule sets where the pod runs, and how long it may take to end, where the template does not.
func schedule(rev *servingv1.Revision, pod *corev1.PodSpec, d settings.Deployment) {
	if rev.Spec.TimeoutSeconds != nil {
		grace := *rev.Spec.TimeoutSeconds
		pod.TerminationGracePeriodSeconds = &grace
	}
	if (pod.Affinity == nil || *pod.Affinity == (corev1.Affinity{})) && d.DefaultAffinity == settings.AffinityPreferSpread {
		pod.Affinity = spread(rev, len(pod.TopologySpreadConstraints) > 0)
	}
	if pod.RuntimeClassName == nil {
		if class := d.RuntimeClassName(childLabels(rev)); class != "" {
			pod.RuntimeClassName = &class
		}
	}
}

// prepareContainer completes a user container. Its preStop hook shows a token, so that nobody but
// the kubelet begins a drain.
func prepareContainer(rev *servingv1.Revision, c *corev1.Container, serving bool, port int32) {
	setCommonFields(c)
	c.Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: &corev1.HTTPGetAction{
		Port: intstr.FromInt32(wire.PortDrain), Path: wire.PathDrain,
		HTTPHeaders: []corev1.HTTPHeader{{Name: "Authorization", Value: wire.Bearer(wire.DrainToken(string(rev.UID)))}}}}}
	if serving {
		c.Env = append([]corev1.EnvVar{{Name: "PORT", Value: fmt.Sprint(port)}}, c.Env...)
		c.Ports = []corev1.ContainerPort{{Name: userPortName, ContainerPort: port, Protocol: corev1.ProtocolTCP}}
	}
	c.Env = append(c.Env, identityEnv(rev)...)
	// queue-proxy answers for readiness, except where only the kubelet can look: a command inside
	// the container.
	if c.ReadinessProbe != nil && c.ReadinessProbe.Exec == nil {
		c.ReadinessProbe = nil
	}
	if c.ReadinessProbe != nil {
		wholePeriod(c.ReadinessProbe)
		atLeastEvery(readinessPeriod, c.ReadinessProbe)
	}
	if p := c.StartupProbe; p != nil && p.Exec != nil {
		atLeastEvery(commandPeriod, p)
	} else if p != nil {
		atLeastEvery(startupPeriod, p)
	}
}

// The longest periods of probes, in seconds. A kubelet sees at a probe only that a container is up:
// with Cloud Run's startup probe, whose period is 240 s, a program that listens at once would be
// ready after 240 s. Commands take more CPU, and readiness is probed for as long as a pod lives.
const (
	startupPeriod   = 1
	commandPeriod   = 2
	readinessPeriod = 10
)

// atLeastEvery bounds the period of a probe. The container may fail for as long as before.
func atLeastEvery(seconds int32, p *corev1.Probe) {
	period, failures := cmp.Or(p.PeriodSeconds, 10), cmp.Or(p.FailureThreshold, 3) // Kubernetes' defaults
	if period <= seconds {
		return
	}
	whole := (int64(period)*int64(failures) + int64(seconds) - 1) / int64(seconds)
	p.PeriodSeconds, p.FailureThreshold = seconds, int32(min(whole, math.MaxInt32))
}

// resolveProbe completes a probe for whoever runs it, the kubelet or queue-proxy, so that both ask
// the same. A probe asks the port that it says, as in Kubernetes. 0 and a name stand for the
// serving port, the only one that has a name.
func resolveProbe(p *corev1.Probe, serving int32) {
	number := func(given intstr.IntOrString) intstr.IntOrString {
		return intstr.FromInt32(cmp.Or(int32(max(given.IntValue(), 0)), serving))
	}
	switch {
	case p == nil:
	case p.HTTPGet != nil:
		p.HTTPGet.Port = number(p.HTTPGet.Port)
		p.HTTPGet.Scheme = corev1.URIScheme(strings.ToUpper(string(p.HTTPGet.Scheme))) // Kubernetes takes no other
	case p.TCPSocket != nil:
		p.TCPSocket.Port = number(p.TCPSocket.Port)
	case p.GRPC != nil:
		p.GRPC.Port = cmp.Or(p.GRPC.Port, serving)
	}
}

// setCommonFields gives a container what every container of a revision has.
func setCommonFields(c *corev1.Container) {
	if c.TerminationMessagePolicy == "" {
		c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	}
	c.Stdin, c.StdinOnce, c.TTY = false, false, false
}

func identityEnv(rev *servingv1.Revision) []corev1.EnvVar {
	return []corev1.EnvVar{
		{Name: "K_REVISION", Value: rev.Name},
		{Name: "K_CONFIGURATION", Value: rev.Labels[names.ConfigurationLabel]},
		{Name: "K_SERVICE", Value: rev.Labels[names.ServiceLabel]},
	}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{
		APIVersion: "v1", FieldPath: path}}}
}

// makeVolumes are the volumes that the user did not ask for by name.
func makeVolumes(m names.Spec, in Inputs) []corev1.Volume {
	var volumes []corev1.Volume
	if in.Settings.Observability.EnableVarLogCollection {
		volumes = append(volumes, corev1.Volume{Name: varLogVolume,
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	if m.PodInfo {
		volumes = append(volumes, corev1.Volume{Name: podInfoVolume, VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{{Path: podInfoFile,
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.annotations"}}}}}})
	}
	if audiences := in.Settings.Deployment.QueueSidecarTokenAudiences; len(audiences) > 0 {
		hour := int64(3600)
		var sources []corev1.VolumeProjection
		for _, audience := range audiences {
			sources = append(sources, corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: audience, ExpirationSeconds: &hour, Path: audience}})
		}
		volumes = append(volumes, corev1.Volume{Name: tokenVolume, VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: sources}}})
	}
	if in.TLS {
		volumes = append(volumes, corev1.Volume{Name: certsVolume, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: certsSecret}}})
	}
	return volumes
}

// zoneWeight is what another zone is worth beside another node, 100: a free node is taken before a
// second place on a node elsewhere, while its zone has no more than two pods more.
const zoneWeight = 50

// spread prefers nodes without pods of the revision, and of these those in other zones, unless the
// user's constraints say what pods are spread over.
func spread(rev *servingv1.Revision, constrained bool) *corev1.Affinity {
	apart := func(key string, weight int32) corev1.WeightedPodAffinityTerm {
		return corev1.WeightedPodAffinityTerm{Weight: weight, PodAffinityTerm: corev1.PodAffinityTerm{
			TopologyKey:   key,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{names.RevisionLabel: rev.Name}},
		}}
	}
	terms := []corev1.WeightedPodAffinityTerm{apart(corev1.LabelHostname, 100)}
	if !constrained {
		terms = append(terms, apart(corev1.LabelTopologyZone, zoneWeight))
	}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
}
