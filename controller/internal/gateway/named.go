package gateway

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// byNamed indexes HTTPRoutes and GRPCRoutes by the Services that they name, whatever their
// namespaces are.
const byNamed = "named"

// grpcRoutes are watched where the cluster has the kind. Ebb makes none.
var grpcRoutes = schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: "v1", Resource: "grpcroutes"}

// optionalGRPCRoutes are those of the cluster. A controller that may not read them does the rest.
func optionalGRPCRoutes(mgr *reconcile.Manager) *reconcile.Optional {
	o := mgr.Optional(grpcRoutes, "")
	o.Late()
	return o
}

// Named tells which Services HTTPRoutes and GRPCRoutes name, those of others too, with backends of
// other namespaces, those that get a copy of each request, and those whose clients a mesh leads.
type Named struct {
	httpRoutes cache.Indexer
	grpcRoutes *reconcile.Optional
}

// NewNamed reads the HTTPRoutes and GRPCRoutes of a Manager that does not run yet. The controller
// reconciles what they name, while on says so.
func NewNamed(mgr *reconcile.Manager, c *reconcile.Controller, on func() bool) Named {
	informer, grpc := mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer(), optionalGRPCRoutes(mgr)
	named := func(object any) (keys []string, _ error) {
		for _, key := range AllServices(object) {
			keys = append(keys, key.String())
		}
		return keys, nil
	}
	if _, there := informer.GetIndexer().GetIndexers()[byNamed]; !there {
		if err := informer.AddIndexers(cache.Indexers{byNamed: named}); err != nil {
			panic(fmt.Sprintf("index HTTPRoutes by what they name: %v", err)) // only a started informer refuses
		}
	}
	grpc.Index(byNamed, named)
	concerned := func(object any) []reconcile.Key {
		if !on() {
			return nil
		}
		return AllServices(object)
	}
	c.Watch(informer, concerned)
	c.WatchOptional(grpc, concerned)
	return Named{informer.GetIndexer(), grpc}
}

// By reports whether an HTTPRoute or GRPCRoute names the Service.
func (n Named) By(service types.NamespacedName) bool {
	keys, _ := n.httpRoutes.IndexKeys(byNamed, service.String()) // fails only if there is no such index
	return len(keys) > 0 || len(n.grpcRoutes.By(byNamed, service.String())) > 0
}

// Unknown reports whether the cluster has GRPCRoutes that nobody has listed yet.
func (n Named) Unknown() bool { return n.grpcRoutes.Unknown() }

// AllServices returns the Services that an HTTPRoute or a GRPCRoute names.
func AllServices(object any) []types.NamespacedName {
	h := asHTTPRoute(object)
	if h == nil {
		return nil
	}
	n := naming{namespace: h.Namespace}
	n.clientsOf(h.Spec.ParentRefs)
	for _, rule := range h.Spec.Rules {
		n.copies(rule.Filters)
		for _, ref := range rule.BackendRefs {
			n.add(ref.BackendObjectReference)
			n.copies(ref.Filters)
		}
	}
	return n.services
}

// asHTTPRoute returns an HTTPRoute, or a GRPCRoute as one that matches everything: both kinds are
// alike but for what they match. It returns nil for what is neither.
func asHTTPRoute(object any) *gatewayv1.HTTPRoute {
	switch o := object.(type) {
	case *gatewayv1.HTTPRoute:
		return o
	case *unstructured.Unstructured:
		h, o := &gatewayv1.HTTPRoute{}, o.DeepCopy()
		rules, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "rules")
		list, _ := rules.([]any)
		for _, rule := range list {
			if fields, ok := rule.(map[string]any); ok {
				delete(fields, "matches")
			}
		}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, h) == nil {
			return h // else its definition allows none like this
		}
	}
	return nil
}

// naming collects the Services that an object of a namespace names.
type naming struct {
	namespace string
	services  []types.NamespacedName
}

func (n *naming) add(ref gatewayv1.BackendObjectReference) {
	if ptr.Deref(ref.Group, "") == "" && ptr.Deref(ref.Kind, "Service") == "Service" {
		n.services = append(n.services, types.NamespacedName{Namespace: string(ptr.Deref(ref.Namespace, gatewayv1.Namespace(n.namespace))), Name: string(ref.Name)})
	}
}

func (n *naming) copies(filters []gatewayv1.HTTPRouteFilter) {
	for _, f := range filters {
		if f.RequestMirror != nil {
			n.add(f.RequestMirror.BackendRef)
		}
	}
}

func (n *naming) clientsOf(parents []gatewayv1.ParentReference) {
	for _, ref := range parents {
		if group := gatewayv1.Group(gatewayv1.GroupName); ptr.Deref(ref.Group, group) == "" && ptr.Deref(ref.Kind, "Gateway") == "Service" {
			n.add(gatewayv1.BackendObjectReference{Namespace: ref.Namespace, Name: ref.Name})
		}
	}
}

// Mappings finds DomainMappings by the name that they refer to.
func Mappings(informer cache.SharedIndexInformer) reconcile.Index[*v1beta1.DomainMapping] {
	return reconcile.IndexBy(informer, "referred", func(dm *v1beta1.DomainMapping) []string { return []string{dm.Spec.Ref.Name} })
}
