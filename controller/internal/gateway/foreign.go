package gateway

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

// byForeignHost indexes the HTTPRoutes and GRPCRoutes that are not Ebb's by their hosts; "" is all
// hosts.
const byForeignHost = "foreign host"

// Foreign tells which HTTPRoutes and GRPCRoutes of others take requests from the common HTTPRoutes.
// Envoy looks into the most specific virtual host only, and of rules in one virtual host those of
// the older object count: so one for the same hosts as the common one takes some of its requests,
// too.
type Foreign struct {
	system     string
	httpRoutes cache.SharedIndexInformer
	grpcRoutes *reconcile.Optional
}

// NewForeign reads the HTTPRoutes and GRPCRoutes of a Manager that does not run yet.
func NewForeign(mgr *reconcile.Manager) Foreign {
	f := Foreign{mgr.SystemNamespace, mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer(), optionalGRPCRoutes(mgr)}
	if _, there := f.httpRoutes.GetIndexer().GetIndexers()[byForeignHost]; there {
		return f
	}
	if err := f.httpRoutes.AddIndexers(cache.Indexers{byForeignHost: f.hosts}); err != nil {
		panic(fmt.Sprintf("index HTTPRoutes of others: %v", err)) // only a started informer refuses
	}
	f.grpcRoutes.Index(byForeignHost, f.hosts)
	return f
}

func (f Foreign) hosts(object any) (keys []string, _ error) {
	h := asHTTPRoute(object)
	if h == nil || !f.is(object) {
		return nil, nil
	}
	for _, host := range h.Spec.Hostnames {
		keys = append(keys, strings.ToLower(string(host)))
	}
	if len(keys) == 0 {
		keys = []string{""}
	}
	return keys, nil
}

// is reports whether an HTTPRoute or a GRPCRoute is not Ebb's, which makes no GRPCRoute.
func (f Foreign) is(object any) bool {
	h, ok := object.(*gatewayv1.HTTPRoute)
	return !ok || ownerKind(h) == "" && (h.Namespace != f.system || h.Labels[names.CommonLabel] == "" && h.Labels[names.BridgeLabel] == "")
}

// Watch calls changed when one of others is made, changed or deleted, or those of the cluster
// become known. c reconciles all keys when the kind GRPCRoute is installed or removed.
func (f Foreign) Watch(c *reconcile.Controller, changed func()) {
	one := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		if f.is(object) {
			changed()
		}
	}
	handler := cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, existed bool) {
			if !existed {
				one(object)
			}
		},
		UpdateFunc: func(before, after any) {
			if before.(metav1.Object).GetGeneration() != after.(metav1.Object).GetGeneration() {
				one(after)
			}
		},
		DeleteFunc: one,
	}
	if _, err := f.httpRoutes.AddEventHandler(handler); err != nil {
		panic(fmt.Sprintf("watch for the HTTPRoutes of others: %v", err)) // only a stopped informer refuses
	}
	c.HandleOptional(f.grpcRoutes, handler)
}

// Unknown reports whether the cluster has GRPCRoutes that nobody has listed yet.
func (f Foreign) Unknown() bool { return f.grpcRoutes.Unknown() }

// Takes returns the HTTPRoute or GRPCRoute of somebody else at one of the Gateways that has a host,
// or a wildcard for it that is no shorter than the common HTTPRoute's, which is "" for all hosts.
// It returns "" if there is none.
func (f Foreign) Takes(host, common string, on []settings.GatewayRef) string {
	for _, one := range above(host, common) {
		found, _ := f.httpRoutes.GetIndexer().ByIndex(byForeignHost, one) // fails only if there is no such index
		for _, object := range found {
			if h := object.(*gatewayv1.HTTPRoute); at(h, on) {
				return "HTTPRoute " + h.Namespace + "/" + h.Name
			}
		}
		for _, object := range f.grpcRoutes.By(byForeignHost, one) {
			if g := asHTTPRoute(object); at(g, on) {
				return "GRPCRoute " + g.Namespace + "/" + g.Name
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
