package watch

import (
	"cmp"
	"net/netip"
	"regexp"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/cold"
	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/interned"
)

// keptRevision is what is kept of a Revision: a few hundred bytes of several kilobytes.
type keptRevision struct {
	interned.Identity
	uid                    string
	service, configuration string
	*kind
}

// kind is what many Revisions have in common.
type kind struct {
	concurrency, timeout, responseStart, idle *int64
	h2c, early                                bool
	failure                                   string
	annotations                               map[string]string // those of Ebb's own
	resolved                                  map[string]string // what the controller found out
}

var kinds interned.Few[*kind]

func keepRevision(r *servingv1.Revision) *keptRevision {
	return &keptRevision{Identity: interned.IdentityOf(r), uid: string(r.UID), service: interned.Part(r.Name, r.Labels[names.ServiceLabel]),
		configuration: interned.Part(r.Name, r.Labels[names.ConfigurationLabel]), kind: kinds.Same(kindOf(r))}
}

func kindOf(r *servingv1.Revision) *kind {
	k := &kind{
		concurrency: r.Spec.ContainerConcurrency, timeout: r.Spec.TimeoutSeconds,
		responseStart: r.Spec.ResponseStartTimeoutSeconds, idle: r.Spec.IdleTimeoutSeconds,
		h2c: r.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C, early: true, failure: failureOf(r), resolved: r.Status.Annotations,
	}
	for _, c := range r.Spec.Containers {
		// What queue-proxy cannot probe itself, it cannot vouch for: commands. Startup probes of
		// all other kinds it runs before it announces the pod (wire.Sidecar).
		if c.StartupProbe != nil && c.StartupProbe.Exec != nil || c.ReadinessProbe != nil && c.ReadinessProbe.Exec != nil {
			k.early = false
		}
	}
	for key, value := range r.Annotations {
		if strings.HasPrefix(key, names.EbbServingGroup+"/") {
			if k.annotations == nil {
				k.annotations = map[string]string{}
			}
			k.annotations[key] = value
		}
	}
	return k
}

// info is what the activator needs of the Revision.
func (k *keptRevision) info(c *rules.Config) *backends.Info {
	r := servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Annotations: k.annotations}, Spec: servingv1.RevisionSpec{ContainerConcurrency: k.concurrency,
		TimeoutSeconds: k.timeout, ResponseStartTimeoutSeconds: k.responseStart, IdleTimeoutSeconds: k.idle}}
	m := r.Meaning(c)
	return &backends.Info{
		UID:                  k.uid,
		Service:              k.service,
		Configuration:        k.configuration,
		ContainerConcurrency: m.Limits.Concurrency,
		Timeout:              m.Limits.Timeout,
		ResponseStartTimeout: m.Limits.ResponseStartTimeout,
		IdleTimeout:          m.Limits.IdleTimeout,
		Handling:             m.Limits.Handling,
		H2C:                  k.h2c,
		Early:                k.early,
		Failure:              k.failure,
		Cold:                 cold.Of(m.Cold, k.resolved),
	}
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

func transformRevision(o any) (any, error) {
	if r, ok := o.(*servingv1.Revision); ok {
		return keepRevision(r), nil
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

// keptSlice is what is kept of an EndpointSlice.
type keptSlice struct {
	interned.Identity
	key       backends.Key
	endpoints []backends.Endpoint // nil for most: theirs are at zero
}

func transformSlice(o any) (any, error) {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok {
		k := &keptSlice{Identity: interned.IdentityOf(s)}
		k.key, k.endpoints = endpointsOf(s)
		k.key.Namespace, k.key.Name = k.Namespace, interned.Part(k.Name, k.key.Name)
		return k, nil
	}
	return o, nil
}
