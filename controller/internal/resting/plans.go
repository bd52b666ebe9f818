package resting

import (
	"strings"

	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// plans are the Routes whose plans activators follow.
type plans struct {
	gateway.Planned
	routes cache.Indexer
}

// exists reports whether there is a Route with this UID.
func (p plans) exists(key reconcile.Key, uid string) bool {
	object, found, err := p.routes.GetByKey(key.String())
	if err != nil || !found {
		return false
	}
	route, ok := object.(*servingv1.Route)
	return ok && string(route.UID) == uid
}

// below reports whether a plan has a public host that a common HTTPRoute is for.
func (p plans) below(h *gatewayv1.HTTPRoute) bool {
	if len(h.Spec.Hostnames) == 0 {
		return p.Len() > 0
	}
	suffix := strings.TrimPrefix(string(h.Spec.Hostnames[0]), "*")
	for _, route := range p.All() {
		for _, host := range p.Hosts(route) {
			if strings.HasSuffix(host, suffix) {
				return true
			}
		}
	}
	return false
}

// Route returns the key and the UID of the Route that a bridge is for.
func Route(bridge *gatewayv1.HTTPRoute) (key reconcile.Key, uid string) {
	key.Namespace, key.Name, _ = strings.Cut(bridge.Annotations[names.BridgeOfAnnotation], "/")
	return key, bridge.Labels[names.BridgeLabel]
}
