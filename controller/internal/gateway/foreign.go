package gateway

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/settings"
)

// byForeignHost indexes the HTTPRoutes that are not Ebb's by their hosts; "" is all hosts.
const byForeignHost = "foreign host"

// Foreign tells which HTTPRoutes of others take requests from the common HTTPRoutes. Envoy looks
// into the most specific virtual host only, and of rules in one virtual host those of the older
// HTTPRoute count: so one for the same hosts as the common one takes some of its requests, too.
type Foreign struct {
	system     string
	httpRoutes cache.Indexer
}

// NewForeign reads the HTTPRoutes of an informer that has not started yet.
func NewForeign(informer cache.SharedIndexInformer, system string) Foreign {
	f := Foreign{system, informer.GetIndexer()}
	if _, there := f.httpRoutes.GetIndexers()[byForeignHost]; there {
		return f
	}
	err := informer.AddIndexers(cache.Indexers{byForeignHost: func(object any) (keys []string, _ error) {
		h, ok := object.(*gatewayv1.HTTPRoute)
		if !ok || !f.Is(h) {
			return nil, nil
		}
		for _, host := range h.Spec.Hostnames {
			keys = append(keys, strings.ToLower(string(host)))
		}
		if len(keys) == 0 {
			keys = []string{""}
		}
		return keys, nil
	}})
	if err != nil {
		panic(fmt.Sprintf("index HTTPRoutes of others: %v", err)) // only a started informer refuses
	}
	return f
}

// Is reports whether an HTTPRoute is not Ebb's.
func (f Foreign) Is(h *gatewayv1.HTTPRoute) bool {
	return ownerKind(h) == "" && (h.Namespace != f.system || h.Labels[names.CommonLabel] == "" && h.Labels[names.BridgeLabel] == "")
}

// Takes returns the HTTPRoute of somebody else at one of the Gateways that has a host, or a
// wildcard for it that is no shorter than the common HTTPRoute's, which is "" for all hosts. It
// returns "" if there is none.
func (f Foreign) Takes(host, common string, on []settings.GatewayRef) string {
	for _, one := range above(host, common) {
		found, _ := f.httpRoutes.ByIndex(byForeignHost, one) // fails only if there is no such index
		for _, object := range found {
			if h := object.(*gatewayv1.HTTPRoute); at(h, on) {
				return h.Namespace + "/" + h.Name
			}
		}
	}
	return ""
}

// above returns a host and the wildcards for it, down to the common one.
func above(host, common string) []string {
	out := []string{host}
	for rest := host; rest != ""; {
		if _, rest, _ = strings.Cut(rest, "."); rest != "" {
			out = append(out, "*."+rest)
		}
		if "*."+rest == common {
			return out
		}
	}
	return append(out, "")
}

// at reports whether an HTTPRoute may be at one of the Gateways. A ListenerSet may be at any.
func at(h *gatewayv1.HTTPRoute, on []settings.GatewayRef) bool {
	return slices.ContainsFunc(h.Spec.ParentRefs, func(p gatewayv1.ParentReference) bool {
		if kind := ptr.Deref(p.Kind, "Gateway"); kind != "Gateway" {
			return kind == "ListenerSet"
		}
		return slices.ContainsFunc(on, func(g settings.GatewayRef) bool {
			return string(p.Name) == g.Name() && string(ptr.Deref(p.Namespace, gatewayv1.Namespace(h.Namespace))) == g.Namespace()
		})
	})
}
