// Package gatewayapi translates plans to objects of the Gateway API.
//
// Owns: names, metadata and content of the HTTPRoutes of a Route. Reads: nothing but its arguments.
// Writes: nothing. Never: uses features of a single implementation; puts more rules into an
// HTTPRoute than the API allows.
package gatewayapi

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// What one HTTPRoute can hold at most.
const (
	maxRules   = 16
	maxParents = 32
)

// requestTimeout is the feature of Gateways that support timeouts.request.
const requestTimeout = "HTTPRouteRequestTimeout"

// internalHeaders are what activator, queue-proxy and mappings tell each other. From a client they
// would set the Host that the container sees, or how its load is counted.
var internalHeaders = []string{wire.HeaderOriginalHost, wire.HeaderProxyRequest, wire.HeaderNoQueue}

// Meta is what the HTTPRoutes inherit from their Route.
type Meta struct {
	Labels, Annotations map[string]string
	Owner               metav1.OwnerReference
	// ListenerSets are those that the owner has, in the order of their names.
	ListenerSets []*unstructured.Unstructured
}

// HTTPRoutes translates a plan. There is one HTTPRoute for each target and visibility, or more if
// the rules do not fit. The name is the host, so two Routes in a namespace with the same host
// conflict in the name.
func HTTPRoutes(p *plan.Plan, gateways settings.Gateway, meta Meta) []*gatewayv1.HTTPRoute {
	hash := p.Hash()
	var out []*gatewayv1.HTTPRoute
	for _, target := range p.Targets {
		on := gateways.External
		if target.Visibility == plan.ClusterLocal {
			on = gateways.Local
		}
		t := translator{plan: p, target: target, on: on, meta: meta, hash: hash}
		var rules []gatewayv1.HTTPRouteRule
		for _, rule := range target.Rules {
			rules = append(rules, t.rule(rule))
		}
		rules = placed(string(meta.Owner.UID), rules)
		if target.Plain == plan.HTTPRedirected {
			// Each listener gets an HTTPRoute of its own: the plain one redirects, the other
			// serves.
			out = append(out, t.httpRoute(Name(target)+"-redirect", t.plain, []gatewayv1.HTTPRouteRule{t.redirect()}))
			out = append(out, t.split(rules, t.secure)...)
			continue
		}
		out = append(out, t.split(rules, t.both)...)
	}
	return out
}

// Name returns the name of a target's first HTTPRoute: its host, or the longest of the three hosts
// of a local target.
func Name(target plan.Target) string { return target.Hosts[len(target.Hosts)-1] }

// ListenerName returns the name of the listener that terminates TLS for a host.
func ListenerName(host string) string { return "https-" + plan.ShortHash(host) }

// attach returns the listeners of the i-th Gateway of a target that an HTTPRoute is for.
type attach func(i int, g settings.GatewayRef) []gatewayv1.ParentReference

func parent(kind, namespace, name, section string) gatewayv1.ParentReference {
	ref := gatewayv1.ParentReference{
		Group: ptr.To(gatewayv1.Group(gatewayv1.GroupName)), Kind: ptr.To(gatewayv1.Kind(kind)),
		Namespace: ptr.To(gatewayv1.Namespace(namespace)), Name: gatewayv1.ObjectName(name),
	}
	if section != "" {
		ref.SectionName = ptr.To(gatewayv1.SectionName(section))
	}
	return ref
}

// plain returns the listener for plain HTTP.
func (t translator) plain(_ int, g settings.GatewayRef) []gatewayv1.ParentReference {
	section := g.HTTPListener
	if section == "" {
		section = "http"
	}
	return []gatewayv1.ParentReference{parent("Gateway", g.Namespace(), g.Name(), section)}
}

// secure returns the listeners that terminate TLS for the target.
func (t translator) secure(i int, g settings.GatewayRef) (out []gatewayv1.ParentReference) {
	if TakesListenerSets(g) {
		return []gatewayv1.ParentReference{parent("ListenerSet", t.plan.Namespace, t.listenerSetName(i, g), "")}
	}
	for _, host := range t.target.Hosts {
		out = append(out, parent("Gateway", g.Namespace(), g.Name(), ListenerName(host)))
	}
	return out
}

// both returns all listeners of the host.
func (t translator) both(i int, g settings.GatewayRef) []gatewayv1.ParentReference {
	whole := []gatewayv1.ParentReference{parent("Gateway", g.Namespace(), g.Name(), "")}
	if t.target.TLSSecret != "" && TakesListenerSets(g) {
		return append(whole, t.secure(i, g)...)
	}
	return whole
}

type translator struct {
	plan   *plan.Plan
	target plan.Target
	on     []settings.GatewayRef
	meta   Meta
	hash   string
}

func (t translator) split(rules []gatewayv1.HTTPRouteRule, to attach) []*gatewayv1.HTTPRoute {
	var out []*gatewayv1.HTTPRoute
	name := Name(t.target)
	for i := 0; len(rules) > 0; i++ {
		n := min(len(rules), maxRules)
		if i > 0 {
			name = fmt.Sprintf("%s-%d", Name(t.target), i+1)
		}
		out = append(out, t.httpRoute(name, to, rules[:n]))
		rules = rules[n:]
	}
	return out
}

