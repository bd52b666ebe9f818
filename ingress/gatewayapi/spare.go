package gatewayapi

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/wire"
)

// A gateway may get a route before the backend that it names, and may drop a backend before the
// route that named it. It answers 500 or 503 meanwhile: Istio with
// PILOT_FILTER_GATEWAY_CLUSTER_CONFIG does so, and Envoy Gateway. So backends of live hosts change
// in three writes. For a rollout from A to B:
//
//	requests -> A, spare B      until the gateways reach B
//	requests -> B, spare A      until the gateways follow
//	requests -> B
//
// A spare rule is for requests with wire.HeaderBackend, as probes send them. The header names the
// UID of the Route too, which clients do not know: they cannot choose where a split leads them.
//
// A plan may come twice. A gateway that is behind may have the spare rules of the first time, and
// see them go before it sees those of the second. So the header names a generation of the
// HTTPRoute, too: the one to which the spare rule was added.
//
// Envoy Gateway names the endpoints of a split after the place of its rule, those of any other rule
// after the backend. So a rule that becomes a split, or was one, is not written over: a split has
// its place behind a spare rule, and requests move from one place to the other.
//
//	requests -> A, spare A+B    until the gateways know the split
//	spare A, requests -> A+B    steps of a rollout change the weights only
//	spare B, requests -> A+B    until the gateways reach B alone
//	requests -> B, spare A+B    until the gateways follow
//	requests -> B

// Prepare returns the first of these writes: the HTTPRoutes in have, by name, whose hosts get new
// backends, with spare rules for those. The rules set the given hash. values lists, by the host
// that names the target, what the header of a probe must say to reach each of them. An HTTPRoute
// that has no room for spare rules changes without.
func Prepare(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute, hash string) (first []*gatewayv1.HTTPRoute, values map[string][]string) {
	values = map[string][]string{}
	for _, w := range want {
		h, live := have[w.Name]
		if !live {
			continue
		}
		p := preparation{owner: owner(w), generation: h.Generation, hash: hash}
		p.prepare(h.Spec.Rules, w.Spec.Rules)
		if len(p.rules) > maxRules {
			// Gateways that are behind may miss what earlier plans named.
			p.prepare(slices.DeleteFunc(slices.Clone(h.Spec.Rules), isSpare), w.Spec.Rules)
		}
		if len(p.values) == 0 || len(p.rules) > maxRules {
			continue
		}
		next := h.DeepCopy()
		// Probes of a new gateway need the spare rules there. The API takes a parent without a
		// section only once.
		next.Spec.Rules, next.Spec.ParentRefs = p.rules, slices.Concat(w.Spec.ParentRefs, without(h.Spec.ParentRefs, w.Spec.ParentRefs))
		first = append(first, next)
		host := Host(w)
		for _, value := range p.values {
			if !slices.Contains(values[host], value) {
				values[host] = append(values[host], value)
			}
		}
	}
	return first, values
}

// Host returns the host that names the target of an HTTPRoute (see Name). The rules of a target may
// need several HTTPRoutes.
func Host(h *gatewayv1.HTTPRoute) string {
	if n := len(h.Spec.Hostnames); n > 0 {
		return string(h.Spec.Hostnames[n-1])
	}
	return ""
}

// without returns those of the parents that are not among the others.
func without(have, others []gatewayv1.ParentReference) (out []gatewayv1.ParentReference) {
	for _, h := range have {
		if !slices.ContainsFunc(others, func(o gatewayv1.ParentReference) bool { return same(h, o) }) {
			out = append(out, h)
		}
	}
	return out
}

func same(a, b gatewayv1.ParentReference) bool {
	return ptr.Equal(a.Kind, b.Kind) && ptr.Equal(a.Namespace, b.Namespace) && a.Name == b.Name
}

// Unaccepted returns why the HTTPRoutes in have must not give up the parents that those in want do
// not have, or "". A probe does not tell which Gateway let it through if two have the same pods. So
// where a parent that is to go has accepted its HTTPRoute, those of its kind that come must have.
func Unaccepted(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute) string {
	for _, w := range want {
		h, live := have[w.Name]
		if !live {
			continue
		}
		for _, gone := range without(h.Spec.ParentRefs, w.Spec.ParentRefs) {
			for _, p := range w.Spec.ParentRefs {
				if ptr.Equal(p.Kind, gone.Kind) && accepted(h, gone) && !accepted(h, p) {
					return fmt.Sprintf("%s %q has not accepted HTTPRoute %q", ptr.Deref(p.Kind, "Gateway"), p.Name, w.Name)
				}
			}
		}
	}
	return ""
}

