package gateway

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// byService indexes HTTPRoutes by the Services of their namespace that they name.
const byService = "service"

// Led tells which Services HTTPRoutes name, and the plans that activators follow. Requests may go
// there, whatever the objects say that the HTTPRoutes were made from: an update of those may not
// have got as far as the gateways.
type Led struct {
	httpRoutes cache.Indexer
	planned    Planned
}

// NewLed reads the HTTPRoutes and Routes of informers that have not started yet.
func NewLed(informer, routes cache.SharedIndexInformer) Led {
	if _, there := informer.GetIndexer().GetIndexers()[byService]; !there {
		err := informer.AddIndexers(cache.Indexers{byService: func(object any) (keys []string, _ error) {
			if h, ok := object.(*gatewayv1.HTTPRoute); ok {
				for name := range Services(h) {
					keys = append(keys, h.Namespace+"/"+name)
				}
			}
			return keys, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index HTTPRoutes by Service: %v", err)) // only a started informer refuses
		}
	}
	return Led{informer.GetIndexer(), NewPlanned(routes)}
}

// To reports whether an HTTPRoute or a plan names the Service.
func (l Led) To(namespace, service string) (bool, error) {
	list, err := l.httpRoutes.ByIndex(byService, namespace+"/"+service)
	return len(list) > 0 || l.planned.LeadsTo(namespace, service), err
}

// ByPlan reports whether activators that follow a plan lead to a revision. They need no public
// Service.
func (l Led) ByPlan(namespace, revision string) bool { return l.planned.LeadsTo(namespace, revision) }

// Services returns the names of the Services in its namespace that an HTTPRoute names.
func Services(h *gatewayv1.HTTPRoute) map[string]bool {
	out := map[string]bool{}
	for _, rule := range h.Spec.Rules {
		for _, ref := range rule.BackendRefs {
			if string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(h.Namespace))) == h.Namespace {
				out[string(ref.Name)] = true
			}
		}
	}
	return out
}
