package domainmapping

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	networkingv1alpha1 "ebb.dev/ebb/api/networking/v1alpha1"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/apiservertest/policy"
	"ebb.dev/ebb/test/eventually"
)

var (
	mappings   = schema.GroupResource{Group: "serving.knative.dev", Resource: "domainmappings"}
	services   = schema.GroupResource{Group: "serving.knative.dev", Resource: "services"}
	routes     = schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}
	claims     = schema.GroupResource{Group: "networking.internal.knative.dev", Resource: "clusterdomainclaims"}
	httpRoutes = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
)

const domain = "shop.example.org"

type play struct {
	t        *testing.T
	store    *apiservertest.Store
	ebb      ebb.Interface
	settings *settings.Store
}

// remove deletes the mapping as a user does: it goes once its finalizer is gone.
func (s *play) remove() {
	s.t.Helper()
	if err := s.ebb.ServingV1beta1().DomainMappings("ns").Delete(s.t.Context(), domain, metav1.DeleteOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *play) put(resource schema.GroupResource, version, kind string, object runtime.Object) {
	s.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		s.t.Fatal(err)
	}
	content["apiVersion"], content["kind"] = version, kind
	s.store.Put(resource, &unstructured.Unstructured{Object: content})
}

// set starts the reconciler. What is put by before is in its caches from the first reconcile on.
func set(t *testing.T, network map[string]string, before ...func(*apiservertest.Store)) *play {
	store, config := apiservertest.Start(t)
	for _, put := range before {
		put(store)
	}
	policy.Enforce(t, store, "controller")
	live := stage.Settings(t, map[string]map[string]string{settings.NetworkName: network})
	mgr := stage.Manager(t, config, live)
	stage.Run(t, mgr, New(mgr))
	return &play{t, store, mgr.Ebb, live}
}

func (s *play) claim(namespace string) {
	s.put(claims, "networking.internal.knative.dev/v1alpha1", "ClusterDomainClaim", &networkingv1alpha1.ClusterDomainClaim{
		ObjectMeta: metav1.ObjectMeta{Name: domain}, Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: namespace}})
}

func (s *play) mapping() {
	s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"},
		Spec:       v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"}}})
}

func (s *play) service(host string) {
	o := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}}
	o.Status.Address = &duckv1.Addressable{URL: &apis.URL{Scheme: "http", Host: host}}
	s.put(services, "serving.knative.dev/v1", "Service", o)
	s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}})
}

func (s *play) httpRoute(revision string) {
	s.httpRouteOf("Route", "hello.ns.svc.cluster.local", revision)
}

// httpRouteOf puts an HTTPRoute with the label of the Route, and an owner of some kind.
func (s *play) httpRouteOf(kind, name, revision string) {
	s.put(httpRoutes, "gateway.networking.k8s.io/v1", "HTTPRoute", &gatewayv1.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{names.RouteLabel: "hello"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: kind, Name: "hello", UID: "hello", Controller: ptr.To(true)}}},
		Spec: gatewayv1.HTTPRouteSpec{
			Hostnames: []gatewayv1.Hostname{"hello.ns", "hello.ns.svc.cluster.local"},
			Rules: []gatewayv1.HTTPRouteRule{{BackendRefs: []gatewayv1.HTTPBackendRef{{BackendRef: gatewayv1.BackendRef{
				BackendObjectReference: gatewayv1.BackendObjectReference{Name: gatewayv1.ObjectName(revision), Port: ptr.To(gatewayv1.PortNumber(80))}}}}}},
		}})
}

func (s *play) until(what string, ok func(*v1beta1.DomainMapping) bool) {
	s.t.Helper()
	eventually.Seen(s.t, what, func() (*v1beta1.DomainMapping, bool) {
		dm := &v1beta1.DomainMapping{}
		if have := s.store.Get(mappings, "ns", domain); have != nil {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, dm); err != nil {
				s.t.Fatal(err)
			}
		}
		return dm, ok(dm)
	})
}

