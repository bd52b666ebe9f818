package gateway

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Whatever an HTTPRoute or a GRPCRoute names, it leads there: a backend, a mirror, or the Service
// whose clients a mesh leads as it says.
func TestWhichServicesARouteNames(t *testing.T) {
	service := func(name, namespace string) gatewayv1.BackendObjectReference {
		ref := gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(name)}
		if namespace != "" {
			ref.Namespace = ptr.To(gatewayv1.Namespace(namespace))
		}
		return ref
	}
	mirror := []gatewayv1.HTTPRouteFilter{{RequestMirror: &gatewayv1.HTTPRequestMirrorFilter{BackendRef: service("copies", "other")}}}
	another := service("an-import", "")
	another.Group, another.Kind = ptr.To(gatewayv1.Group("multicluster.x-k8s.io")), ptr.To(gatewayv1.Kind("ServiceImport"))
	grpcMirror := []gatewayv1.GRPCRouteFilter{{Type: "RequestMirror", RequestMirror: mirror[0].RequestMirror}}
	h, g := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}}, &gatewayv1.GRPCRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "g"}}
	h.Spec.ParentRefs = []gatewayv1.ParentReference{
		{Name: "a-gateway"}, {Kind: ptr.To(gatewayv1.Kind("Service")), Name: "of-no-core-group"},
		{Group: ptr.To(gatewayv1.Group("")), Kind: ptr.To(gatewayv1.Kind("Service")), Name: "in-a-mesh"},
	}
	h.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{
		{BackendRef: gatewayv1.BackendRef{BackendObjectReference: service("here", "")}, Filters: mirror},
		{BackendRef: gatewayv1.BackendRef{BackendObjectReference: service("there", "other")}},
		{BackendRef: gatewayv1.BackendRef{BackendObjectReference: another}},
	}}}
	g.Spec.ParentRefs = h.Spec.ParentRefs
	g.Spec.Rules = []gatewayv1.GRPCRouteRule{{Matches: []gatewayv1.GRPCRouteMatch{{Method: &gatewayv1.GRPCMethodMatch{Service: ptr.To("shop.Cart")}}},
		BackendRefs: []gatewayv1.GRPCBackendRef{
			{BackendRef: gatewayv1.BackendRef{BackendObjectReference: service("here", "")}, Filters: grpcMirror},
			{BackendRef: gatewayv1.BackendRef{BackendObjectReference: service("there", "other")}},
			{BackendRef: gatewayv1.BackendRef{BackendObjectReference: another}},
		}}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(g)
	if err != nil {
		t.Fatal(err)
	}
	const want = "[ns/in-a-mesh ns/here other/copies other/there]"
	for _, object := range []any{h, &unstructured.Unstructured{Object: content}} {
		if got := fmt.Sprint(AllServices(object)); got != want {
			t.Errorf("%T names %s, not %s", object, got, want)
		}
	}
	broken := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"rules": "none"}}}
	if got := AllServices(broken); got != nil {
		t.Errorf("it cannot be read, and names %v", got)
	}
}
