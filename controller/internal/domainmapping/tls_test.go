package domainmapping

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/ingress/certificate"
	"ebb.dev/ebb/ingress/gatewayapi"
)

var (
	definitions  = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	certificates = certificate.Resource.GroupResource()
	listenerSets = gatewayapi.ListenerSets.GroupResource()
)

func (s *stage) installs(kinds ...schema.GroupResource) {
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
