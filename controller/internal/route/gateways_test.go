package route

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// Another Gateway in config-gateway: the HTTPRoutes hang at it, and what names a target inside the
// cluster leads there.
func TestRoutesMoveToTheGatewaysOfAChangedSetting(t *testing.T) {
	s := set(t)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	led := func(external, local, alias string) func(*servingv1.Route) bool {
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
			return len(hung) == 2 && hung["hello.ns.example.com "+external] && hung["hello.ns.svc.cluster.local "+local] && leads == alias
		}
	}
	s.until("the shipped Gateways", led("knative-serving/ebb-external", "knative-serving/ebb-local", "ebb-local-istio.knative-serving.svc.cluster.local"))
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
	s.until("the Gateways of the changed setting", led("edge/outside", "edge/inside", "inside.edge.svc.cluster.local"))
}
