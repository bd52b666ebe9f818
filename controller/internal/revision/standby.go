package revision

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

// standbyLimit is how the pods of a revision may sleep.
type standbyLimit struct {
	// sleeps is false if they may not. level is the deepest level at which they may.
	sleeps bool
	level  standby.Level
	// before and after are called before a pod sleeps and after it woke, nil for none.
	before, after *standby.Hook
	// reason and message say what keeps them from sleeping as deeply as was asked for.
	reason, message string
}

// frozen reports whether the containers of the pods may be frozen.
func (r standbyLimit) frozen() bool { return r.sleeps && r.level > standby.Warm }

// standbyOf returns how the pods of a revision may sleep. The first row that matches decides.
//
//	the revision                                   sleeps  at most      reason
//	standby is off, or the class is not Ebb's      no
//	the user container has the agent's port        no                   PortTaken
//	a container has an exec probe                  yes     warm         ExecProbe
//	QoS class Guaranteed                           yes     frozen       GuaranteedQoS
//	any other                                      yes     as annotated
func standbyOf(rev *servingv1.Revision, m names.Spec, s *settings.Snapshot) standbyLimit {
	r := standbyDepth(rev, m, s)
	r.before, r.after = m.Scaling.Standby.SleepHook, m.Scaling.Standby.WakeHook
	return r
}

func standbyDepth(rev *servingv1.Revision, m names.Spec, s *settings.Snapshot) standbyLimit {
	asked := m.Scaling.Standby
	user := rev.Spec.ServingContainer()
	if asked.Mode == rules.StandbyOff || user == nil || m.Scaling.Class != names.ClassKPA {
		return standbyLimit{}
	}
	probed := slices.IndexFunc(rev.Spec.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(probesOf(&c), func(p *corev1.Probe) bool { return p != nil && p.Exec != nil })
	})
	switch {
	case rev.Spec.Port() == standby.Port:
		return standbyLimit{reason: "PortTaken", message: fmt.Sprintf("Pods do not sleep: their user container has port %d, where "+
			"queue-proxy takes the connection of the node agent. Choose another port.", standby.Port)}
	case asked.Level > standby.Warm && probed >= 0:
		return standbyLimit{sleeps: true, reason: "ExecProbe", message: fmt.Sprintf("Pods sleep warm and use CPU: container %q has an exec probe, "+
			"and a command in a frozen container does not end. Use an HTTP, TCP or gRPC probe.", rev.Spec.Containers[probed].Name)}
	case asked.Level > standby.Frozen && guaranteed(rev.Spec.Containers, sidecarResources(m.Sidecar, *user, s)):
		return standbyLimit{sleeps: true, level: standby.Frozen, reason: "GuaranteedQoS", message: "Pods sleep frozen and keep their memory: " +
			"they have the QoS class Guaranteed, and the memory of such pods is not swapped. Request less than the limits."}
	}
	return standbyLimit{sleeps: true, level: asked.Level}
}

func probesOf(c *corev1.Container) []*corev1.Probe {
	return []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe}
}

// guaranteed reports whether a pod of these containers and queue-proxy has the QoS class
// Guaranteed: all have limits, and request as much.
func guaranteed(containers []corev1.Container, sidecar corev1.ResourceRequirements) bool {
	all := []corev1.ResourceRequirements{sidecar}
	for _, c := range containers {
		all = append(all, c.Resources)
	}
	return !slices.ContainsFunc(all, func(r corev1.ResourceRequirements) bool {
		return slices.ContainsFunc([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}, func(name corev1.ResourceName) bool {
			limit := r.Limits[name]
			request, given := r.Requests[name]
			return limit.IsZero() || given && !request.Equal(limit)
		})
	})
}

// conditionStandbyLimited exists, and is True, only if the pods cannot sleep as deeply as was asked
// for. It does not count for Ready.
const conditionStandbyLimited apis.ConditionType = "StandbyLimited"

func reportStandby(manager apis.ConditionManager, r standbyLimit) {
	if r.reason == "" {
		_ = manager.ClearCondition(conditionStandbyLimited) // it fails only for conditions that count
		return
	}
	manager.SetCondition(apis.Condition{Type: conditionStandbyLimited, Status: corev1.ConditionTrue,
		Severity: apis.ConditionSeverityInfo, Reason: r.reason, Message: r.message})
}

// enableStandby completes a pod that may sleep. The containers are those of the user.
func (r standbyLimit) enableStandby(pod *corev1.PodSpec, sidecar *corev1.Container, told *wire.Sidecar, port int32) error {
	if !r.sleeps {
		return nil
	}
	told.Standby, told.SleepHook, told.WakeHook = &r.level, r.before, r.after
	if !r.frozen() {
		return nil
	}
	told.LivenessProbes = map[string]wire.Probe{}
	for i := range pod.Containers {
		c := &pod.Containers[i]
		for name, p := range map[string]*corev1.Probe{c.Name: c.LivenessProbe, c.Name + "/startup": c.StartupProbe} {
			if err := relay(told.LivenessProbes, name, p, port); err != nil {
				return err
			}
		}
	}
	sidecar.Env = append(sidecar.Env, fieldEnv(wire.EnvPodUID, "metadata.uid"), fieldEnv(wire.EnvNodeIPs, "status.hostIPs"))
	sidecar.Ports = append(sidecar.Ports, corev1.ContainerPort{Name: "standby-port", ContainerPort: standby.Port, Protocol: corev1.ProtocolTCP})
	return nil
}

// relay points a probe to queue-proxy, which runs it unless the pod sleeps. A container that is
// frozen does not answer, and must not be killed for that.
func relay(probes map[string]wire.Probe, name string, p *corev1.Probe, port int32) error {
	if p == nil {
		return nil
	}
	one, err := wireProbes([]*corev1.Probe{p}, port)
	if err != nil {
		return fmt.Errorf("liveness probe of %s: %w", name, err)
	}
	probes[name] = one[0]
	p.ProbeHandler = corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Port: intstr.FromInt32(wire.PortDrain), Path: wire.PathLiveness + name}}
	return nil
}

// frozenContainers is the annotation of a pod for the node agent: the user's containers, never
// queue-proxy or what others inject.
func frozenContainers(rev *servingv1.Revision) string {
	var all []string
	for _, c := range rev.Spec.Containers {
		all = append(all, c.Name)
	}
	return strings.Join(all, ",")
}
