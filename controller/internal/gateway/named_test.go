package gateway

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
)

// Whatever an HTTPRoute names, it leads there: a backend, a mirror, or the Service whose clients a
// mesh leads as it says.
func TestWhichServicesAnHTTPRouteNames(t *testing.T) {
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
	h := &gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "h"}}
	h.Spec.ParentRefs = []gatewayv1.ParentReference{
		{Name: "a-gateway"}, {Kind: ptr.To(gatewayv1.Kind("Service")), Name: "of-no-core-group"},
		{Group: ptr.To(gatewayv1.Group("")), Kind: ptr.To(gatewayv1.Kind("Service")), Name: "in-a-mesh"},
	}
	h.Spec.Rules = []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{
		{BackendRef: gatewayv1.BackendRef{BackendObjectReference: service("here", "")}, Filters: mirror},
		{BackendRef: gatewayv1.BackendRef{BackendObjectReference: service("there", "other")}},
		{BackendRef: gatewayv1.BackendRef{BackendObjectReference: another}},
	}}}
	if got, want := fmt.Sprint(AllServices(h)), "[ns/in-a-mesh ns/here other/copies other/there]"; got != want {
		t.Errorf("it names %s, not %s", got, want)
	}
}
