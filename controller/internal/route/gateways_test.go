package route

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// Another Gateway in config-gateway: the HTTPRoutes hang at it, and what names a target inside the
// cluster leads there. Until it serves them, the former ones do.
func TestRoutesMoveToTheGatewaysOfAChangedSetting(t *testing.T) {
	s := set(t)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	led := func(hangs int, external, local, alias string) func(*servingv1.Route) bool {
		return func(*servingv1.Route) bool {
			hung := map[string]bool{}
			for _, name := range []string{"hello.ns.example.com", "hello.ns.svc.cluster.local"} {
				if route := s.store.Get(httpRoutes, "ns", name); route != nil {
					parents, _, _ := unstructured.NestedSlice(route.Object, "spec", "parentRefs")
					for _, parent := range parents {
						p := parent.(map[string]any)
						hung[fmt.Sprint(name, " ", p["namespace"], "/", p["name"])] = true
					}
				}
			}
			service := s.store.Get(services, "ns", "hello")
			if service == nil {
				return false
			}
			leads, _, _ := unstructured.NestedString(service.Object, "spec", "externalName")
			return len(hung) == hangs && hung["hello.ns.example.com "+external] && hung["hello.ns.svc.cluster.local "+local] && leads == alias
		}
	}
	s.until("the shipped Gateways", led(2, "knative-serving/ebb-external", "knative-serving/ebb-local", "ebb-local-istio.knative-serving.svc.cluster.local"))
	changed, err := settings.Parse(map[string]map[string]string{
		settings.DomainName: {"example.com": ""},
		settings.GatewayName: {
			"external-gateways": "[{class: other, gateway: edge/outside, service: edge/outside}]",
			"local-gateways":    "[{class: other, gateway: edge/inside, service: edge/inside}]",
		}})
	if err != nil {
		t.Fatal(err)
	}
	s.settings.Set(changed)
	old := "ebb-local-istio.knative-serving.svc.cluster.local"
	s.until("both, while there is no such gateway", func(r *servingv1.Route) bool {
		return led(4, "edge/outside", "edge/inside", old)(r) && led(4, "knative-serving/ebb-external", "knative-serving/ebb-local", old)(r) &&
			strings.HasPrefix(condition(r, "Ready"), "Unknown ")
	})
	s.gateway("edge", "outside")
	s.gateway("edge", "inside")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	s.until("the Gateways of the changed setting alone", led(2, "edge/outside", "edge/inside", "inside.edge.svc.cluster.local"))
}

// Somebody deletes an HTTPRoute. It is made again, and the Route is not Ready before the gateways
// have it.
func TestAnHTTPRouteThatIsMadeAgainIsProbed(t *testing.T) {
	s := set(t)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	none := map[string]string{}
	s.known.Store(&none)
	s.lag.Store(true)
	s.store.Remove(httpRoutes, "ns", "hello.ns.example.com")
	s.until("not Ready", func(r *servingv1.Route) bool {
		return s.store.Get(httpRoutes, "ns", "hello.ns.example.com") != nil && strings.HasPrefix(condition(r, "Ready"), "Unknown ")
	})
	s.lag.Store(false)
	s.until("Ready again", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
}

// external changes config-gateway, and has hosts get certificates.
func (s *stage) external(gateway, service string) {
	s.t.Helper()
	changed, err := settings.Parse(map[string]map[string]string{
		settings.DomainName: {"example.com": ""}, settings.NetworkName: {"external-domain-tls": "Enabled"},
		settings.GatewayName: {"external-gateways": fmt.Sprintf("[{class: other, gateway: %s, service: %s, supported-features: [ListenerSet]}]", gateway, service)}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settings.Set(changed)
}

// sets tells at which Gateway each ListenerSet is.
func (s *stage) sets() string {
	var out []string
	for _, name := range strings.Fields(s.names(listenerSets)) {
		if set := s.store.Get(listenerSets, "ns", name); set != nil {
			out = append(out, name+" at "+gatewayapi.GatewayOf(set).String())
		}
	}
	return strings.Join(out, ", ")
}

// secure makes a Route whose host has TLS at the shipped Gateway.
func (s *stage) secure() {
	s.t.Helper()
	s.installs(certificates, listenerSets)
	s.external("knative-serving/ebb-external", "knative-serving/ebb-external-istio")
	uid := s.serves()
	s.until("asked for", func(*servingv1.Route) bool { return s.names(certificates) != "" })
	s.issuer("route-"+uid, "Ready", "True", "Ready")
	s.until("secure", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && r.Status.URL.Scheme == "https"
	})
}

const (
	plainSet = "hello.ns.example.com"
	shipped  = plainSet + " at knative-serving/ebb-external"
)

// A wrong Gateway for a minute, a right one, and the first one again: the host has TLS at the
// former one until the next one serves it.
func TestTLSStaysAtTheFormerGatewayUntilTheNextOneServes(t *testing.T) {
	s := set(t)
	s.secure()
	if s.sets() != shipped {
		t.Fatalf("ListenerSets: %s", s.sets())
	}
	moved := plainSet + "-" + plan.ShortHash("edge/outside")
	both := "Gateway outside, ListenerSet " + moved + ", Gateway ebb-external, ListenerSet " + plainSet
	s.external("edge/outside", "edge/outside")
	s.until("both, while there is no such gateway", func(r *servingv1.Route) bool {
		return s.parents() == both && s.sets() == shipped+", "+moved+" at edge/outside" && strings.HasPrefix(condition(r, "Ready"), "Unknown ")
	})
	s.external("knative-serving/ebb-external", "knative-serving/ebb-external-istio")
	s.until("as before", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && s.parents() == "Gateway ebb-external, ListenerSet "+plainSet && s.sets() == shipped
	})
	s.external("edge/outside", "edge/outside")
	s.until("both again", func(*servingv1.Route) bool {
		return s.parents() == both && s.sets() == shipped+", "+moved+" at edge/outside"
	})
	s.gateway("edge", "outside")
	s.until("the new one alone", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && s.parents() == "Gateway outside, ListenerSet "+moved && s.sets() == moved+" at edge/outside"
	})
}

