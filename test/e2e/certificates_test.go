//go:build e2e

package e2e

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/internal/testing/certificate"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// A namespace that the selector matches has one wildcard certificate for all its hosts. A
// DomainMapping may use the user's own certificate, regardless of the settings for certificates.
func TestANamespaceHasOneCertificateAndADomainItsOwn(t *testing.T) {
	s := beginAlone(t, 2*time.Minute)
	s.needsCertManager()
	wild := s.labelledNamespace("ebb.dev/e2e-wildcard")
	s.config("config-network", map[string]string{"autocreate-cluster-domain-claims": "true"})
	s.ready("mapped", service{name: "mapped"}.manifest())
	s.ownCertificate(s.namespace + ".example.test")

	s.config("config-network", map[string]string{"external-domain-tls": "Enabled",
		"namespace-wildcard-cert-selector": "matchLabels: {ebb.dev/e2e-wildcard: \"true\"}"})
	if err := s.Apply(s.ctx, wild, service{name: "wild", traffic: "  - latestRevision: true\n    percent: 100\n    tag: newest\n"}.manifest()); err != nil {
		t.Fatal(err)
	}
	s.oneCertificateFor(wild, "wild", s.verifying(s.externalAddress()))
}

// labelledNamespace creates a second namespace for the test, with a label.
func (s *story) labelledNamespace(label string) string {
	s.Helper()
	name, remove, err := s.Namespace(s.ctx, "e2e")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if s.Failed() {
			var dump strings.Builder
			s.Dump(ctx, name, &dump)
			s.Log(dump.String())
		}
		if err := remove(ctx); err != nil {
			s.Error(err)
		}
	})
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, label)
	if _, err := s.Kube.CoreV1().Namespaces().Patch(s.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
	return name
}

// oneCertificateFor checks that one certificate covers a Service and its tags in a namespace that
// the wildcard selector matches.
func (s *story) oneCertificateFor(namespace, name string, client *http.Client) {
	s.Helper()
	ready, err := s.Await(s.ctx, cluster.Services, namespace, name, func(o *unstructured.Unstructured) bool {
		return cluster.IsReady(o) && scheme(o, "url") == "https"
	})
	if err != nil {
		s.Fatal(err)
	}
	url, _, _ := unstructured.NestedString(ready.Object, "status", "url")
	_, domain, _ := strings.Cut(url, ".")
	for _, address := range []string{url, strings.Replace(url, "https://", "https://newest-", 1)} {
		s.until(address+" has the namespace's certificate", func() (bool, string, error) {
			// A new connection each time, to see the current certificate.
			client.CloseIdleConnections()
			response, err := client.Get(address)
			if err != nil {
				return false, err.Error(), nil
			}
			_ = response.Body.Close()
			names := response.TLS.PeerCertificates[0].DNSNames
			return response.StatusCode == http.StatusOK && slices.Equal(names, []string{"*." + domain}), fmt.Sprint(response.Status, names), nil
		})
	}
	s.until("no other certificate is left", func() (bool, string, error) {
		made, err := s.Dynamic.Resource(schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}).
			Namespace(namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/route,networking.knative.dev/certificate-type=external-domain"})
		if err != nil {
			return false, err.Error(), nil
		}
		return len(made.Items) == 0, fmt.Sprintf("%d certificates", len(made.Items)), nil
	})
}

// ownCertificate maps a domain with the user's own certificate and redirects its plain HTTP to
// https.
func (s *story) ownCertificate(domain string) {
	s.Helper()
	public, private := certificate.PEM(certificate.Make(x509.Certificate{DNSNames: []string{domain}, IsCA: true, BasicConstraintsValid: true}, nil))
	_, err := s.Kube.CoreV1().Secrets(s.namespace).Create(s.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "brought"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": public, "tls.key": private}}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	s.apply(fmt.Sprintf(`
apiVersion: serving.knative.dev/v1beta1
kind: DomainMapping
metadata:
  name: %s
  annotations: {networking.knative.dev/http-protocol: Redirected}
spec:
  ref: {kind: Service, name: mapped, apiVersion: serving.knative.dev/v1}
  tls: {secretName: brought}
`, domain))
	s.Cleanup(func() { s.deleteClaim(domain) })
	mapped := s.awaitStatus(cluster.DomainMappings, domain, func(o *unstructured.Unstructured) bool {
		return cluster.IsReady(o) && scheme(o, "url") == "https"
	})
	if c := cluster.Conditions(mapped)["CertificateProvisioned"]; c.Reason != "CertificateExternallyProvided" {
		s.Errorf("the mapping reports this about the user's certificate: %v", c)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(public)
	client := s.trusting(roots, s.externalAddress())
	s.until("the domain serves the user's certificate", func() (bool, string, error) {
		client.CloseIdleConnections()
		reply := probe.Get(s.ctx, client, "https://"+domain)
		return reply.OK(), reply.String(), nil
	})
	s.until("plain HTTP of the mapped domain is redirected to https", func() (bool, string, error) {
		reply, err := s.client().Get("http://" + domain + "/")
		if err != nil {
			return false, err.Error(), nil
		}
		_ = reply.Body.Close()
		return reply.StatusCode == http.StatusMovedPermanently, reply.Status, nil
	})
}