// accepted reports whether a parent says that it has an HTTPRoute.
func accepted(h *gatewayv1.HTTPRoute, parent gatewayv1.ParentReference) bool {
	return slices.ContainsFunc(h.Status.Parents, func(s gatewayv1.RouteParentStatus) bool {
		return same(s.ParentRef, parent) && meta.IsStatusConditionTrue(s.Conditions, string(gatewayv1.RouteConditionAccepted))
	})
}

// preparation is the rules of an HTTPRoute, and the values that reach the spare ones put to them.
type preparation struct {
	owner, hash string
	generation  int64
	rules       []gatewayv1.HTTPRouteRule
	values      []string
	done        map[string]bool // by key
}

func (p *preparation) prepare(have, want []gatewayv1.HTTPRouteRule) {
	p.rules, p.values, p.done = slices.Clone(have), nil, map[string]bool{}
	main := slices.DeleteFunc(slices.Clone(have), isSpare)
	backends, alone := named(main), keys(main)
	for place, rule := range want {
		switch {
		case isSpare(rule) || len(rule.BackendRefs) == 0:
		case isSplit(rule):
			// If it only loses a backend, its spare rule still shows that a gateway has seen the
			// rules that it has now. The wanted ones may be those of a plan before.
			if place >= len(have) || isSpare(have[place]) || key(have[place]) != key(rule) {
				p.put(rule, place)
			}
			for _, ref := range rule.BackendRefs {
				if one := only(rule, ref); !backends[key(one)] {
					p.put(one, -1)
				}
			}
		case !alone[key(rule)]:
			p.put(rule, place)
		}
	}
}

// put adds a spare rule, in the given place if requests do not need what is there.
func (p *preparation) put(rule gatewayv1.HTTPRouteRule, place int) {
	if p.done[key(rule)] {
		return
	}
	p.done[key(rule)] = true
	at := place
	if at < 0 || at >= len(p.rules) || !isSpare(p.rules[at]) {
		at = slices.IndexFunc(p.rules, func(r gatewayv1.HTTPRouteRule) bool { return isSpare(r) && key(r) == key(rule) })
	}
	one := spare(fmt.Sprintf("%s/%d", p.owner, p.generation), rule)
	setHash(one.Filters, p.hash)
	switch {
	case at < 0:
		p.rules = append(p.rules, one)
	case key(p.rules[at]) == key(rule) && hashOf(p.rules[at].Filters) == p.hash && header(p.rules[at]) != p.owner+"/"+key(rule):
		one = p.rules[at] // it was added before, and the rules for requests are the same since
	default:
		p.rules[at] = one
	}
	p.values = append(p.values, header(one))
}

// RetainParents returns want with the parents that the HTTPRoutes have, too: another gateway may
// never serve the hosts, and the present ones do. They go when the gateways of want follow. A
// parent that another one of want has is given up at once, as for a redirect to https.
func RetainParents(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute) (second []*gatewayv1.HTTPRoute, retained bool) {
	var taken []gatewayv1.ParentReference
	for _, w := range want {
		taken = append(taken, w.Spec.ParentRefs...)
	}
	for _, w := range want {
		if h, live := have[w.Name]; live {
			gone := without(h.Spec.ParentRefs, taken)
			if all := slices.Concat(w.Spec.ParentRefs, gone); len(all) > len(w.Spec.ParentRefs) && len(all) <= maxParents {
				w, retained = w.DeepCopy(), true
				w.Spec.ParentRefs = all
			}
		}
		second = append(second, w)
	}
	return second, retained
}

// Retain returns the second write: want, with spare rules for what only have names, and with its
// parents. Rules behind the last rule of want stay in their places.
func Retain(have map[string]*gatewayv1.HTTPRoute, want []*gatewayv1.HTTPRoute) (second []*gatewayv1.HTTPRoute, retained bool) {
	want, retained = RetainParents(have, want)
	for _, w := range want {
		if h, live := have[w.Name]; live {
			var stay, moved []gatewayv1.HTTPRouteRule
			for i, rule := range h.Spec.Rules {
				for _, one := range lost(rule, i, w.Spec.Rules) {
					switch {
					case i >= len(w.Spec.Rules):
						stay = append(stay, spare(owner(w), one))
					case !keys(moved)[key(one)]:
						moved = append(moved, spare(owner(w), one))
					}
				}
			}
			if n := len(stay) + len(moved); n > 0 && len(w.Spec.Rules)+n <= maxRules {
				next := w.DeepCopy()
				next.Spec.Rules = slices.Concat(next.Spec.Rules, stay, moved)
				w, retained = next, true
			}
		}
		second = append(second, w)
	}
	return second, retained
}

