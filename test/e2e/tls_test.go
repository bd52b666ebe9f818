//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// With certificates switched on, hosts outside and inside the cluster and a mapped domain serve
// https that verifies. Plain HTTP is redirected if the setting says so. Switching certificates off
// undoes all of it.
func TestHostsAreServedHTTPSWithCertificatesThatVerify(t *testing.T) {
	s := beginAlone(t, 3*time.Minute)
	s.needsCertManager()
	pods := s.gatewayPods()
	url := s.ready("secure", service{name: "secure"}.manifest())
	if !strings.HasPrefix(url, "http://") {
		t.Fatalf("before certificates are switched on the URL is %s", url)
	}
	s.config("config-network", map[string]string{"external-domain-tls": "Enabled", "cluster-local-domain-tls": "Enabled",
		"autocreate-cluster-domain-claims": "true"})

	ready := s.awaitStatus(cluster.Services, "secure", func(o *unstructured.Unstructured) bool {
		return cluster.IsReady(o) && scheme(o, "url") == "https" && scheme(o, "address", "url") == "https"
	})
	outside, _, _ := unstructured.NestedString(ready.Object, "status", "url")
	host := strings.TrimPrefix(outside, "https://")
	secure := s.verifying(s.externalAddress())
	s.answers(secure, outside)
	s.answers(s.client(), "http://"+host)

	inside, _, _ := unstructured.NestedString(ready.Object, "status", "address", "url")
	s.answers(s.verifying(s.localAddress()), inside)

	domain := s.namespace + ".example.test"
	s.apply(fmt.Sprintf(`
apiVersion: serving.knative.dev/v1beta1
kind: DomainMapping
metadata:
  name: %s
spec:
  ref: {kind: Service, name: secure, apiVersion: serving.knative.dev/v1}
`, domain))
	s.Cleanup(func() { s.deleteClaim(domain) })
	s.awaitStatus(cluster.DomainMappings, domain, func(o *unstructured.Unstructured) bool {
		return cluster.IsReady(o) && scheme(o, "url") == "https"
	})
	s.answers(secure, "https://"+domain)

	s.config("config-network", map[string]string{"http-protocol": "Redirected"})
	s.until("plain HTTP is redirected to https", func() (bool, string, error) {
		reply, err := s.client().Get("http://" + host + "/some/where")
		if err != nil {
			return false, err.Error(), nil
		}
		_ = reply.Body.Close()
		to := reply.Header.Get("Location")
		return reply.StatusCode == http.StatusMovedPermanently && strings.TrimSuffix(strings.Replace(to, ":443/", "/", 1), "/some/where") == outside,
			fmt.Sprintf("%d, Location %q", reply.StatusCode, to), nil
	})

	s.config("config-network", map[string]string{"external-domain-tls": "Disabled", "cluster-local-domain-tls": "Disabled", "http-protocol": "Enabled"})
	s.awaitStatus(cluster.Services, "secure", func(o *unstructured.Unstructured) bool {
		return cluster.IsReady(o) && scheme(o, "url") == "http" && scheme(o, "address", "url") == "http"
	})
	s.answers(s.client(), "http://"+host)
	if after := s.gatewayPods(); !slices.Equal(after, pods) {
		s.Errorf("the gateways' pods were replaced: %v, then %v", pods, after)
	}
}

// gatewayPods lists the pods of Istio's gateways.
func (s *story) gatewayPods() (names []string) {
	s.Helper()
	list, err := s.Kube.CoreV1().Pods("knative-serving").List(s.ctx, metav1.ListOptions{LabelSelector: "gateway.networking.k8s.io/gateway-name"})
	if err != nil {
		s.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	slices.Sort(names)
	return names
}

// needsCertManager skips the test on a cluster without cert-manager or without the issuer of
// config/certmanager. The dev cluster has both.
func (s *story) needsCertManager() {
	s.Helper()
	issuers := schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "clusterissuers"}
	if _, err := s.Dynamic.Resource(issuers).Get(s.ctx, "knative-selfsigned-issuer", metav1.GetOptions{}); err != nil {
		s.Skipf("the cluster has no ClusterIssuer knative-selfsigned-issuer (kubectl apply -k config/certmanager): %v", err)
	}
}

func (s *story) awaitStatus(resource schema.GroupVersionResource, name string, done func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	s.Helper()
	object, err := s.Await(s.ctx, resource, s.namespace, name, done)
	if err != nil {
		s.Fatal(err)
	}
	return object
}

func scheme(o *unstructured.Unstructured, path ...string) string {
	text, _, _ := unstructured.NestedString(o.Object, append([]string{"status"}, path...)...)
	scheme, _, _ := strings.Cut(text, "://")
	return scheme
}