// A Gateway that does not support ListenerSets is named for a minute: the certificate stays, too.
func TestACertificateStaysWhileAGatewayCannotUseIt(t *testing.T) {
	s := set(t)
	s.secure()
	had := s.names(certificates)
	changed, err := settings.Parse(map[string]map[string]string{
		settings.DomainName: {"example.com": ""}, settings.NetworkName: {"external-domain-tls": "Enabled"},
		settings.GatewayName: {"external-gateways": "[{class: other, gateway: edge/outside, service: edge/outside}]"}})
	if err != nil {
		t.Fatal(err)
	}
	s.settings.Set(changed)
	s.until("without TLS at the new one", func(r *servingv1.Route) bool {
		return s.parents() == "Gateway outside, Gateway ebb-external, ListenerSet "+plainSet && strings.HasPrefix(condition(r, "Ready"), "Unknown ")
	})
	if s.sets() != shipped || s.names(certificates) != had {
		t.Errorf("ListenerSets %s, Certificates %s", s.sets(), s.names(certificates))
	}
}

// accept plays a Gateway that has the HTTPRoute of the host, and its ListenerSet.
func (s *stage) accept(gateway, set string) {
	h := s.store.Get(httpRoutes, "ns", plainSet)
	parents, _, _ := unstructured.NestedSlice(h.Object, "status", "parents")
	for _, ref := range []any{map[string]any{"kind": "Gateway", "namespace": "knative-serving", "name": gateway, "group": "gateway.networking.k8s.io"},
		map[string]any{"kind": "ListenerSet", "namespace": "ns", "name": set, "group": "gateway.networking.k8s.io"}} {
		parents = append(parents, map[string]any{"parentRef": ref, "controllerName": "example.com/x",
			"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}}})
	}
	_ = unstructured.SetNestedSlice(h.Object, parents, "status", "parents")
	s.store.Put(httpRoutes, h)
}

// The name of a Gateway is misspelt, and the Service is right: its pods answer each probe, because
// the former Gateway leads there.
func TestAProbeThatTheFormerGatewayLetsThroughIsNoReasonToGiveItUp(t *testing.T) {
	s := set(t)
	s.secure()
	s.accept("ebb-external", plainSet)
	s.external("knative-serving/misspelt", "knative-serving/ebb-external-istio")
	next := plainSet + "-" + plan.ShortHash("knative-serving/misspelt")
	s.until("not accepted", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), `Gateway "misspelt" has not accepted HTTPRoute "hello.ns.example.com"`) &&
			s.parents() == "Gateway misspelt, ListenerSet "+next+", Gateway ebb-external, ListenerSet "+plainSet
	})
	s.accept("misspelt", next)
	s.until("it was no mistake", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && s.parents() == "Gateway misspelt, ListenerSet "+next && s.names(listenerSets) == next
	})
}
