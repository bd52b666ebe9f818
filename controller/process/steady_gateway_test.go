package process

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/wire"
)

const (
	public = "knative-serving/ebb-external"
	local  = "knative-serving/ebb-local"
)

// answer is what a gateway says to a request: 404 for a host that it does not know, 500 for a
// backend that does not exist, 503 where nobody answers.
type answer struct {
	code int
	hash string
	by   []string // the revisions that may answer
	why  string
}

// ask sends a request for a host to a Gateway of namespace/name.
func (g *ground) ask(gateway, host, backend string) answer {
	namespace, name, _ := strings.Cut(gateway, "/")
	for _, h := range all[gatewayv1.HTTPRoute](g, httpRoutes) {
		if !slices.Contains(h.Spec.Hostnames, gatewayv1.Hostname(host)) || !slices.ContainsFunc(h.Spec.ParentRefs, func(p gatewayv1.ParentReference) bool {
			return string(p.Name) == name && string(ptr.Deref(p.Namespace, "")) == namespace
		}) {
			continue
		}
		return g.follow(h, backend)
	}
	return answer{code: 404, why: "no HTTPRoute at " + gateway}
}

func (g *ground) follow(h *gatewayv1.HTTPRoute, backend string) answer {
	var rule *gatewayv1.HTTPRouteRule
	for i := range h.Spec.Rules {
		headers := h.Spec.Rules[i].Matches[0].Headers
		if len(headers) == 0 && rule == nil || backend != "" && len(headers) > 0 && headers[0].Value == backend {
			rule = &h.Spec.Rules[i]
		}
	}
	if rule == nil {
		return answer{code: 404, why: "no rule"}
	}
	a := answer{code: 200}
	for _, header := range rule.Filters[0].RequestHeaderModifier.Set {
		if header.Name == wire.HeaderNetworkHash {
			a.hash = header.Value
		}
	}
	for _, ref := range rule.BackendRefs {
		if ptr.Deref(ref.Weight, 1) == 0 {
			continue
		}
		if code, why := g.serves(string(ref.Name)); code != 200 {
			return answer{code: code, why: why}
		}
		a.by = append(a.by, string(ref.Name))
	}
	if len(a.by) == 0 {
		return answer{code: 500, why: "no backend"}
	}
	return a
}

// serves tells what a revision answers. At zero the activator wakes it: then a failure in its
// conditions is what a request is told that waits for longer than 3 s.
func (g *ground) serves(revision string) (int, string) {
	if g.store.Get(coreServices, "ns", names.PublicService(revision)) == nil {
		return 500, "no Service " + revision
	}
	if !slices.ContainsFunc(all[discoveryv1.EndpointSlice](g, endpointSlices), func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == revision && len(s.Endpoints) > 0
	}) {
		return 503, "no endpoints of " + revision
	}
	rev := get[servingv1.Revision](g, revisions, revision)
	if rev == nil || g.store.Get(autoscalers, "ns", revision) == nil || g.store.Get(deployments, "ns", names.Deployment(revision)) == nil {
		return 503, "nobody can wake " + revision
	}
	for _, kind := range []string{"ResourcesAvailable", "ContainerHealthy"} {
		for _, c := range rev.Status.Conditions {
			if string(c.Type) == kind && c.Status == corev1.ConditionFalse && !slices.ContainsFunc(g.pods(revision), ready) {
				return 503, fmt.Sprintf("the revision %s cannot start: %s %s", revision, c.Reason, c.Message)
			}
		}
	}
	return 200, ""
}

func (g *ground) pods(revision string) []*corev1.Pod {
	return slices.DeleteFunc(all[corev1.Pod](g, pods), func(p *corev1.Pod) bool { return p.Labels[names.RevisionLabel] != revision })
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// prober is the way of probes: the addresses are those of the two gateways.
type prober struct{ g *ground }

func (p prober) RoundTrip(r *http.Request) (*http.Response, error) {
	gateway := public
	if r.URL.Hostname() == "10.9.0.2" {
		gateway = local
	}
	a := p.g.ask(gateway, r.Host, r.Header.Get(wire.HeaderBackend))
	header := http.Header{}
	if a.code == 200 {
		header.Set(wire.HeaderNetworkHash, a.hash)
	}
	return &http.Response{StatusCode: a.code, Header: header, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}