// verifying returns a client that connects to address for every host and trusts only the CA of
// config/certmanager.
func (s *story) verifying(address string) *http.Client {
	s.Helper()
	secret, err := s.Kube.CoreV1().Secrets("cert-manager").Get(s.ctx, "knative-selfsigned-ca", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(secret.Data["tls.crt"]) {
		s.Fatal("the CA's Secret holds no certificate")
	}
	return s.trusting(roots, address)
}

// trusting returns a client that connects to address for every host and trusts only these CAs.
func (s *story) trusting(roots *x509.CertPool, address string) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, address)
		},
	}}
	s.Cleanup(client.CloseIdleConnections)
	return client
}

func (s *story) externalAddress() string {
	s.Helper()
	host, _, err := net.SplitHostPort(s.Gateway)
	if err != nil {
		s.Fatal(err)
	}
	return net.JoinHostPort(host, "443")
}

// localAddress returns the cluster IP of the local gateway. This machine can reach it because it is
// the node.
func (s *story) localAddress() string {
	s.Helper()
	address, err := s.LocalGateway(s.ctx, "443")
	if err != nil {
		s.Fatal(err)
	}
	return address
}

func (s *story) answers(client *http.Client, url string) {
	s.Helper()
	if reply := probe.Get(s.ctx, client, url); !reply.OK() {
		s.Fatalf("%s: %s", url, reply)
	}
}

// TLS between Ebb's components is switched on and off under load, and no request is lost. A service
// at zero wakes up over it.
func TestTLSBetweenEbbsPartsIsSwitchedOnAndOffWithoutALostRequest(t *testing.T) {
	s := beginAlone(t, 3*time.Minute)
	s.needsCertManager()
	s.ready("asleep", service{name: "asleep"}.manifest())
	spoken := s.ready("spoken", service{name: "spoken"}.manifest()+"        ports:\n        - name: h2c\n          containerPort: 8080\n")
	url := s.ready("inner", service{name: "inner", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}}.manifest())
	traffic := probe.Start(s.client(), url, 20*time.Millisecond)

	s.config("config-network", map[string]string{"system-internal-tls": "Enabled"})
	s.awaitPort("inner", 443)
	s.awaitPort("asleep", 443)
	pods, err := s.Pods(s.ctx, s.namespace, "inner", false)
	if err != nil || len(pods) == 0 {
		s.Fatalf("pods of the service: %v, %v", pods, err)
	}
	roots := x509.NewCertPool()
	authority, err := s.Kube.CoreV1().ConfigMaps(s.namespace).Get(s.ctx, "serving-certs-authority", metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	roots.AppendCertsFromPEM([]byte(authority.Data["ca.crt"]))
	s.until("the pod serves a certificate of its namespace", func() (bool, string, error) {
		dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "kn-user-" + s.namespace}}
		conn, err := dialer.DialContext(s.ctx, "tcp", net.JoinHostPort(pods[0].Status.PodIP, "8112"))
		if err != nil {
			return false, err.Error(), nil
		}
		return true, "", conn.Close()
	})
	s.awaitPort("spoken", 443)
	s.awaitZero("asleep")
	s.awaitZero("spoken")
	s.speaksGRPC(spoken)
	s.answers(s.client(), strings.Replace(url, "inner", "asleep", 1))

	s.config("config-network", map[string]string{"system-internal-tls": "Disabled"})
	s.awaitPort("inner", 80)
	report := traffic.StopAfter(s.ctx, 500)
	s.Logf("%d requests, the slowest took %s", report.Sent, report.Slowest)
	if err := report.Err(500); err != nil {
		s.Error(err)
	}
}

// speaksGRPC makes a unary call and a streaming call to a gRPC service, through the gateway.
func (s *story) speaksGRPC(url string) {
	s.Helper()
	host, err := cluster.HostOf(url)
	if err != nil {
		s.Fatal(err)
	}
	client := healthpb.NewHealthClient(s.grpc(host))
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	for range 3 { // the first from zero
		reply, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		if err != nil || reply.Status != healthpb.HealthCheckResponse_SERVING {
			s.Fatalf("gRPC over TLS between the components: %v, %v", reply, err)
		}
	}
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		s.Fatal(err)
	}
	if reply, err := stream.Recv(); err != nil || reply.Status != healthpb.HealthCheckResponse_SERVING {
		s.Errorf("the first message of an open stream: %v, %v", reply, err)
	}
}

// awaitPort waits until the gateways are configured to reach a service, which is Ready, on this
// port.
func (s *story) awaitPort(name string, port int64) {
	s.Helper()
	s.awaitStatus(cluster.HTTPRoutes, name+"."+s.namespace+".svc.cluster.local", func(o *unstructured.Unstructured) bool {
		rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "rules")
		for _, rule := range rules {
			backends, _, _ := unstructured.NestedSlice(rule.(map[string]any), "backendRefs")
			for _, b := range backends {
				// The way to the courier is not encrypted (docs/tls.md).
				if one := b.(map[string]any); one["port"] != port && one["name"] != "courier" {
					return false
				}
			}
		}
		return len(rules) > 0
	})
	s.awaitStatus(cluster.Services, name, cluster.IsReady)
}