func (t translator) httpRoute(name string, to attach, rules []gatewayv1.HTTPRouteRule) *gatewayv1.HTTPRoute {
	labels := maps.Clone(t.meta.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[names.RouteLabel] = t.plan.Name
	labels[names.RouteNamespaceLabel] = t.plan.Namespace
	delete(labels, names.VisibilityLabel)
	if t.target.Visibility == plan.ClusterLocal {
		labels[names.VisibilityLabel] = names.VisibilityClusterLocal
	}
	route := &gatewayv1.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: t.plan.Namespace, Labels: labels, Annotations: maps.Clone(t.meta.Annotations),
			OwnerReferences: []metav1.OwnerReference{t.meta.Owner},
		},
		Spec: gatewayv1.HTTPRouteSpec{Rules: rules},
	}
	for i, g := range t.on {
		route.Spec.ParentRefs = append(route.Spec.ParentRefs, to(i, g)...)
	}
	for _, host := range t.target.Hosts {
		route.Spec.Hostnames = append(route.Spec.Hostnames, gatewayv1.Hostname(host))
	}
	return route
}

func (t translator) match(header *plan.Header, path string) []gatewayv1.HTTPRouteMatch {
	m := gatewayv1.HTTPRouteMatch{Path: &gatewayv1.HTTPPathMatch{Type: ptr.To(gatewayv1.PathMatchPathPrefix), Value: ptr.To(path)}}
	if header != nil {
		m.Headers = []gatewayv1.HTTPHeaderMatch{{
			Type: ptr.To(gatewayv1.HeaderMatchExact), Name: gatewayv1.HTTPHeaderName(header.Name), Value: header.Value}}
	}
	return []gatewayv1.HTTPRouteMatch{m}
}

// rule adds the plan's hash to every request. The answer to a probe returns it, so it tells which
// plan a gateway follows.
func (t translator) rule(r plan.Rule) gatewayv1.HTTPRouteRule {
	set := append([]plan.Header{{Name: wire.HeaderNetworkHash, Value: t.hash}}, r.Set...)
	rule := gatewayv1.HTTPRouteRule{Matches: t.match(r.Match, cmp.Or(r.Path, "/"))}
	for _, b := range r.Backends {
		ref := gatewayv1.HTTPBackendRef{BackendRef: gatewayv1.BackendRef{
			BackendObjectReference: gatewayv1.BackendObjectReference{
				Group: ptr.To(gatewayv1.Group("")), Kind: ptr.To(gatewayv1.Kind("Service")),
				Name: gatewayv1.ObjectName(b.Service), Port: ptr.To(gatewayv1.PortNumber(b.Port)),
			},
			Weight: ptr.To(int32(b.Percent)),
		}}
		if b.Namespace != "" {
			ref.Namespace = ptr.To(gatewayv1.Namespace(b.Namespace))
		}
		if len(r.Backends) == 1 {
			set = append(set, b.Set...) // for a single backend, headers of the rule are cheaper
		} else {
			ref.Filters = setHeaders(b.Set)
		}
		rule.BackendRefs = append(rule.BackendRefs, ref)
	}
	rule.Filters = setHeaders(set)
	rule.Filters[0].RequestHeaderModifier.Remove = slices.Concat(internalHeaders, r.Remove)
	// The revision's queue-proxy enforces its timeouts. A gateway must not add one of its own.
	if len(t.on) > 0 && !slices.ContainsFunc(t.on, func(g settings.GatewayRef) bool {
		return !slices.Contains(g.SupportedFeatures, requestTimeout)
	}) {
		rule.Timeouts = &gatewayv1.HTTPRouteTimeouts{Request: ptr.To(gatewayv1.Duration("0s"))}
	}
	return rule
}

func (t translator) redirect() gatewayv1.HTTPRouteRule {
	return gatewayv1.HTTPRouteRule{
		Matches: t.match(nil, "/"),
		Filters: []gatewayv1.HTTPRouteFilter{{
			Type: gatewayv1.HTTPRouteFilterRequestRedirect,
			RequestRedirect: &gatewayv1.HTTPRequestRedirectFilter{
				Scheme: ptr.To("https"), Port: ptr.To(gatewayv1.PortNumber(443)), StatusCode: ptr.To(301),
			},
		}},
	}
}

func setHeaders(headers []plan.Header) []gatewayv1.HTTPRouteFilter {
	if len(headers) == 0 {
		return nil
	}
	modifier := &gatewayv1.HTTPHeaderFilter{}
	for _, h := range headers {
		modifier.Set = append(modifier.Set, gatewayv1.HTTPHeader{Name: gatewayv1.HTTPHeaderName(h.Name), Value: h.Value})
	}
	return []gatewayv1.HTTPRouteFilter{{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier, RequestHeaderModifier: modifier}}
}
