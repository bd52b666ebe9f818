package gatewayapi

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// listenerSet is the feature of Gateways to which objects in other namespaces can add listeners.
const listenerSet = "ListenerSet"

// ListenerSets is the kind that adds listeners to a Gateway, which itself has at most 64.
var ListenerSets = schema.GroupVersionResource{Group: gatewayv1.GroupName, Version: "v1", Resource: "listenersets"}

// ListenerSetSelector matches the ListenerSets that Ebb creates.
const ListenerSetSelector = names.ListenerSetLabel

// TakesListenerSets reports whether a Gateway supports ListenerSets, by its settings.
func TakesListenerSets(g settings.GatewayRef) bool {
	return slices.Contains(g.SupportedFeatures, listenerSet)
}

// WithoutListenerSets returns the settings of the Gateway without that feature.
func WithoutListenerSets(g settings.GatewayRef) settings.GatewayRef {
	g.SupportedFeatures = slices.DeleteFunc(slices.Clone(g.SupportedFeatures), func(f string) bool { return f == listenerSet })
	return g
}

// GatewayOf returns the Gateway of a ListenerSet.
func GatewayOf(set *unstructured.Unstructured) types.NamespacedName {
	ref, _, _ := unstructured.NestedStringMap(set.Object, "spec", "parentRef")
	return types.NamespacedName{Namespace: ref["namespace"], Name: ref["name"]}
}

// TLSListeners returns the listeners that terminate TLS for the targets of a plan: one ListenerSet
// for each target and Gateway, in the Route's namespace, where the Secret is.
func TLSListeners(p *plan.Plan, gateways settings.Gateway, meta Meta) (out []*unstructured.Unstructured) {
	for _, target := range p.Targets {
		on := gateways.External
		if target.Visibility == plan.ClusterLocal {
			on = gateways.Local
		}
		out = append(out, translator{plan: p, target: target, on: on, meta: meta}.listenerSets()...)
	}
	return out
}

func (t translator) listenerSets() (out []*unstructured.Unstructured) {
	if t.target.TLSSecret == "" {
		return nil
	}
	for i, g := range t.on {
		if !TakesListenerSets(g) {
			continue
		}
		var listeners []gatewayv1.Listener
		for n, host := range t.target.Hosts {
			l := Listener(host, "", t.target.TLSSecret)
			l.Name = setListenerName(n)
			l.TLS.CertificateRefs[0].Namespace = nil // its own
			l.AllowedRoutes.Namespaces.From = ptr.To(gatewayv1.NamespacesFromSame)
			listeners = append(listeners, l)
		}
		spec := struct {
			ParentRef gatewayv1.ParentReference `json:"parentRef"`
			Listeners []gatewayv1.Listener      `json:"listeners"`
		}{gatewayv1.ParentReference{
			Group: ptr.To(gatewayv1.Group(gatewayv1.GroupName)), Kind: ptr.To(gatewayv1.Kind("Gateway")),
			Namespace: ptr.To(gatewayv1.Namespace(g.Namespace())), Name: gatewayv1.ObjectName(g.Name()),
		}, listeners}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
		if err != nil {
			panic(fmt.Sprintf("a ListenerSet is plain data: %v", err))
		}
		out = append(out, t.named(t.listenerSetName(i, g), fields))
	}
	return out
}

// setListenerName returns the name of a ListenerSet's n-th listener. The first has the same name in
// all sets: Istio names the port of a Gateway's Service after the first listener on it, and while
// the EndpointSlices follow a new name of the port, connections to all hosts are refused.
func setListenerName(n int) gatewayv1.SectionName {
	if n == 0 {
		return "https"
	}
	return gatewayv1.SectionName(fmt.Sprintf("https-%d", n+1))
}

func (t translator) named(name string, spec map[string]any) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetAPIVersion(ListenerSets.GroupVersion().String())
	object.SetKind("ListenerSet")
	object.SetNamespace(t.plan.Namespace)
	object.SetName(name)
	labels := maps.Clone(t.meta.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	delete(labels, names.VisibilityLabel)
	labels[names.ListenerSetLabel] = "true"
	if t.plan.Name != "" {
		labels[names.RouteLabel] = t.plan.Name
	}
	object.SetLabels(labels)
	object.SetOwnerReferences([]metav1.OwnerReference{t.meta.Owner})
	return object
}

// listenerSetName returns the name of the target's ListenerSet at g, the i-th of its Gateways. A
// set never moves to another Gateway, which may not serve: that one gets a set of its own. The one
// that is there stays, whatever its name: of two sets for a host, a Gateway accepts the older one.
func (t translator) listenerSetName(i int, g settings.GatewayRef) string {
	name := Name(t.target)
	if i > 0 {
		name = names.Child(name, "-"+plan.ShortHash(g.Gateway))
	}
	for _, have := range t.meta.ListenerSets {
		switch at := GatewayOf(have); {
		case at.String() == g.Gateway && lastHost(have) == Name(t.target):
			return have.GetName()
		case at.String() != g.Gateway && have.GetName() == name:
			name = names.Child(Name(t.target), "-"+plan.ShortHash(g.Gateway))
		}
	}
	return name
}

// lastHost returns the host of a ListenerSet's last listener.
func lastHost(set *unstructured.Unstructured) string {
	field, _, _ := unstructured.NestedFieldNoCopy(set.Object, "spec", "listeners")
	list, _ := field.([]any)
	if len(list) == 0 {
		return ""
	}
	last, _ := list[len(list)-1].(map[string]any)
	host, _ := last["hostname"].(string)
	return host
}
