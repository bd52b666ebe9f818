package process

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/wire"
)

var (
	listenerSets = gatewayapi.ListenerSets.GroupResource()
	certificates = certificate.Resource.GroupResource()
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

// https begins the host of a request over TLS.
const https = "https://"

// ask sends a request for a host to a Gateway of namespace/name. A host over TLS is served where
// the oldest ListenerSet for it at that Gateway is: one has no listener for a host that another
// has.
func (g *ground) ask(gateway, host, backend string) answer {
	return g.meet(gateway, host, backend, false)
}

// meet is ask. A probe that gets as far as an activator has its hash back.
func (g *ground) meet(gateway, host, backend string, probe bool) answer {
	kind, namespace, name := "Gateway", gateway[:strings.Index(gateway, "/")], gateway[strings.Index(gateway, "/")+1:]
	host, secure := strings.CutPrefix(host, https)
	if secure {
		if kind, namespace, name = "ListenerSet", "ns", g.listens(gateway, host); name == "" {
			return answer{code: 525, why: "no listener for TLS at " + gateway}
		}
	}
	h, rule := g.rule(kind, namespace, name, host, backend)
	if rule == nil {
		return answer{code: 404, why: "no HTTPRoute at " + kind + " " + name}
	}
	if led := ledBy(rule); led != "" && !probe {
		return g.byActivators(host, led)
	}
	return g.follow(h, rule)
}

// listens returns the name of the ListenerSet whose listener for a host a Gateway has, or "".
func (g *ground) listens(gateway, host string) string {
	var oldest *unstructured.Unstructured
	for _, name := range g.names(listenerSets) {
		set := g.store.Get(listenerSets, "ns", name)
		if set == nil || gatewayapi.GatewayOf(set).String() != gateway {
			continue
		}
		list, _, _ := unstructured.NestedSlice(set.Object, "spec", "listeners")
		has := slices.ContainsFunc(list, func(l any) bool { return l.(map[string]any)["hostname"] == host })
		if has && (oldest == nil || set.GetCreationTimestamp().Time.Before(oldest.GetCreationTimestamp().Time)) {
			oldest = set
		}
	}
	if oldest == nil {
		return ""
	}
	return oldest.GetName()
}

// accept has the Gateways tell which HTTPRoutes they have.
func (g *ground) accept() {
	for _, h := range append(all[gatewayv1.HTTPRoute](g, httpRoutes), g.systems()...) {
		next := h.DeepCopy()
		next.Status.Parents = nil
		for _, p := range h.Spec.ParentRefs {
			at := string(ptr.Deref(p.Namespace, "")) + "/" + string(p.Name)
			if set := g.store.Get(listenerSets, "ns", string(p.Name)); ptr.Deref(p.Kind, "") == "ListenerSet" && set != nil {
				at = gatewayapi.GatewayOf(set).String()
			}
			if at == public || at == local {
				next.Status.Parents = append(next.Status.Parents, gatewayv1.RouteParentStatus{ParentRef: p, ControllerName: "example.com/gateways",
					Conditions: []metav1.Condition{{Type: string(gatewayv1.RouteConditionAccepted), Status: metav1.ConditionTrue, Reason: "Accepted"}}})
			}
		}
		if !equality.Semantic.DeepEqual(h.Status, next.Status) {
			g.put(httpRoutes, "gateway.networking.k8s.io/v1", "HTTPRoute", next)
		}
	}
}

// issue plays cert-manager: a certificate is there in the next step.
func (g *ground) issue() {
	for _, name := range g.names(certificates) {
		c := g.store.Get(certificates, "ns", name)
		if _, there, _ := unstructured.NestedSlice(c.Object, "status", "conditions"); there {
			continue
		}
		_ = unstructured.SetNestedSlice(c.Object, []any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")
		g.store.Put(certificates, c)
	}
}

func (g *ground) follow(h *gatewayv1.HTTPRoute, rule *gatewayv1.HTTPRouteRule) answer {
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
		if ref.Name == plan.Resting {
			if !g.resting() {
				return answer{code: 503, why: "no activators behind the common HTTPRoute"}
			}
			continue
		}
		if code, why := g.serves(string(ref.Name)); code != 200 {
			return answer{code: code, why: why}
		}
		a.by = append(a.by, string(ref.Name))
	}
	if len(a.by) == 0 && h.Namespace == "ns" {
		return answer{code: 500, why: "no backend"}
	}
	return a
}

// serves tells what a revision answers where an HTTPRoute names its Service.
func (g *ground) serves(revision string) (int, string) {
	if g.store.Get(coreServices, "ns", names.PublicService(revision)) == nil {
		return 500, "no Service " + revision
	}
	if !slices.ContainsFunc(all[discoveryv1.EndpointSlice](g, endpointSlices), func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == revision && len(s.Endpoints) > 0
	}) {
		return 503, "no endpoints of " + revision
	}
	return g.wakes(revision)
}

// wakes tells what an activator answers for a revision. At zero it wakes it: then a failure in its
// conditions is what a request is told that waits for longer than 3 s.
func (g *ground) wakes(revision string) (int, string) {
	rev := get[servingv1.Revision](g, revisions, revision)
	if rev == nil || g.store.Get(autoscalers, "ns", revision) == nil || !g.putsAway && g.store.Get(deployments, "ns", names.Deployment(revision)) == nil {
		return 503, "nobody can wake " + revision
	}
	for _, kind := range []string{"ResourcesAvailable", "ContainerHealthy"} {
		for _, c := range rev.Status.Conditions {
			if string(c.Type) == kind && c.Status == corev1.ConditionFalse && !slices.ContainsFunc(g.pods(revision), g.known) {
				return 503, fmt.Sprintf("the revision %s cannot start: %s %s", revision, c.Reason, c.Message)
			}
		}
	}
	if pods := g.pods(revision); slices.ContainsFunc(pods, ready) && !slices.ContainsFunc(pods, g.known) {
		return 504, "nobody lists the pods of " + revision
	}
	return 200, ""
}

// known reports whether activators know a pod that is ready: it has just announced itself, or the
// private Service lists it.
func (g *ground) known(p *corev1.Pod) bool {
	return ready(p) && (time.Since(p.CreationTimestamp.Time) < time.Minute || g.store.Get(coreServices, "ns", names.PrivateService(p.Labels[names.RevisionLabel])) != nil)
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
	host := r.Host
	if r.URL.Scheme == "https" {
		host = https + host
	}
	a, header := answer{}, http.Header{}
	if from := r.Header.Get(wire.HeaderResting); from != "" {
		a = p.g.activator(host, plan.Visibility(from))
	} else {
		a = p.g.meet(gateway, host, r.Header.Get(wire.HeaderBackend), true)
	}
	switch a.code {
	case 200:
		header.Set(wire.HeaderNetworkHash, a.hash)
	case 404:
		if r.Header.Get(wire.HeaderResting) != "" {
			header.Set(wire.HeaderResting, wire.RestingUnknown)
		}
	}
	return &http.Response{StatusCode: a.code, Header: header, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}