func is(kind apis.ConditionType, want string) func(*v1beta1.DomainMapping) bool {
	return func(dm *v1beta1.DomainMapping) bool {
		c := dm.Status.GetCondition(kind)
		return c != nil && strings.TrimSpace(string(c.Status)+" "+c.Reason) == want
	}
}

func TestADomainNeedsAClaimOfItsNamespace(t *testing.T) {
	s := set(t, nil)
	s.mapping()
	s.until("no claim, no mapping", is("DomainClaimed", "False DomainAlreadyClaimed"))
	s.claim("other")
	s.until("a claim of another namespace", func(dm *v1beta1.DomainMapping) bool {
		return strings.Contains(dm.Status.GetCondition("DomainClaimed").GetMessage(), `gives the domain to namespace "other"`)
	})
	s.claim("ns")
	s.until("claimed", is("DomainClaimed", "True"))
}

func TestClaimsAreMadeAndRemovedWhereThatIsAllowed(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true"})
	s.mapping()
	s.until("claimed", is("DomainClaimed", "True"))
	if s.store.Get(claims, "", domain) == nil {
		t.Error("no ClusterDomainClaim was made")
	}
	s.remove()
	s.until("both are gone", func(*v1beta1.DomainMapping) bool {
		return s.store.Get(mappings, "ns", domain) == nil && s.store.Get(claims, "", domain) == nil
	})
}

func TestAClaimThatAnAdministratorMadeStays(t *testing.T) {
	s := set(t, nil)
	s.claim("ns")
	s.mapping()
	s.until("claimed", is("DomainClaimed", "True"))
	s.remove()
	s.until("the mapping is gone", func(*v1beta1.DomainMapping) bool { return s.store.Get(mappings, "ns", domain) == nil })
	if s.store.Get(claims, "", domain) == nil {
		t.Error("the claim went with it")
	}
}

// What a mapping may refer to: a Service or Route of Ebb, a Service of Kubernetes, or any kind with
// a status.address, as long as the address is that of a Service in the mapping's namespace.
func TestWhatAMappingMayReferTo(t *testing.T) {
	things := schema.GroupResource{Group: "things.example.org", Resource: "things"}
	plain := schema.GroupResource{Resource: "services"}
	thing := func(url string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "things.example.org/v1", "kind": "Thing",
			"metadata": map[string]any{"name": "hello", "namespace": "ns"}, "status": map[string]any{"address": map[string]any{"url": url}}}}
	}
	for _, row := range []struct {
		behaviour string
		ref       duckv1.KReference
		given     func(*play)
		want      string
	}{
		{"a Service that is not there", duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"}, func(*play) {},
			"False ResolveFailed"},
		{"a Route", duckv1.KReference{Kind: "Route", Name: "hello", APIVersion: "serving.knative.dev/v1"}, func(s *play) {
			o := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}}
			o.Status.Address = &duckv1.Addressable{URL: &apis.URL{Scheme: "http", Host: "hello.ns.svc.cluster.local"}}
			s.put(routes, "serving.knative.dev/v1", "Route", o)
		}, "True"},
		{"a Route without an address yet", duckv1.KReference{Kind: "Route", Name: "hello", APIVersion: "serving.knative.dev/v1"}, func(s *play) {
			s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}})
		}, "False ResolveFailed"},
		{"a Service of Kubernetes", duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "v1"}, func(s *play) {
			s.put(plain, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}})
		}, "True"},
		{"the Service of a revision without endpoints", duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "v1"}, func(s *play) {
			s.ofRevision(0)
		}, "False ResolveFailed"},
		{"the Service of a revision", duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "v1"}, func(s *play) { s.ofRevision(1) }, "True"},
		{"a kind with an address", duckv1.KReference{Kind: "Thing", Name: "hello", APIVersion: "things.example.org/v1"},
			func(s *play) { s.store.Put(things, thing("http://hello.ns.svc.cluster.local")) }, "True"},
		{"an address with a path", duckv1.KReference{Kind: "Thing", Name: "hello", APIVersion: "things.example.org/v1"},
			func(s *play) { s.store.Put(things, thing("http://hello.ns.svc.cluster.local/in/here")) }, "False ResolveFailed"},
		{"an address elsewhere", duckv1.KReference{Kind: "Thing", Name: "hello", APIVersion: "things.example.org/v1"},
			func(s *play) { s.store.Put(things, thing("http://example.org")) }, "False ResolveFailed"},
		{"a kind that nobody knows", duckv1.KReference{Kind: "Nothing", Name: "hello", APIVersion: "things.example.org/v1"}, func(*play) {},
			"False ResolveFailed"},
		{"another namespace", duckv1.KReference{Kind: "Service", Name: "hello", Namespace: "other", APIVersion: "serving.knative.dev/v1"}, func(*play) {},
			"False ResolveFailed"},
	} {
		t.Run(row.behaviour, func(t *testing.T) {
			s := set(t, nil)
			row.given(s)
			s.claim("ns")
			s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
				ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"}, Spec: v1beta1.DomainMappingSpec{Ref: row.ref}})
			s.until(row.want, is("ReferenceResolved", row.want))
		})
	}
}

