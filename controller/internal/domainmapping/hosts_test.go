package domainmapping

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

// routeElsewhere puts the HTTPRoute of a Route in another namespace that has the mapping's domain.
func (s *play) routeElsewhere(namespace string, labels map[string]string, gateway string) {
	s.put(httpRoutes, "gateway.networking.k8s.io/v1", "HTTPRoute", &gatewayv1.HTTPRoute{
		ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: namespace, Labels: labels, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: "theirs", UID: "theirs", Controller: ptr.To(true)}}},
		Spec: gatewayv1.HTTPRouteSpec{Hostnames: []gatewayv1.Hostname{domain}, CommonRouteSpec: gatewayv1.CommonRouteSpec{
			ParentRefs: []gatewayv1.ParentReference{{Name: gatewayv1.ObjectName(gateway), Namespace: ptr.To(gatewayv1.Namespace("knative-serving"))}}}},
	})
}

func (s *play) configure(network map[string]string, domains ...string) {
	s.t.Helper()
	choices := map[string]string{}
	for _, d := range domains {
		choices[d] = ""
	}
	snapshot, err := settings.Parse(map[string]map[string]string{settings.NetworkName: network, settings.DomainName: choices})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settings.Set(snapshot)
}

func (s *play) mapped(tls *v1beta1.SecretTLS) {
	s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns", Finalizers: []string{names.DomainMappingFinalizer}},
		Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"},
			TLS: tls}})
}

func (s *play) exposed() bool { return s.store.Get(httpRoutes, "ns", domain) != nil }

// The attack of two tenants: the domain is, or becomes, the host of a Service in namespace example,
// because the domain of the cluster is org and names are <name>.<namespace>.org.
func TestAMappingNeverHasAHostOfARouteInAnotherNamespace(t *testing.T) {
	for name, byAge := range map[string]struct{ mappingFirst bool }{"the mapping is older": {true}, "the mapping is younger": {false}} {
		t.Run(name, func(t *testing.T) {
			s := set(t, nil)
			s.installs(listenerSets)
			now := time.Now()
			s.store.Now = func() time.Time { now = now.Add(time.Minute); return now }
			s.configure(nil, "org")
			s.claim("ns") // even if an administrator claimed it
			s.service("hello.ns.svc.cluster.local")
			s.httpRoute("hello-00001")
			if byAge.mappingFirst {
				s.mapped(&v1beta1.SecretTLS{SecretName: "own"})
				s.until("nobody has it yet", func(*v1beta1.DomainMapping) bool {
					return s.exposed() && s.store.Get(listenerSets, "ns", domain) != nil
				})
			}
			s.routeElsewhere("example", nil, "ebb-external")
			if !byAge.mappingFirst {
				s.mapped(&v1beta1.SecretTLS{SecretName: "own"})
			}
			s.until("it yields, and names the winner", func(dm *v1beta1.DomainMapping) bool {
				return is("IngressReady", "False HostTaken")(dm) && !s.exposed() && s.store.Get(listenerSets, "ns", domain) == nil &&
					strings.HasPrefix(dm.Status.GetCondition("Ready").GetMessage(), `Route "theirs" in namespace "example" has the host "`+domain+`"`)
			})
			s.store.Remove(httpRoutes, "example", domain)
			s.until("it is free again", func(*v1beta1.DomainMapping) bool { return s.exposed() })
		})
	}
}

// A Route whose host the settings give to everybody alike takes no domain that is mapped already.
func TestAMappedDomainIsNotTakenByAYoungerRoute(t *testing.T) {
	s := set(t, nil)
	now := time.Now()
	s.store.Now = func() time.Time { now = now.Add(time.Minute); return now }
	s.configure(map[string]string{"domain-template": "{{.Name}}.{{.Domain}}"}, "example.org")
	s.claim("ns")
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	s.mapped(nil)
	s.until("it has the domain", func(*v1beta1.DomainMapping) bool { return s.exposed() })
	s.routeElsewhere("thief", nil, "ebb-external")
	s.httpRoute("hello-00002")
	s.until("it keeps the domain", func(*v1beta1.DomainMapping) bool {
		have := s.store.Get(httpRoutes, "ns", domain)
		if have == nil {
			return false
		}
		rules, _, _ := unstructured.NestedSlice(have.Object, "spec", "rules")
		refs, _, _ := unstructured.NestedSlice(rules[0].(map[string]any), "backendRefs")
		return refs[0].(map[string]any)["name"] == "hello-00002"
	})
}

