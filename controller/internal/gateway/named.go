package gateway

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// byNamed indexes HTTPRoutes by the Services that they name, whatever their namespaces are.
const byNamed = "named"

// Named tells which Services HTTPRoutes name, those of others too, with backends of other
// namespaces, those that get a copy of each request, and those whose clients a mesh leads.
type Named struct{ httpRoutes cache.Indexer }

// NewNamed reads the HTTPRoutes of an informer that has not started yet.
func NewNamed(informer cache.SharedIndexInformer) Named {
	if _, there := informer.GetIndexer().GetIndexers()[byNamed]; !there {
		err := informer.AddIndexers(cache.Indexers{byNamed: func(object any) (keys []string, _ error) {
			for _, key := range AllServices(object) {
				keys = append(keys, key.String())
			}
			return keys, nil
		}})
		if err != nil {
			panic(fmt.Sprintf("index HTTPRoutes by what they name: %v", err)) // only a started informer refuses
		}
	}
	return Named{informer.GetIndexer()}
}

// By reports whether an HTTPRoute names the Service.
func (n Named) By(service types.NamespacedName) bool {
	keys, _ := n.httpRoutes.IndexKeys(byNamed, service.String()) // fails only if there is no such index
	return len(keys) > 0
}

// AllServices returns the Services that an HTTPRoute names.
func AllServices(object any) (out []types.NamespacedName) {
	h, ok := object.(*gatewayv1.HTTPRoute)
	if !ok {
		return nil
	}
	add := func(ref gatewayv1.BackendObjectReference) {
		if ptr.Deref(ref.Group, "") == "" && ptr.Deref(ref.Kind, "Service") == "Service" {
			out = append(out, types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(h.Namespace))), Name: string(ref.Name)})
		}
	}
	filters := func(all []gatewayv1.HTTPRouteFilter) {
		for _, f := range all {
			if f.RequestMirror != nil {
				add(f.RequestMirror.BackendRef)
			}
		}
	}
	for _, ref := range h.Spec.ParentRefs {
		if group := gatewayv1.Group(gatewayv1.GroupName); ptr.Deref(ref.Group, group) == "" && ptr.Deref(ref.Kind, "Gateway") == "Service" {
			add(gatewayv1.BackendObjectReference{Namespace: ref.Namespace, Name: ref.Name})
		}
	}
	for _, rule := range h.Spec.Rules {
		filters(rule.Filters)
		for _, ref := range rule.BackendRefs {
			add(ref.BackendObjectReference)
			filters(ref.Filters)
		}
	}
	return out
}

// Mappings finds DomainMappings by the name that they refer to.
func Mappings(informer cache.SharedIndexInformer) reconcile.Index[*v1beta1.DomainMapping] {
	return reconcile.IndexBy(informer, "referred", func(dm *v1beta1.DomainMapping) []string { return []string{dm.Spec.Ref.Name} })
}
