package gatewayapi

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/wire"
)

// A gateway may get a route before the backend that it names, and may drop a backend before the
// route that named it. It answers 500 meanwhile (PILOT_FILTER_GATEWAY_CLUSTER_CONFIG of Istio does
// so). So backends of live hosts change in three writes. For a rollout from A to B:
//
//	requests -> A, spare B      until the gateways reach B
//	requests -> B, spare A      until the gateways follow
//	requests -> B
//
// A spare rule is for requests with wire.HeaderBackend, which only probes send. It stands behind
// the others, whose places stay: Envoy Gateway names the endpoints of a rule with several backends
// after the rule's place, and another rule in that place would lead requests there.

// Prepare returns the first of these writes: the HTTPRoutes in have, by name, whose hosts get new
// backends, with spare rules for those. The rules set the given hash. values lists, by the name of
// the HTTPRoute, what the header of a probe must say to reach each of them. An HTTPRoute that has
// no room for spare rules changes without.
func Prepare(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute, hash string) (first []*gatewayv1.HTTPRoute, values map[string][]string) {
	values = map[string][]string{}
	for _, w := range want {
		h, live := have[w.Name]
		if !live {
			continue
		}
		main, old := divide(h.Spec.Rules)
		fresh, names := spares(w.Spec.Rules, named(main))
		if len(fresh) == 0 || len(main)+len(fresh) > maxRules {
			continue
		}
		for _, rule := range fresh {
			setHash(rule.Filters, hash)
		}
		// Gateways that are behind may still send requests where earlier plans did.
		old, _ = spares(old, named(fresh))
		old = old[:min(len(old), maxRules-len(main)-len(fresh))]
		next := h.DeepCopy()
		next.Spec.Rules = slices.Concat(main, fresh, old)
		first, values[w.Name] = append(first, next), names
	}
	return first, values
}

// Retain returns the second write: want, with spare rules for the backends that only have names.
func Retain(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute) (second []*gatewayv1.HTTPRoute, retained bool) {
	for _, w := range want {
		if h, live := have[w.Name]; live {
			if old, _ := spares(h.Spec.Rules, named(w.Spec.Rules)); len(old) > 0 && len(w.Spec.Rules)+len(old) <= maxRules {
				next := w.DeepCopy()
				next.Spec.Rules = append(next.Spec.Rules, old...)
				w, retained = next, true
			}
		}
		second = append(second, w)
	}
	return second, retained
}

// divide tells the rules for requests from the spare ones.
func divide(rules []gatewayv1.HTTPRouteRule) (main, spare []gatewayv1.HTTPRouteRule) {
	for _, rule := range rules {
		if slices.ContainsFunc(rule.Matches, func(m gatewayv1.HTTPRouteMatch) bool {
			return slices.ContainsFunc(m.Headers, func(h gatewayv1.HTTPHeaderMatch) bool { return h.Name == wire.HeaderBackend })
		}) {
			spare = append(spare, rule)
		} else {
			main = append(main, rule)
		}
	}
	return main, spare
}

func backendName(ref gatewayv1.HTTPBackendRef) string {
	return fmt.Sprintf("%s:%d", ref.Name, ptr.Deref(ref.Port, 0))
}

func named(rules []gatewayv1.HTTPRouteRule) map[string]bool {
	out := map[string]bool{}
	for _, rule := range rules {
		for _, ref := range rule.BackendRefs {
			out[backendName(ref)] = true
		}
	}
	return out
}

// spares returns a rule for each backend of the rules that is not among the known ones, and the
// values of the header that they match.
func spares(rules []gatewayv1.HTTPRouteRule, known map[string]bool) (out []gatewayv1.HTTPRouteRule, values []string) {
	for _, rule := range rules {
		for _, ref := range rule.BackendRefs {
			value := backendName(ref)
			if known[value] || slices.Contains(values, value) {
				continue
			}
			one := *rule.DeepCopy()
			one.BackendRefs = []gatewayv1.HTTPBackendRef{*ref.DeepCopy()}
			one.Matches = []gatewayv1.HTTPRouteMatch{{
				Path: &gatewayv1.HTTPPathMatch{Type: ptr.To(gatewayv1.PathMatchPathPrefix), Value: ptr.To("/")},
				Headers: []gatewayv1.HTTPHeaderMatch{
					{Type: ptr.To(gatewayv1.HeaderMatchExact), Name: wire.HeaderBackend, Value: value}},
			}}
			for _, f := range one.Filters {
				if m := f.RequestHeaderModifier; m != nil && !slices.Contains(m.Remove, wire.HeaderBackend) {
					m.Remove = append(m.Remove, wire.HeaderBackend)
				}
			}
			out, values = append(out, one), append(values, value)
		}
	}
	return out, values
}
