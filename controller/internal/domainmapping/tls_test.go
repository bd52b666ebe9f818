package domainmapping

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/ingress/gatewayapi"
)

var (
	definitions  = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	certificates = certificate.Resource.GroupResource()
	listenerSets = gatewayapi.ListenerSets.GroupResource()
)

func (s *play) installs(kinds ...schema.GroupResource) {
	for _, kind := range kinds {
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
		o.SetName(kind.Resource + "." + kind.Group)
		s.store.Put(definitions, o)
	}
}

func provisioned(dm *v1beta1.DomainMapping) string {
	c := dm.Status.GetCondition("CertificateProvisioned")
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func TestAMappedDomainWithASecretOfItsOwnHasAListener(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true", "http-protocol": "Redirected"})
	s.installs(listenerSets)
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"},
		Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"},
			TLS: &v1beta1.SecretTLS{SecretName: "own"}}})
	s.until("the listener is there", func(dm *v1beta1.DomainMapping) bool {
		return provisioned(dm) == "True CertificateExternallyProvided" && dm.Status.URL.Scheme == "https" &&
			s.store.Get(listenerSets, "ns", domain) != nil && s.store.Get(httpRoutes, "ns", domain+"-redirect") != nil
	})
	listeners, _, _ := unstructured.NestedSlice(s.store.Get(listenerSets, "ns", domain).Object, "spec", "listeners")
	refs, _, _ := unstructured.NestedSlice(listeners[0].(map[string]any), "tls", "certificateRefs")
	if got := refs[0].(map[string]any)["name"]; got != "own" {
		t.Errorf("the listener has the Secret %v", got)
	}
}

func (s *play) secret(name string) {
	s.put(schema.GroupResource{Resource: "secrets"}, "v1", "Secret", &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}})
}

// The gateways say "not found" of a listener that nobody looks at, or nothing. The mapping names
// the Secret, and sees for itself that it came.
func TestAMappingNamesTheSecretThatIsNotThere(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true"})
	s.installs(listenerSets)
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"},
		Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"},
			TLS: &v1beta1.SecretTLS{SecretName: "own"}}})
	for _, kind := range []apis.ConditionType{"IngressReady", "Ready"} {
		s.until("the Secret is missed", func(dm *v1beta1.DomainMapping) bool {
			return is(kind, "Unknown SecretNotFound")(dm) && strings.Contains(dm.Status.GetCondition(kind).Message, `There is no Secret "own"`)
		})
	}
	s.secret("own")
	s.until("it waits for the gateways alone", is("IngressReady", "Unknown Uninitialized"))
}