// ofRevision makes the public Service of a revision, with so many endpoints.
func (s *play) ofRevision(endpoints int) {
	s.put(schema.GroupResource{Resource: "services"}, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns",
		Labels: map[string]string{names.ServiceTypeLabel: names.ServiceTypePublic}}})
	s.put(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, "discovery.k8s.io/v1", "EndpointSlice", &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "hello", Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: "hello"}},
		AddressType: "IPv4", Endpoints: slices.Repeat([]discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}, endpoints)})
}

func TestAMappingTakesTheWayOfItsRoute(t *testing.T) {
	s := set(t, nil)
	s.claim("ns")
	s.service("hello.ns.svc.cluster.local")
	s.mapping()
	s.httpRouteOf("Ingress", "a-plugins", "another")
	s.until("the Route's HTTPRoute is waited for", is("IngressReady", "Unknown IngressNotConfigured"))
	backend := func(want string) {
		t.Helper()
		s.until("requests go to "+want, func(*v1beta1.DomainMapping) bool {
			have := s.store.Get(httpRoutes, "ns", domain)
			if have == nil {
				return false
			}
			var route gatewayv1.HTTPRoute
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, &route); err != nil {
				t.Fatal(err)
			}
			rule := route.Spec.Rules[0]
			rewritten := slices.ContainsFunc(rule.Filters, func(f gatewayv1.HTTPRouteFilter) bool { return f.URLRewrite != nil })
			return string(rule.BackendRefs[0].Name) == want && string(route.Spec.Hostnames[0]) == domain && !rewritten
		})
	}
	s.httpRoute("hello-00001")
	backend("hello-00001")
	s.httpRoute("hello-00002")
	backend("hello-00002")
}

func TestAMappingDoesNotLeadOutOfItsNamespace(t *testing.T) {
	s := set(t, nil)
	s.claim("ns")
	s.service("hello.elsewhere.svc.cluster.local")
	s.mapping()
	s.until("refused", is("ReferenceResolved", "False ResolveFailed"))
	if s.store.Get(httpRoutes, "ns", domain) != nil {
		t.Error("an HTTPRoute was written")
	}
}

// The gateways were seen to follow generation 1, whatever hinders the first reconcile of the next.
func TestAChangedMappingIsNotExposedByWhatItWas(t *testing.T) {
	s := set(t, nil)
	put := func(ref string) {
		dm := &v1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"},
			Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: ref, APIVersion: "serving.knative.dev/v1"}}}
		dm.Status.ObservedGeneration = 1
		dm.Status.InitializeConditions()
		dm.Status.MarkIngressReady()
		s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", dm)
	}
	put("hello")
	s.until("no claim", is("DomainClaimed", "False DomainAlreadyClaimed"))
	s.until("nothing changed", is("IngressReady", "True"))
	put("other")
	s.until("not yet exposed", is("IngressReady", "Unknown IngressNotConfigured"))
}
