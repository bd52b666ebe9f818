package revision

import (
	"fmt"
	"maps"
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

// Cloud Run writes a startup probe of 240 s into each export: a program that listens at once has to
// be ready at once, and one that does not has the 240 s.
func TestALongPeriodKeepsNoPodFromBeingReadyAndEndsNoneSooner(t *testing.T) {
	for what, c := range map[string]struct{ most, period, failures, wantPeriod, wantFailures int32 }{
		"Cloud Run's":                 {startupPeriod, 240, 1, 1, 240},
		"Kubernetes' defaults":        {startupPeriod, 0, 0, 1, 30},
		"one that is short already":   {startupPeriod, 1, 120, 1, 120},
		"a command":                   {commandPeriod, 5, 3, 2, 8},
		"readiness with a short one":  {readinessPeriod, 5, 2, 5, 2},
		"readiness once in an hour":   {readinessPeriod, 3600, 2, 10, 720},
		"numbers that do not fit int": {startupPeriod, math.MaxInt32, math.MaxInt32, 1, math.MaxInt32},
	} {
		p := &corev1.Probe{PeriodSeconds: c.period, FailureThreshold: c.failures}
		atLeastEvery(c.most, p)
		if p.PeriodSeconds != c.wantPeriod || p.FailureThreshold != c.wantFailures {
			t.Errorf("%s: %d failures, one each %d s; want %d, one each %d s", what, p.FailureThreshold, p.PeriodSeconds, c.wantFailures, c.wantPeriod)
		}
	}
}

// The kubelet and queue-proxy run the same startup probe. If they asked two ports, a pod would need
// both to be ready. A pod that sleeps has its probes relayed by queue-proxy.
func TestAProbeAsksThePortThatItSays(t *testing.T) {
	for what, handler := range map[string]func(port intstr.IntOrString) corev1.ProbeHandler{
		"http": func(port intstr.IntOrString) corev1.ProbeHandler {
			return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: port}}
		},
		"tcp": func(port intstr.IntOrString) corev1.ProbeHandler {
			return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
		},
		"grpc": func(port intstr.IntOrString) corev1.ProbeHandler {
			return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port.IntVal}}
		},
	} {
		for _, port := range []struct {
			says intstr.IntOrString
			asks int
		}{{intstr.FromInt32(9000), 9000}, {intstr.FromInt32(8080), 8080}, {intstr.FromInt32(0), 8080}, {intstr.FromString("http1"), 8080}} {
			for _, flag := range []rules.Flag{rules.Enabled, rules.Disabled} {
				t.Run(fmt.Sprintf("%s, port %s, multi-container-probing %s", what, port.says.String(), flag), func(t *testing.T) {
					probe := corev1.Probe{ProbeHandler: handler(port.says), FailureThreshold: 3, PeriodSeconds: 1}
					kubelet, sidecar := podOfProbes(t, probe, flag, "off")
					for kind, p := range map[string]*corev1.Probe{"startup": kubelet.StartupProbe, "liveness": kubelet.LivenessProbe} {
						if got := askedPort(p.ProbeHandler); got != port.asks {
							t.Errorf("the kubelet's %s probe asks port %d, want %d", kind, got, port.asks)
						}
					}
					for kind, p := range map[string][]wire.Probe{"startup": sidecar.StartupProbes, "readiness": sidecar.Probes} {
						if got := toldPort(p[0]); len(p) != 1 || got != port.asks {
							t.Errorf("queue-proxy's %s probe asks port %d, want %d: %+v", kind, got, port.asks, p)
						}
					}
					kubelet, sidecar = podOfProbes(t, probe, flag, "auto")
					for name, p := range map[string]*corev1.Probe{"user-container/startup": kubelet.StartupProbe, "user-container": kubelet.LivenessProbe} {
						if got := toldPort(sidecar.LivenessProbes[name]); askedPort(p.ProbeHandler) != wire.PortDrain || got != port.asks {
							t.Errorf("of a pod that sleeps, the probe %s asks port %d, want %d: %+v", name, got, port.asks, p.ProbeHandler)
						}
					}
				})
			}
		}
	}
}

// podOfProbes makes the pod of a container with one probe in all three places. It returns the
// container, and what queue-proxy is told.
func podOfProbes(t *testing.T, probe corev1.Probe, flag rules.Flag, standby string) (corev1.Container, *wire.Sidecar) {
	t.Helper()
	rev, in := readCase(t, "testdata/plain.in.yaml")
	changed := *in.Settings
	changed.Features = maps.Clone(changed.Features)
	changed.Features[rules.KeyMultiContainerProbing] = flag
	in.Settings = &changed
	rev.Annotations["autoscaling.ebb.dev/standby"] = standby
	c := &rev.Spec.Containers[0]
	c.ReadinessProbe, c.StartupProbe, c.LivenessProbe = probe.DeepCopy(), probe.DeepCopy(), probe.DeepCopy()
	d, err := MakeDeployment(rev, 1, in)
	if err != nil {
		t.Fatal(err)
	}
	environment := map[string]string{wire.EnvPod: "pod", wire.EnvPodIP: "10.0.0.1"}
	for _, e := range proxyOf(t, d).Env {
		if e.ValueFrom == nil {
			environment[e.Name] = e.Value
		}
	}
	told, err := wire.ReadSidecar(func(name string) string { return environment[name] })
	if err != nil {
		t.Fatal(err)
	}
	return d.Spec.Template.Spec.Containers[0], told
}

func askedPort(h corev1.ProbeHandler) int {
	switch {
	case h.HTTPGet != nil:
		return h.HTTPGet.Port.IntValue()
	case h.TCPSocket != nil:
		return h.TCPSocket.Port.IntValue()
	}
	return int(h.GRPC.Port)
}

func toldPort(p wire.Probe) int {
	switch {
	case p.HTTPGet != nil:
		return int(p.HTTPGet.Port)
	case p.TCPSocket != nil:
		return int(p.TCPSocket.Port)
	case p.GRPC != nil:
		return int(p.GRPC.Port)
	}
	return 0
}