// lost returns what the rule in place i led to and gateways that follow want no longer know, as
// rules. A split that becomes another one in its place loses single backends.
func lost(rule gatewayv1.HTTPRouteRule, i int, want []gatewayv1.HTTPRouteRule) (out []gatewayv1.HTTPRouteRule) {
	there := keys(want)
	if isSplit(rule) || isSpare(rule) {
		there = named(want)
	}
	switch {
	case len(rule.BackendRefs) == 0:
	case isSplit(rule) && i < len(want) && isSplit(want[i]):
		for _, ref := range rule.BackendRefs {
			if one := only(rule, ref); !there[key(one)] {
				out = append(out, one)
			}
		}
	case isSplit(rule) || !there[key(rule)]:
		out = append(out, rule)
	}
	return out
}

func isSpare(rule gatewayv1.HTTPRouteRule) bool {
	return slices.ContainsFunc(rule.Matches, func(m gatewayv1.HTTPRouteMatch) bool {
		return slices.ContainsFunc(m.Headers, func(h gatewayv1.HTTPHeaderMatch) bool { return h.Name == wire.HeaderBackend })
	})
}

// header returns what wire.HeaderBackend says in requests for a spare rule.
func header(spare gatewayv1.HTTPRouteRule) string { return spare.Matches[0].Headers[0].Value }

func isSplit(rule gatewayv1.HTTPRouteRule) bool { return len(rule.BackendRefs) > 1 }

// key tells where the requests of a rule go: "hello-00001:80,hello-00002:80".
func key(rule gatewayv1.HTTPRouteRule) string {
	var out []string
	for _, ref := range rule.BackendRefs {
		out = append(out, fmt.Sprintf("%s:%d", ref.Name, ptr.Deref(ref.Port, 0)))
	}
	return strings.Join(out, ",")
}

func keys(rules []gatewayv1.HTTPRouteRule) map[string]bool {
	out := map[string]bool{}
	for _, rule := range rules {
		out[key(rule)] = true
	}
	return out
}

// named returns the backends of the rules.
func named(rules []gatewayv1.HTTPRouteRule) map[string]bool {
	out := map[string]bool{}
	for _, rule := range rules {
		for _, one := range strings.Split(key(rule), ",") {
			out[one] = true
		}
	}
	return out
}

// only returns the rule for one of its backends, as it is written for that alone.
func only(rule gatewayv1.HTTPRouteRule, ref gatewayv1.HTTPBackendRef) gatewayv1.HTTPRouteRule {
	rule, ref = *rule.DeepCopy(), *ref.DeepCopy()
	for _, f := range rule.Filters {
		for _, own := range ref.Filters {
			if f.RequestHeaderModifier != nil && own.RequestHeaderModifier != nil {
				f.RequestHeaderModifier.Set = append(f.RequestHeaderModifier.Set, own.RequestHeaderModifier.Set...)
			}
		}
	}
	ref.Filters = nil
	rule.BackendRefs = []gatewayv1.HTTPBackendRef{ref}
	return rule
}

// owner returns the UID of the Route of an HTTPRoute.
func owner(of *gatewayv1.HTTPRoute) string { return string(of.OwnerReferences[0].UID) }

// spare returns the rule for probes of its backends. Their wire.HeaderBackend says
// "<of>/hello-00001:80,hello-00002:80".
func spare(of string, rule gatewayv1.HTTPRouteRule) gatewayv1.HTTPRouteRule {
	rule = *rule.DeepCopy()
	rule.Matches = []gatewayv1.HTTPRouteMatch{{
		Path: &gatewayv1.HTTPPathMatch{Type: ptr.To(gatewayv1.PathMatchPathPrefix), Value: ptr.To("/")},
		Headers: []gatewayv1.HTTPHeaderMatch{
			{Type: ptr.To(gatewayv1.HeaderMatchExact), Name: wire.HeaderBackend, Value: of + "/" + key(rule)}},
	}}
	for _, f := range rule.Filters {
		if m := f.RequestHeaderModifier; m != nil && !slices.Contains(m.Remove, wire.HeaderBackend) {
			m.Remove = append(m.Remove, wire.HeaderBackend)
		}
	}
	return rule
}

// placed puts a spare rule in front of each split. It keeps the place of a rule that was no split.
func placed(of string, rules []gatewayv1.HTTPRouteRule) (out []gatewayv1.HTTPRouteRule) {
	for _, rule := range rules {
		if isSplit(rule) {
			out = append(out, spare(of, only(rule, rule.BackendRefs[0])))
		}
		out = append(out, rule)
	}
	return out
}
