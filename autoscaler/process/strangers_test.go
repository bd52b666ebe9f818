package process

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/internal/frontproxy"
	"ebb.dev/ebb/internal/testing/certificate"
	"ebb.dev/ebb/test/eventually"
)

// signed returns a certificate for a name, signed by another one, or by itself if that is nil.
func signed(name string, by *tls.Certificate) tls.Certificate {
	return certificate.Make(x509.Certificate{Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IsCA: by == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, by)
}

// viewPort serves the API behind the real front proxy, and returns its address, and a client with
// the certificate of an API server, which keeps its connections.
func viewPort(t *testing.T) (address string, apiServer func() *http.Client, stranger tls.Certificate) {
	ca := signed("authority", nil)
	proxy := signed("front-proxy-client", &ca)
	kube := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: frontproxy.Namespace, Name: frontproxy.ConfigMap}, Data: map[string]string{
		"requestheader-client-ca-file":   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Certificate[0]})),
		"requestheader-allowed-names":    `["front-proxy-client"]`,
		"requestheader-username-headers": `["X-Remote-User"]`,
	}})
	access := frontproxy.New(kube, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	go access.Run(ctx)
	eventually.True(t, "the ConfigMap was read", func() bool {
		return access.Verify(tls.ConnectionState{PeerCertificates: []*x509.Certificate{proxy.Leaf}}) == nil
	})
	own := signed("autoscaler-view", nil)
	server := &viewServer{verify: access.Verify,
		certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &own, nil },
		handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := access.Caller(r); err != nil {
				w.WriteHeader(http.StatusUnauthorized)
			}
		})}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.serve(ctx, listener) }()
	t.Cleanup(func() { cancel(); <-done })
	return listener.Addr().String(), func() *http.Client {
		transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{proxy}}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: time.Minute}
	}, signed("front-proxy-client", nil)
}

// discovers asks as the API server does for discovery.
func discovers(client *http.Client, address string) string {
	r, _ := http.NewRequest("GET", "https://"+address+"/apis", nil)
	r.Header.Set("X-Remote-User", "system:kube-aggregator")
	answer, err := client.Do(r)
	if err != nil {
		return err.Error()
	}
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	return answer.Proto + " " + answer.Status
}

func TestAStrangerDoesNotGetThroughTheHandshake(t *testing.T) {
	address, _, forged := viewPort(t)
	for name, certificates := range map[string][]tls.Certificate{"no certificate": nil, "another authority's": {forged}} {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: certificates})
		if err == nil { // with TLS 1.3 a client learns it when it reads
			io.WriteString(conn, "GET /apis HTTP/1.1\r\nHost: a\r\n\r\n")
			conn.SetReadDeadline(time.Now().Add(time.Minute))
			answer := make([]byte, 100)
			var n int
			n, err = conn.Read(answer)
			conn.Close()
			if err == nil {
				t.Errorf("%s: answered with %q", name, answer[:n])
			}
		}
		if err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the connection stays", name)
		}
	}
}

// Two pods take all connections that they can get and never show a certificate. An API server with
// an open connection keeps it, and one that comes later gets in.
func TestStrangersDoNotKeepTheAPIServerOut(t *testing.T) {
	address, apiServer, _ := viewPort(t)
	early := apiServer()
	if got := discovers(early, address); got != "HTTP/2.0 200 OK" {
		t.Fatal(got)
	}
	stop := make(chan struct{})
	defer close(stop)
	held := make(chan struct{}, 10000)
	for _, from := range []string{"127.0.0.2", "127.0.0.3"} {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: time.Minute}
		for range 2 * maxViewStrangers {
			go func() {
				for {
					conn, err := dialer.Dial("tcp", address)
					select {
					case <-stop:
						if err == nil {
							conn.Close()
						}
						return
					default:
					}
					if err != nil {
						time.Sleep(10 * time.Millisecond)
						continue
					}
					select {
					case held <- struct{}{}:
					default:
					}
					go func() { <-stop; conn.Close() }()
					io.Copy(io.Discard, conn) // until it is put out; then it comes again
					conn.Close()
					time.Sleep(20 * time.Millisecond)
				}
			}()
		}
	}
	for range 4 * maxViewStrangers { // all have been there once
		<-held
	}
	for i := range 10 {
		if got := discovers(apiServer(), address); got != "HTTP/2.0 200 OK" {
			t.Errorf("API server %d that comes later: %s", i, got)
		}
	}
	if got := discovers(early, address); got != "HTTP/2.0 200 OK" {
		t.Errorf("the API server that was there: %s", got)
	}
}
