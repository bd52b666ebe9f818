package gatewayapi

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// A ListenerSet stays at its Gateway. Those that were named after the place of the Gateway in
// config-gateway keep their names there: of two sets for a host, a Gateway accepts the older one.
func TestAListenerSetStaysAtItsGateway(t *testing.T) {
	const host = "shop.example.org"
	ref := func(gateway string) settings.GatewayRef {
		return settings.GatewayRef{Gateway: gateway, SupportedFeatures: []string{listenerSet}}
	}
	at := func(on ...settings.GatewayRef) settings.Gateway { return settings.Gateway{External: on} }
	sets := func(g settings.Gateway, have ...*unstructured.Unstructured) []*unstructured.Unstructured {
		return MapTLSListeners(Mapping{Host: host, Namespace: "ns", TLSSecret: "s"}, g, Meta{ListenerSets: have})
	}
	named := func(name, gateway string) *unstructured.Unstructured {
		one := sets(at(ref(gateway)))[0]
		one.SetName(name)
		return one
	}
	hashed := func(gateway string) string { return host + "-" + plan.ShortHash(gateway) }
	a, b := ref("x/a"), ref("x/b")
	otherHost := named("other.example.org", "x/a")
	listeners, _, _ := unstructured.NestedSlice(otherHost.Object, "spec", "listeners")
	listeners[0].(map[string]any)["hostname"] = "other.example.org"
	_ = unstructured.SetNestedSlice(otherHost.Object, listeners, "spec", "listeners")
	for _, c := range []struct {
		why  string
		on   settings.Gateway
		have []*unstructured.Unstructured
		want []string
	}{
		{"new", at(a), nil, []string{host}},
		{"new at two", at(a, b), nil, []string{host, hashed("x/b")}},
		{"another Gateway", at(b), []*unstructured.Unstructured{named(host, "x/a")}, []string{hashed("x/b")}},
		{"back again", at(a), []*unstructured.Unstructured{named(host, "x/a"), named(hashed("x/b"), "x/b")}, []string{host}},
		{"another order", at(b, a), []*unstructured.Unstructured{named(host, "x/a"), named(hashed("x/b"), "x/b")}, []string{hashed("x/b"), host}},
		{"named after its place", at(a, b), []*unstructured.Unstructured{named(host, "x/a"), named(host+"-2", "x/b")}, []string{host, host + "-2"}},
		{"whose place is another now", at(b), []*unstructured.Unstructured{named(host, "x/a"), named(host+"-2", "x/b")}, []string{host + "-2"}},
		{"the free name", at(a), []*unstructured.Unstructured{named(hashed("x/b"), "x/b")}, []string{host}},
		{"of another host", at(a), []*unstructured.Unstructured{otherHost}, []string{host}},
	} {
		var got []string
		for i, set := range sets(c.on, c.have...) {
			got = append(got, set.GetName())
			if gateway := c.on.External[i].Gateway; GatewayOf(set).String() != gateway {
				t.Errorf("%s: %s is at %s, not %s", c.why, set.GetName(), GatewayOf(set), gateway)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.why, got, c.want)
		}
		// The HTTPRoutes hang at the same ones.
		routes, _ := Map(Mapping{Host: host, Namespace: "ns", TLSSecret: "s"}, c.on, Meta{ListenerSets: c.have})
		var hang []string
		for _, p := range routes[0].Spec.ParentRefs {
			if *p.Kind == listenerSet {
				hang = append(hang, string(p.Name))
			}
		}
		if !slices.Equal(hang, c.want) {
			t.Errorf("%s: the HTTPRoute hangs at %v, want %v", c.why, hang, c.want)
		}
	}
}
