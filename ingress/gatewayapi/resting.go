package gatewayapi

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/resting"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// ToActivators is an HTTPRoute of Ebb that leads hosts to the activators, which follow the plans of
// the hosts: a common HTTPRoute or a bridge.
type ToActivators struct {
	Namespace, Name string // Ebb's namespace
	Visibility      plan.Visibility
	// Hosts are names or wildcards; none is every host of the Gateways.
	Hosts []string
	// Stamp tells a bridge from what it was before.
	Stamp string
}

// HTTPRoute translates it. The hash is like a plan's. Two that are alike but for the name have the
// same: of these, either one serves.
func (a ToActivators) HTTPRoute(gateways settings.Gateway, meta Meta) (route *gatewayv1.HTTPRoute, hash string) {
	t := translator{plan: &plan.Plan{Namespace: a.Namespace, Name: a.Name}, on: gateways.External, meta: meta,
		target: plan.Target{Hosts: a.Hosts, Visibility: a.Visibility}}
	if a.Visibility == plan.ClusterLocal {
		t.on = gateways.Local
	}
	raw, err := json.Marshal(struct {
		V plan.Visibility
		H []string
		S string `json:",omitempty"`
	}{a.Visibility, a.Hosts, a.Stamp})
	if err != nil {
		panic(fmt.Sprintf("names are plain data: %v", err))
	}
	t.hash = plan.ShortHash(string(raw))
	// A client must not name a revision: activators would believe it before they look at the host.
	rule := t.rule(plan.Rule{
		Set:      []plan.Header{{Name: wire.HeaderResting, Value: string(a.Visibility)}},
		Remove:   []string{wire.HeaderNamespace, wire.HeaderRevision},
		Backends: []plan.Backend{{Service: plan.Resting, Port: 80, Percent: 100}},
	})
	route = t.httpRoute(a.Name, t.both, []gatewayv1.HTTPRouteRule{rule})
	delete(route.Labels, names.RouteLabel)
	delete(route.Labels, names.RouteNamespaceLabel)
	if meta.Owner.UID == "" {
		route.OwnerReferences = nil
	}
	return route, t.hash
}

// Spares returns HTTPRoutes with the rules of others as spare ones, each in its place, and no rule
// that a request matches. Behind them are spare rules for the single revisions of a split, as far
// as there is room. values lists, by the host that names the target, what the header of a probe
// must say to reach each of them. It is for hosts that a bridge serves meanwhile.
func Spares(want []*gatewayv1.HTTPRoute) (first []*gatewayv1.HTTPRoute, values map[string][]string) {
	values = map[string][]string{}
	for _, w := range want {
		next, reached := w.DeepCopy(), values[Host(w)]
		for i, rule := range w.Spec.Rules {
			one := rule
			if !isSpare(rule) {
				one = spare(owner(w), rule)
				next.Spec.Rules[i] = one
			}
			if len(rule.BackendRefs) > 0 && !slices.Contains(reached, header(one)) {
				reached = append(reached, header(one))
			}
		}
		for _, rule := range w.Spec.Rules {
			for _, ref := range rule.BackendRefs {
				one := spare(owner(w), only(rule, ref))
				if isSplit(rule) && len(next.Spec.Rules) < maxRules && !slices.Contains(reached, header(one)) {
					next.Spec.Rules, reached = append(next.Spec.Rules, one), append(reached, header(one))
				}
			}
		}
		first, values[Host(w)] = append(first, next), reached
	}
	return first, values
}

// Full reports whether requests match a rule of an HTTPRoute, which may be nil.
func Full(h *gatewayv1.HTTPRoute) bool {
	return h != nil && slices.ContainsFunc(h.Spec.Rules, func(r gatewayv1.HTTPRouteRule) bool { return !isSpare(r) })
}

// HashOf returns what the first rule of an HTTPRoute has probes answered.
func HashOf(h *gatewayv1.HTTPRoute) string {
	if h == nil || len(h.Spec.Rules) == 0 {
		return ""
	}
	return hashOf(h.Spec.Rules[0].Filters)
}

// Rules says what the HTTPRoutes of a target are, by name, if it is to have those of want.
func Rules(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute) (out resting.Rules) {
	spares, _ := Spares(want)
	for _, w := range spares {
		switch h := have[w.Name]; {
		case h == nil:
			out |= resting.Missing
		case Full(h):
			out |= resting.Full
		case equality.Semantic.DeepEqual(h.Spec, w.Spec):
			out |= resting.Spare
		default:
			out |= resting.Old
		}
	}
	for name, h := range have { // the plan had more rules before
		if !slices.ContainsFunc(want, func(w *gatewayv1.HTTPRoute) bool { return w.Name == name }) {
			if Full(h) {
				out |= resting.Full
			} else {
				out |= resting.Old
			}
		}
	}
	return out
}
