package route

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// foreign puts the HTTPRoute of a Route in another namespace that has the host of Route ns/hello.
// All objects are of one age, so the first of the namespaces has the host.
func (s *stage) foreign(namespace string) {
	s.put(httpRoutes, "gateway.networking.k8s.io/v1", "HTTPRoute", &gatewayv1.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hello.ns.example.com", Labels: map[string]string{names.RouteLabel: "theirs"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: "theirs", UID: "theirs",
				Controller: ptr.To(true)}}},
		Spec: gatewayv1.HTTPRouteSpec{Hostnames: []gatewayv1.Hostname{"hello.ns.example.com"}},
	})
}

func TestAHostOfARouteInAnotherNamespaceIsNotTaken(t *testing.T) {
	s := set(t)
	now := time.Now()
	s.store.Now = func() time.Time { return now }
	s.foreign("an-older")
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	taken := func(r *servingv1.Route) bool { return condition(r, "IngressReady") == "False HostTaken" }
	s.until("the host is taken", taken)
	if got := s.names(httpRoutes); got != "" {
		t.Errorf("it has the HTTPRoutes %s", got)
	}
	s.store.Remove(httpRoutes, "an-older", "hello.ns.example.com")
	s.route("hello-00001=100")
	s.until("Ready when the other is gone", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })

	s.foreign("younger")
	s.route("latest=100")
	s.until("a younger one takes nothing", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && len(r.Status.Traffic) == 1 && *r.Status.Traffic[0].LatestRevision
	})

	// As after a race that both Routes entered: the younger one gives way, with all of its rules.
	s.foreign("a-still-older")
	s.until("the older one has it", taken)
	if got := s.names(httpRoutes); got != "hello.ns.svc.cluster.local" {
		t.Errorf("it has the HTTPRoutes %s", got)
	}
}
