package route

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	servingv1 "ebb.dev/ebb/api/serving/v1"
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