func TestAMappedDomainGetsACertificate(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true", "external-domain-tls": "Enabled"})
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	s.mapping()
	s.until("cert-manager is missed", func(dm *v1beta1.DomainMapping) bool {
		return provisioned(dm) == "True HTTPDowngrade" &&
			strings.Contains(dm.Status.GetCondition("CertificateProvisioned").Message, "cert-manager is not installed")
	})
	s.installs(certificates, listenerSets)
	s.until("asked for", func(dm *v1beta1.DomainMapping) bool { return s.store.Get(certificates, "ns", domain) != nil })
	asked := s.store.Get(certificates, "ns", domain)
	if hosts, _, _ := unstructured.NestedStringSlice(asked.Object, "spec", "dnsNames"); len(hosts) != 1 || hosts[0] != domain {
		t.Errorf("asked for %v", hosts)
	}
	_ = unstructured.SetNestedSlice(asked.Object, []any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")
	s.store.Put(certificates, asked)
	s.until("secure", func(dm *v1beta1.DomainMapping) bool {
		return provisioned(dm) == "True " && dm.Status.URL.Scheme == "https" && s.store.Get(listenerSets, "ns", domain) != nil
	})
}

// Where the Gateway API has no ListenerSets, the domain's listener stands on the Gateway itself,
// beside those of others, and goes when it is not needed there any more.
func TestWithoutListenerSetsAMappedDomainHasAListenerOnTheGateway(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true"})
	gateways := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "gateways"}
	grants := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "referencegrants"}
	s.put(gateways, "gateway.networking.k8s.io/v1", "Gateway", &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "ebb-external", Namespace: "knative-serving"},
		Spec: gatewayv1.GatewaySpec{GatewayClassName: "istio", Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: "HTTP"}}}})
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	mapping := func(tls *v1beta1.SecretTLS) {
		s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
			ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns", Finalizers: []string{names.DomainMappingFinalizer}},
			Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"},
				TLS: tls}})
	}
	listening := func(want string) {
		t.Helper()
		s.until("the Gateway's listeners are "+want, func(*v1beta1.DomainMapping) bool {
			var gateway gatewayv1.Gateway
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.store.Get(gateways, "knative-serving", "ebb-external").Object, &gateway); err != nil {
				t.Fatal(err)
			}
			var seen []string
			for _, l := range gateway.Spec.Listeners {
				text := string(l.Name)
				if l.Hostname != nil {
					text = string(*l.Hostname) + "=" + string(l.TLS.CertificateRefs[0].Name)
				}
				seen = append(seen, text)
			}
			return strings.Join(seen, " ") == want
		})
	}
	mapping(&v1beta1.SecretTLS{SecretName: "own"})
	listening("http " + domain + "=own")
	s.until("the domain is https, and the Gateway may read the Secret", func(dm *v1beta1.DomainMapping) bool {
		return provisioned(dm) == "True CertificateExternallyProvided" && dm.Status.URL.Scheme == "https" &&
			s.store.Get(grants, "ns", gatewayapi.GrantName("own")) != nil
	})
	mapping(&v1beta1.SecretTLS{SecretName: "another"})
	listening("http " + domain + "=another")
	mapping(nil)
	listening("http")
	mapping(&v1beta1.SecretTLS{SecretName: "own"})
	listening("http " + domain + "=own")
	// A cache that is behind may cost one write more, not one for each reconcile.
	if writes := fmt.Sprint(s.store.Writes()); strings.Count(writes, "patch gateways") > 2*4 {
		t.Errorf("four changes of the listener took these writes: %s", writes)
	}
	s.installs(listenerSets)
	s.until("a ListenerSet takes over", func(*v1beta1.DomainMapping) bool { return s.store.Get(listenerSets, "ns", domain) != nil })
	listening("http")
}

func TestTheListenerOnTheGatewayGoesWithItsDomain(t *testing.T) {
	s := set(t, map[string]string{"autocreate-cluster-domain-claims": "true"})
	gateways := schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "gateways"}
	s.put(gateways, "gateway.networking.k8s.io/v1", "Gateway", &gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: "ebb-external", Namespace: "knative-serving"}})
	count := func() int {
		list, _, _ := unstructured.NestedSlice(s.store.Get(gateways, "knative-serving", "ebb-external").Object, "spec", "listeners")
		return len(list)
	}
	s.service("hello.ns.svc.cluster.local")
	s.httpRoute("hello-00001")
	s.put(mappings, "serving.knative.dev/v1beta1", "DomainMapping", &v1beta1.DomainMapping{
		ObjectMeta: metav1.ObjectMeta{Name: domain, Namespace: "ns"},
		Spec: v1beta1.DomainMappingSpec{Ref: duckv1.KReference{Kind: "Service", Name: "hello", APIVersion: "serving.knative.dev/v1"},
			TLS: &v1beta1.SecretTLS{SecretName: "own"}}})
	s.until("it listens", func(*v1beta1.DomainMapping) bool { return count() == 1 })
	s.remove()
	s.until("nothing listens", func(*v1beta1.DomainMapping) bool { return count() == 0 && s.store.Get(mappings, "ns", domain) == nil })
}
