package gatewayapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Mapping is a host whose requests go where those of another host go.
type Mapping struct {
	Host, Namespace string
	Target          string // the other host: <name>.<namespace>.svc.<cluster domain>
	Service         string // the Service of that name, used when there are no Rules
	// Rules are those of the Route's HTTPRoute for Target. With them, requests need not pass the
	// local gateway a second time.
	Rules     []gatewayv1.HTTPRouteRule
	TLSSecret string
	Redirect  bool
}

// Map translates a mapping. The hash is like a plan's.
func Map(m Mapping, gateways settings.Gateway, meta Meta) (routes []*gatewayv1.HTTPRoute, hash string) {
	t := m.translator(gateways, meta)
	// Revisions are named by headers, so the Host stays as the client sent it, with its port.
	var own []gatewayv1.HTTPRouteRule
	for _, rule := range m.Rules {
		own = append(own, *rule.DeepCopy())
	}
	if len(own) == 0 {
		rule := t.rule(plan.Rule{Backends: []plan.Backend{{Service: m.Service, Port: 80, Percent: 100}}})
		rule.Filters = rewrite(rule.Filters, m)
		own = append(own, rule)
	}
	raw, err := json.Marshal(struct {
		M Mapping
		R []gatewayv1.HTTPRouteRule
	}{m, own})
	if err != nil {
		panic(fmt.Sprintf("rules are plain data: %v", err))
	}
	hash = plan.ShortHash(string(raw))
	for i := range own {
		setHash(own[i].Filters, hash)
	}
	if m.Redirect && m.TLSSecret != "" {
		routes = append(routes, t.httpRoute(m.Host+"-redirect", t.plain, []gatewayv1.HTTPRouteRule{t.redirect()}))
		routes = append(routes, t.split(own, t.secure)...)
	} else {
		routes = t.split(own, t.both)
	}
	for _, r := range routes {
		delete(r.Labels, names.RouteLabel)
		delete(r.Labels, names.RouteNamespaceLabel)
		maps.Copy(r.Labels, meta.Labels)
	}
	return routes, hash
}

// MapTLSListeners returns the ListenerSets of a mapping, as TLSListeners does for a Route.
func MapTLSListeners(m Mapping, gateways settings.Gateway, meta Meta) []*unstructured.Unstructured {
	return m.translator(gateways, meta).listenerSets()
}

func (m Mapping) translator(gateways settings.Gateway, meta Meta) translator {
	return translator{
		plan: &plan.Plan{Namespace: m.Namespace}, on: gateways.External, meta: meta,
		target: plan.Target{Hosts: []string{m.Host}, Visibility: plan.External, TLSSecret: m.TLSSecret},
	}
}

// rewrite adds the original host in a header and sets the host of the target.
func rewrite(filters []gatewayv1.HTTPRouteFilter, m Mapping) []gatewayv1.HTTPRouteFilter {
	original := gatewayv1.HTTPHeader{Name: wire.HeaderOriginalHost, Value: m.Host}
	found := false
	for _, f := range filters {
		if modifier := f.RequestHeaderModifier; modifier != nil {
			modifier.Set = append(modifier.Set, original)
			// Setting replaces what the client sent. One header cannot be set and removed.
			modifier.Remove = slices.DeleteFunc(modifier.Remove, func(name string) bool { return name == wire.HeaderOriginalHost })
			found = true
		}
	}
	if !found {
		filters = append(filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterRequestHeaderModifier,
			RequestHeaderModifier: &gatewayv1.HTTPHeaderFilter{Set: []gatewayv1.HTTPHeader{original}}})
	}
	return append(filters, gatewayv1.HTTPRouteFilter{Type: gatewayv1.HTTPRouteFilterURLRewrite,
		URLRewrite: &gatewayv1.HTTPURLRewriteFilter{Hostname: ptr.To(gatewayv1.PreciseHostname(m.Target))}})
}

func setHash(filters []gatewayv1.HTTPRouteFilter, hash string) {
	for _, f := range filters {
		if f.RequestHeaderModifier == nil {
			continue
		}
		for i, h := range f.RequestHeaderModifier.Set {
			if h.Name == wire.HeaderNetworkHash {
				f.RequestHeaderModifier.Set[i].Value = hash
			}
		}
	}
}

// hashOf returns the hash that setHash has set.
func hashOf(filters []gatewayv1.HTTPRouteFilter) string {
	for _, f := range filters {
		if f.RequestHeaderModifier == nil {
			continue
		}
		for _, h := range f.RequestHeaderModifier.Set {
			if h.Name == wire.HeaderNetworkHash {
				return h.Value
			}
		}
	}
	return ""
}

// Listener returns the listener that terminates TLS for a host. Gateways are shared, so the API
// server merges the listeners of a Gateway by name.
func Listener(host, secretNamespace, secret string) gatewayv1.Listener {
	return gatewayv1.Listener{
		Name: gatewayv1.SectionName(ListenerName(host)), Hostname: ptr.To(gatewayv1.Hostname(host)), Port: 443,
		Protocol: gatewayv1.HTTPSProtocolType,
		TLS: &gatewayv1.ListenerTLSConfig{
			Mode: ptr.To(gatewayv1.TLSModeTerminate),
			CertificateRefs: []gatewayv1.SecretObjectReference{{
				Group: ptr.To(gatewayv1.Group("")), Kind: ptr.To(gatewayv1.Kind("Secret")),
				Namespace: ptr.To(gatewayv1.Namespace(secretNamespace)), Name: gatewayv1.ObjectName(secret),
			}},
		},
		AllowedRoutes: &gatewayv1.AllowedRoutes{Namespaces: &gatewayv1.RouteNamespaces{From: ptr.To(gatewayv1.NamespacesFromAll)}},
	}
}

// GrantName returns the name of the ReferenceGrant by which a Gateway may read a Secret.
func GrantName(secret string) string { return names.Child(secret, "-gateway") }
