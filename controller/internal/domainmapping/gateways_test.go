package domainmapping

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// gateway makes a Service with a pod behind it that answers every request.
func (s *play) gateway(namespace, name string) {
	s.t.Helper()
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}}}
	for scheme, start := range map[string]func(http.Handler) *httptest.Server{"http": httptest.NewServer, "https": httptest.NewTLSServer} {
		pod := start(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		s.t.Cleanup(pod.Close)
		_, text, _ := net.SplitHostPort(pod.Listener.Addr().String())
		port, _ := strconv.Atoi(text)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: ptr.To(scheme), Port: ptr.To(int32(port))})
	}
	s.put(schema.GroupResource{Resource: "services"}, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}}})
	s.put(schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, "discovery.k8s.io/v1", "EndpointSlice", slice)
}

func (s *play) external(gateway string) {
	s.t.Helper()
	changed, err := settings.Parse(map[string]map[string]string{
		settings.NetworkName: {"autocreate-cluster-domain-claims": "true"},
		settings.GatewayName: {"external-gateways": fmt.Sprintf("[{class: other, gateway: %[1]s, service: %[1]s, supported-features: [ListenerSet]}]", gateway)}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.settings.Set(changed)
}

// hangs tells what the domain's HTTPRoute hangs at, and at which Gateways its ListenerSets are.
func (s *play) hangs(sets ...string) string {
	var out []string
	if h := s.store.Get(httpRoutes, "ns", domain); h != nil {
		list, _, _ := unstructured.NestedSlice(h.Object, "spec", "parentRefs")
		for _, p := range list {
			out = append(out, p.(map[string]any)["name"].(string))
		}
	}
	for _, name := range sets {
		if set := s.store.Get(listenerSets, "ns", name); set != nil {
			out = append(out, "at "+gatewayapi.GatewayOf(set).String())
		}
	}
	return strings.Join(out, " ")
}

// A wrong Gateway for a minute, a right one after it: the domain has TLS at the former one until
// the next one serves it.
func TestAMappedDomainsTLSStaysAtTheFormerGatewayUntilTheNextOneServes(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true"})
	s.installs(listenerSets)
	s.external("edge/first")
	s.gateway("edge", "first")
	s.secret("own")
	s.put(schema.GroupResource{Resource: "services"}, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}})
	s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"},
		Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "v1"}, TLS: &v1beta1.SecretTLS{SecretName: "own"}}})
	moved := domain + "-" + plan.ShortHash("edge/next")
	until := func(ready, want string) {
		t.Helper()
		s.until(want, func(dm *v1beta1.DomainMapping) bool {
			return is("IngressReady", ready)(dm) && s.hangs(domain, moved) == want
		})
	}
	until("True", "first "+domain+" at edge/first")
	s.external("edge/next")
	until("Unknown Uninitialized", "next "+moved+" first "+domain+" at edge/first at edge/next")
	s.external("edge/first")
	until("True", "first "+domain+" at edge/first")
	s.external("edge/next")
	until("Unknown Uninitialized", "next "+moved+" first "+domain+" at edge/first at edge/next")
	s.gateway("edge", "next")
	until("True", "next "+moved+" at edge/next")
}
