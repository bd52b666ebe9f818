package watch

import (
	"cmp"
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// InfoOf is what the activator needs of a Revision.
func InfoOf(r *servingv1.Revision, c *rules.Config) *backends.Info {
	m := r.Meaning(c)
	info := &backends.Info{
		UID:                  string(r.UID),
		Service:              r.Labels[names.ServiceLabel],
		Configuration:        r.Labels[names.ConfigurationLabel],
		ContainerConcurrency: m.Limits.Concurrency,
		Timeout:              m.Limits.Timeout,
		ResponseStartTimeout: m.Limits.ResponseStartTimeout,
		IdleTimeout:          m.Limits.IdleTimeout,
		Handling:             m.Limits.Handling,
		H2C:                  r.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C,
		Early:                true,
		Failure:              failureOf(r),
		Cold:                 cold.Of(m.Cold, r.Status.Annotations),
	}
	for _, c := range r.Spec.Containers {
		// What queue-proxy cannot probe itself, it cannot vouch for: commands. Startup probes of
		// all other kinds it runs before it announces the pod (wire.Sidecar).
		if c.StartupProbe != nil && c.StartupProbe.Exec != nil || c.ReadinessProbe != nil && c.ReadinessProbe.Exec != nil {
			info.Early = false
		}
	}
	return info
}

// maxFailure bounds a failure in bytes: it is in each answer, and in memory for each revision.
const maxFailure = 600

// addresses are IP addresses, with a port or without.
var addresses = regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b|\[[0-9a-fA-F:]*:[0-9a-fA-F:.]*\](:\d+)?`)

// failureOf is the reason why no pod of the revision can start and the words of its condition, or
// "". It reaches clients, so it leaves out addresses, and what a container said last, which is the
// end of its log.
func failureOf(r *servingv1.Revision) string {
	for _, t := range []string{string(servingv1.RevisionConditionContainerHealthy), string(servingv1.RevisionConditionResourcesAvailable)} {
		for _, c := range r.Status.Conditions {
			if string(c.Type) != t || c.Status != corev1.ConditionFalse {
				continue
			}
			words := c.Message
			if c.Type == servingv1.RevisionConditionContainerHealthy {
				words = servingv1.WithoutLastWords(words)
			}
			words = addresses.ReplaceAllString(words, "...")
			failure := cmp.Or(c.Reason, "NotReady")
			if words = strings.Join(strings.Fields(words), " "); words != "" {
				failure += ": " + words
			}
			if len(failure) > maxFailure {
				failure = strings.ToValidUTF8(failure[:maxFailure], "") + "..."
			}
			return failure
		}
	}
	return ""
}

// transformRevision drops what InfoOf does not read, before the object is kept.
func transformRevision(o any) (any, error) {
	if r, ok := o.(*servingv1.Revision); ok {
		r.ManagedFields, r.OwnerReferences = nil, nil
		maps.DeleteFunc(r.Annotations, func(k, _ string) bool { return !strings.HasPrefix(k, names.EbbServingGroup+"/") })
		kept := map[string]string{}
		for _, k := range []string{names.ServiceLabel, names.ConfigurationLabel} {
			if v, ok := r.Labels[k]; ok {
				kept[k] = v
			}
		}
		r.Labels = kept
		containers := make([]corev1.Container, len(r.Spec.Containers))
		for i, c := range r.Spec.Containers {
			containers[i] = corev1.Container{Ports: c.Ports, StartupProbe: c.StartupProbe, ReadinessProbe: c.ReadinessProbe}
		}
		r.Spec.PodSpec = corev1.PodSpec{Containers: containers}
		r.Status.ContainerStatuses, r.Status.InitContainerStatuses = nil, nil
	}
	return o, nil
}

// endpointsOf returns the revision that a slice of a private Service belongs to and its endpoints.
// The activators belong to one without a name.
func endpointsOf(s *discoveryv1.EndpointSlice) (backends.Key, []backends.Endpoint) {
	key := backends.Key{Namespace: s.Namespace, Name: s.Labels[names.RevisionLabel]}
	if service := s.Labels[discoveryv1.LabelServiceName]; key.Name == "" && service != names.ActivatorService {
		key.Name = strings.TrimSuffix(service, "-private")
	}
	port := uint16(0)
	for _, p := range s.Ports {
		if p.Name != nil && p.Port != nil && (*p.Name == "http" || *p.Name == "http2") {
			port = uint16(*p.Port)
		}
	}
	endpoints := []backends.Endpoint{}
	if port == 0 {
		return key, endpoints
	}
	for _, e := range s.Endpoints {
		for _, text := range e.Addresses {
			address, err := netip.ParseAddr(text)
			if err != nil {
				continue // a name of type FQDN; private Services have none
			}
			one := backends.Endpoint{Address: netip.AddrPortFrom(address.Unmap(), port),
				Ready:       e.Conditions.Ready == nil || *e.Conditions.Ready,
				Terminating: e.Conditions.Terminating != nil && *e.Conditions.Terminating,
				Serving:     e.Conditions.Serving != nil && *e.Conditions.Serving,
				Node:        shared(e.NodeName), Zone: shared(e.Zone)}
			if e.TargetRef != nil {
				one.Pod = e.TargetRef.Name
			}
			endpoints = append(endpoints, one)
		}
	}
	return key, endpoints
}

// shared is a name that many endpoints have, "" for none.
func shared(name *string) string {
	if name == nil {
		return ""
	}
	return unique.Make(*name).Value()
}

func transformSlice(o any) (any, error) {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok {
		s.ManagedFields, s.Annotations, s.OwnerReferences = nil, nil, nil
		for i := range s.Endpoints {
			s.Endpoints[i].Hints, s.Endpoints[i].DeprecatedTopology = nil, nil
		}
	}
	return o, nil
}
