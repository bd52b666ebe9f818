package route

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
)

const (
	byHost = "host"
	// reasonHostTaken is the reason of IngressReady if a Route of another namespace has a host.
	reasonHostTaken = "HostTaken"
	// hostAgain is the interval at which a Route looks whether the other one still has the host.
	hostAgain = 30 * time.Second
)

// indexByHost indexes the HTTPRoutes of Routes by their hosts.
func indexByHost(informer cache.SharedIndexInformer) cache.Indexer {
	err := informer.AddIndexers(cache.Indexers{byHost: func(object any) (hosts []string, _ error) {
		h, ok := object.(*gatewayv1.HTTPRoute)
		if !ok || h.Labels[names.RouteLabel] == "" || metav1.GetControllerOfNoCopy(h) == nil {
			return nil, nil
		}
		for _, host := range h.Spec.Hostnames {
			hosts = append(hosts, string(host))
		}
		return hosts, nil
	}})
	if err != nil {
		panic(fmt.Sprintf("index HTTPRoutes by host: %v", err)) // only a started informer refuses
	}
	return informer.GetIndexer()
}

// ofSameHosts returns the Routes that an HTTPRoute concerns: its own, and those with its hosts.
func (r *reconciler) ofSameHosts(object any) []reconcile.Key {
	owner := reconcile.ControllerOf("Route")
	keys := owner(object)
	if h, ok := object.(*gatewayv1.HTTPRoute); ok {
		for _, host := range h.Spec.Hostnames {
			same, _ := r.byHost.ByIndex(byHost, string(host)) // fails only if there is no such index
			for _, other := range same {
				if other.(*gatewayv1.HTTPRoute).Namespace != h.Namespace {
					keys = append(keys, owner(other)...)
				}
			}
		}
	}
	return keys
}

// yieldHost returns a public host of the plan that a Route of another namespace has, or "". The
// domain template decides whether that can be: with {{.Name}}-{{.Namespace}}, a-b in c and a in b-c
// have one host. The Route whose HTTPRoute is older has the host, as in the Gateway API. The other
// one has no HTTPRoute for it: a rule with a header would win over those of the older.
func (r *reconciler) yieldHost(ctx context.Context, route *servingv1.Route, p *plan.Plan) (string, error) {
	for _, target := range p.Targets {
		if target.Visibility == plan.ClusterLocal {
			continue // these hosts have the namespace in them
		}
		for _, host := range target.Hosts {
			all, err := r.byHost.ByIndex(byHost, host)
			if err != nil {
				return "", err
			}
			var own []*gatewayv1.HTTPRoute
			var other *gatewayv1.HTTPRoute
			for _, object := range all {
				switch h := object.(*gatewayv1.HTTPRoute); {
				case h.Namespace == route.Namespace && metav1.IsControlledBy(h, route):
					own = append(own, h)
				case h.Namespace != route.Namespace && (other == nil || older(h, other)):
					other = h
				}
			}
			if other == nil || len(own) > 0 && older(own[0], other) {
				continue
			}
			for _, h := range own {
				if err := apply.Delete(ctx, r.gateways.GatewayV1().HTTPRoutes(h.Namespace), "HTTPRoute", h, metav1.DeleteOptions{}); err != nil {
					return "", err
				}
			}
			return host, nil
		}
	}
	return "", nil
}

func older(a, b *gatewayv1.HTTPRoute) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Namespace < b.Namespace
}
