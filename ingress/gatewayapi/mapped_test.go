package gatewayapi

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

// What a DomainMapping asks of the gateways: files mapped-*.yaml.
func TestMappings(t *testing.T) {
	in := base()
	in.Targets[""] = []plan.Share{{Revision: "hello-00001", Percent: 80}, {Revision: "hello-00002", Percent: 20, H2C: true}}
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	var rules []gatewayv1.HTTPRouteRule
	for _, route := range HTTPRoutes(p, settings.Default().Gateway, Meta{}) {
		for _, host := range route.Spec.Hostnames {
			if host == "hello.default.svc.cluster.local" {
				rules = route.Spec.Rules
			}
		}
	}
	if len(rules) == 0 {
		t.Fatal("the Route has no rules for its local host")
	}
	toRoute := Mapping{Host: "shop.example.org", Namespace: "default", Target: "hello.default.svc.cluster.local", Service: "hello", Rules: rules}
	for name, change := range map[string]func(*Mapping){
		"mapped-to-a-route":   func(*Mapping) {},
		"mapped-to-a-service": func(m *Mapping) { m.Target, m.Service, m.Rules = "plain.default.svc.cluster.local", "plain", nil },
		"mapped-tls":          func(m *Mapping) { m.TLSSecret = "shop-tls" },
		"mapped-redirected":   func(m *Mapping) { m.TLSSecret, m.Redirect = "shop-tls", true },
		// Without a certificate there is nowhere to redirect to.
		"mapped-redirect-without-a-certificate": func(m *Mapping) { m.Redirect = true },
	} {
		t.Run(name, func(t *testing.T) {
			m := toRoute
			change(&m)
			golden.Twice(t, "testdata/"+name+".yaml", func() string { return mapped(t, m) })
			// The Route's own rules are shared with a cache.
			if strings.Contains(yamlOf(t, rules), "shop.example.org") {
				t.Error("the Route's rules were changed")
			}
		})
	}
}

func mapped(t *testing.T, m Mapping) string {
	t.Helper()
	meta := Meta{Labels: map[string]string{names.DomainMappingUIDLabel: "uid"}, Annotations: map[string]string{"serving.knative.dev/creator": "me"},
		Owner: metav1.OwnerReference{APIVersion: "serving.knative.dev/v1beta1", Kind: "DomainMapping", Name: m.Host, UID: "uid", Controller: ptr.To(true)}}
	routes, hash := Map(m, settings.Default().Gateway, meta)
	var out strings.Builder
	out.WriteString("# hash " + hash + "\n")
	for _, route := range routes {
		out.WriteString("---\n" + yamlOf(t, map[string]any{"metadata": route.ObjectMeta, "spec": route.Spec}))
	}
	for _, set := range MapTLSListeners(m, settings.Default().Gateway, meta) {
		out.WriteString("---\n" + yamlOf(t, set.Object))
	}
	return out.String()
}
