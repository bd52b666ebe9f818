package gatewayapi

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

func base() plan.Input {
	n := settings.Default().Network
	return plan.Input{
		Namespace: "default", Name: "hello", Labels: map[string]string{"team": "a"}, Domain: "example.com", ClusterDomain: "cluster.local",
		DomainTemplate: n.DomainTemplate, TagTemplate: n.TagTemplate,
		Targets: map[string][]plan.Share{"": {{Revision: "hello-00001", Percent: 100}}},
	}
}

func cases() map[string]plan.Input {
	all := map[string]plan.Input{}
	add := func(name string, change func(*plan.Input)) {
		in := base()
		change(&in)
		all[name] = in
	}
	split := []plan.Share{{Revision: "hello-00001", Percent: 80}, {Revision: "hello-00002", Percent: 15, H2C: true},
		{Revision: "hello-00002", Percent: 5, H2C: true}, {Revision: "hello-00003", Percent: 0}}
	add("one-revision", func(*plan.Input) {})
	add("split", func(in *plan.Input) { in.Targets[""] = split })
	add("cluster-local", func(in *plan.Input) { in.AllLocal = true })
	add("no-domain-is-local", func(in *plan.Input) { in.Domain = "svc.cluster.local" })
	add("tags", func(in *plan.Input) {
		in.Targets[""] = split
		in.Targets["blue"] = []plan.Share{{Revision: "hello-00003", Percent: 100}}
		in.Targets["green"] = []plan.Share{{Revision: "hello-00002", Percent: 100, H2C: true}}
		in.Local = map[string]bool{"green": true}
	})
	add("tag-header", func(in *plan.Input) {
		in.TagHeader = true
		in.Targets["blue"] = []plan.Share{{Revision: "hello-00003", Percent: 100}}
	})
	add("async", func(in *plan.Input) {
		in.TagHeader = true
		in.Targets["blue"] = []plan.Share{{Revision: "hello-00003", Percent: 100}}
		in.Async = &plan.Async{Namespace: "knative-serving", UID: "route-uid", Preferred: true}
	})
	add("async-always", func(in *plan.Input) {
		in.Async = &plan.Async{Namespace: "knative-serving", UID: "route-uid", Always: true}
	})
	add("tls-redirected", func(in *plan.Input) {
		in.TLS = map[string]string{"hello.default.example.com": "route-uid"}
		in.Redirect = true
	})
	add("tls", func(in *plan.Input) {
		in.Targets["blue"] = []plan.Share{{Revision: "hello-00001", Percent: 100}}
		in.TLS = map[string]string{"hello.default.example.com": "route-uid", "blue-hello.default.example.com": "wildcard",
			"hello.default.svc.cluster.local": "route-uid-local"}
	})
	add("internal-tls", func(in *plan.Input) {
		in.Targets[""] = []plan.Share{{Revision: "hello-00001", Percent: 50, TLS: true}, {Revision: "hello-00002", Percent: 50}}
	})
	add("more-rules-than-fit", func(in *plan.Input) {
		in.TagHeader, in.AllLocal = true, true
		for i := range 17 {
			in.Targets[fmt.Sprintf("t%02d", i)] = []plan.Share{{Revision: "hello-00001", Percent: 100}}
		}
	})
	return all
}

// What a client sends of these headers reaches no revision, whatever the rule.
func TestEveryRuleTakesTheInternalHeadersOffARequest(t *testing.T) {
	for name, in := range cases() {
		t.Run(name, func(t *testing.T) {
			p, err := plan.Make(in)
			if err != nil {
				t.Fatal(err)
			}
			for _, route := range HTTPRoutes(p, settings.Default().Gateway, Meta{}) {
				checkInternalHeaders(t, route)
				mapped, _ := Map(Mapping{Host: "shop.example.org", Target: "hello.default.svc.cluster.local", Rules: route.Spec.Rules}, settings.Default().Gateway,
					Meta{Labels: map[string]string{}})
				for _, route := range mapped {
					checkInternalHeaders(t, route)
				}
			}
		})
	}
}

// checkInternalHeaders wants each of them removed, or set to a value of ours, and never both.
func checkInternalHeaders(t *testing.T, route *gatewayv1.HTTPRoute) {
	t.Helper()
	for i, rule := range route.Spec.Rules {
		if len(rule.BackendRefs) == 0 {
			continue // a redirect
		}
		done := map[string]int{}
		for _, filter := range rule.Filters {
			if modifier := filter.RequestHeaderModifier; modifier != nil {
				for _, header := range modifier.Remove {
					done[header]++
				}
				for _, header := range modifier.Set {
					done[string(header.Name)]++
				}
			}
		}
		for _, header := range []string{"K-Original-Host", "K-Proxy-Request", "Ebb-No-Queue"} {
			if done[header] != 1 {
				t.Errorf("%s, rule %d: %s is removed or set %d times, want once", route.Name, i, header, done[header])
			}
		}
	}
}

func translate(t *testing.T, in plan.Input) string {
	t.Helper()
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	meta := Meta{Labels: in.Labels, Annotations: map[string]string{"serving.knative.dev/creator": "me"},
		Owner: metav1.OwnerReference{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: in.Name, UID: "uid", Controller: ptr.To(true)}}
	var out strings.Builder
	for _, route := range HTTPRoutes(p, settings.Default().Gateway, meta) {
		if len(route.Spec.Rules) > maxRules {
			t.Errorf("%s has %d rules", route.Name, len(route.Spec.Rules))
		}
		out.WriteString("---\n" + yamlOf(t, map[string]any{"metadata": route.ObjectMeta, "spec": route.Spec}))
	}
	for _, set := range TLSListeners(p, settings.Default().Gateway, meta) {
		out.WriteString("---\n" + yamlOf(t, set.Object))
	}
	return out.String()
}

func yamlOf(t *testing.T, value any) string {
	t.Helper()
	raw, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(raw), "  creationTimestamp: null\n", "")
}

func TestHTTPRoutes(t *testing.T) {
	for name, in := range cases() {
		t.Run(name, func(t *testing.T) {
			golden.Twice(t, "testdata/"+name+".yaml", func() string { return translate(t, in) })
		})
	}
}

func TestAGatewayWithoutTimeoutsIsNotAskedForThem(t *testing.T) {
	p, err := plan.Make(base())
	if err != nil {
		t.Fatal(err)
	}
	g := settings.Default().Gateway
	g.External[0].SupportedFeatures = nil
	for _, route := range HTTPRoutes(p, g, Meta{}) {
		if has := route.Spec.Rules[0].Timeouts != nil; has != (route.Labels["networking.knative.dev/visibility"] == "cluster-local") {
			t.Errorf("%s: timeouts are set: %v", route.Name, has)
		}
	}
}
