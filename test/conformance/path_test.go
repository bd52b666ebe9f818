package conformance

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	"ebb.dev/ebb/test/internal/component"
	"ebb.dev/ebb/test/internal/loopback"
)

// revision is behind the activator.
const revision = "spec-00001"

// start runs queue-proxy in front of handler, and an activator in front of queue-proxy. It returns
// the addresses of both for requests, and the host by which the activator knows the revision.
func start(t *testing.T, handler http.HandlerFunc) (queueProxy, activator, host string) {
	t.Helper()
	container := serve(t, handler)
	dir := component.Build(t)
	_, queueProxy = component.StartQueueProxy(t, dir, revision, "spec", 0, container, "")
	cluster, err := loopback.Start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Stop)
	if err := cluster.Revision(revision, 0, queueProxy); err != nil {
		t.Fatal(err)
	}
	ip := fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	component.StartActivator(t, dir, ip, cluster)
	return queueProxy, component.FrontOf(ip), revision + "." + loopback.Namespace + ".svc.cluster.local"
}

// serve serves HTTP/1.1 and HTTP/2 without TLS on loopback and returns its address.
func serve(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: handler, Protocols: protocols}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return listener.Addr().String()
}

// hello reads the request and answers with more bytes than the smallest windows of h2spec.
func hello(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	io.WriteString(w, strings.Repeat("hello\n", 100))
}