// A host inside the cluster counts where one Gateway serves both, and is no concern of a public
// domain elsewhere.
func TestAHostInsideTheClusterIsNotMappedOnItsGateway(t *testing.T) {
	s := set(t, nil)
	s.claim("ns")
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	inside := map[string]string{names.VisibilityLabel: names.VisibilityClusterLocal}
	s.routeElsewhere("zz", inside, "ebb-local")
	s.mapped(nil)
	s.until("another Gateway", func(*v1beta1.DomainMapping) bool { return s.exposed() })
	s.routeElsewhere("zz", inside, "ebb-external")
	s.until("its Gateway", func(dm *v1beta1.DomainMapping) bool { return is("IngressReady", "False HostTaken")(dm) && !s.exposed() })
}

// Nobody claims a host of a Service that another namespace does not have yet.
func TestNoClaimIsMadeForAHostOfAnotherNamespace(t *testing.T) {
	auto := map[string]string{"autocreate-cluster-domain-claims": "true"}
	s := set(t, nil, func(store *apiservertest.Store) {
		store.Put(schema.GroupResource{Resource: "namespaces"}, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "example"}}})
	})
	s.configure(auto, "org")
	s.mapped(nil)
	s.until("refused", func(dm *v1beta1.DomainMapping) bool {
		return is("DomainClaimed", "False DomainAlreadyClaimed")(dm) &&
			strings.Contains(dm.Status.GetCondition("DomainClaimed").Message, `to namespace "example"`)
	})
	if s.store.Get(claims, "", domain) != nil {
		t.Error("a ClusterDomainClaim was made")
	}
	s.configure(auto, "example.org") // <name>.<namespace>.example.org: shop.example.org is nobody's
	s.until("claimed", is("DomainClaimed", "True"))
}

// An administrator gives the domain to another namespace: the former owner's HTTPRoutes and
// listeners go. While there is no claim, as between its deletion and the next, everything stays.
func TestAClaimThatMovesTakesTheDomainAlong(t *testing.T) {
	gateways := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "gateways"}
	listens := func(s *play) (out []string) {
		list, _, _ := unstructured.NestedSlice(s.store.Get(gateways, "knative-serving", "ebb-external").Object, "spec", "listeners")
		for _, l := range list {
			refs, _, _ := unstructured.NestedSlice(l.(map[string]any), "tls", "certificateRefs")
			out = append(out, refs[0].(map[string]any)["namespace"].(string))
		}
		return out
	}
	s := set(t, nil)
	s.put(gateways, "gateway.networking.k8s.io/v1", "Gateway", &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "ebb-external", Namespace: "knative-serving"}})
	s.claim("ns")
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	s.mapped(&v1beta1.SecretTLS{SecretName: "own"})
	s.until("it has the domain", func(*v1beta1.DomainMapping) bool { return s.exposed() && strings.Join(listens(s), " ") == "ns" })
	s.store.Remove(claims, "", domain)
	s.until("no claim", is("DomainClaimed", "False DomainAlreadyClaimed"))
	if !s.exposed() || len(listens(s)) != 1 {
		t.Error("a claim that is missing took the domain away")
	}
	s.claim("other")
	s.until("the domain went with its claim", func(dm *v1beta1.DomainMapping) bool {
		return !s.exposed() && len(listens(s)) == 0 && is("IngressReady", "False DomainAlreadyClaimed")(dm) &&
			strings.Contains(dm.Status.GetCondition("Ready").GetMessage(), `to namespace "other"`)
	})

	// The new owner listens under the same name. That the former one deletes its mapping is no
	// reason to take that away.
	s.put(gateways, "gateway.networking.k8s.io/v1", "Gateway", &gatewayv1.Gateway{
		ObjectMeta: metav1.ObjectMeta{Name: "ebb-external", Namespace: "knative-serving"},
		Spec:       gatewayv1.GatewaySpec{Listeners: []gatewayv1.Listener{gatewayapi.Listener(domain, "other", "theirs")}}})
	s.remove()
	s.until("the mapping is gone", func(*v1beta1.DomainMapping) bool { return s.store.Get(mappings, "ns", domain) == nil })
	if got := strings.Join(listens(s), " "); got != "other" {
		t.Errorf("listeners of %q", got)
	}

	s.claim("ns")
	s.mapped(nil)
	s.until("the domain comes back with its claim", func(dm *v1beta1.DomainMapping) bool {
		return s.exposed() && is("DomainClaimed", string(corev1.ConditionTrue))(dm)
	})
}
