package chain

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/eventually"
)

// secured is a world whose pods may have a TLS port too.
func secured(t *testing.T, believe func() error) *world {
	w := newWorld(t, hold.Bounds{})
	w.encrypted = map[netip.AddrPort]netip.AddrPort{}
	w.encrypt.Store(true)
	w.tls = &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { return believe() }}
	return w
}

func answer(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(text)) }
}

// tlsPod starts a pod that answers "plain" and "encrypted" on its two ports.
func (w *world) tlsPod(name string) backends.Endpoint {
	endpoint := w.pod(name, answer("plain"))
	w.encrypted[endpoint.Address] = w.serveTLS("127.0.0.1:0")
	return endpoint
}

// serveTLS answers "encrypted" over TLS at an address.
func (w *world) serveTLS(address string) netip.AddrPort {
	w.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(answer("encrypted"))
	server.Listener.Close()
	server.Listener = listener
	server.EnableHTTP2 = true
	server.StartTLS()
	w.t.Cleanup(server.Close)
	return netip.MustParseAddrPort(listener.Addr().String())
}

func TestPodsAreReachedOverTLSWhileItIsSwitchedOn(t *testing.T) {
	w := secured(t, func() error { return nil })
	w.revision(backends.Info{Early: true})
	w.pods(w.tlsPod("a"))
	for _, step := range []struct {
		on   bool
		want string
	}{{true, "encrypted"}, {false, "plain"}, {true, "encrypted"}} {
		w.encrypt.Store(step.on)
		if status, _, body := w.send("POST", "body"); status != 200 || body != step.want {
			t.Errorf("switched on %t: %d %q, want %q", step.on, status, body, step.want)
		}
	}
}

// Whoever answers at a pod's address could ask for plain requests by refusing the TLS port. The
// request waits instead, and no longer than it must: a revision whose pods are being replaced after
// TLS was enabled is served as soon as one of them has a certificate.
func TestAPodThatRefusesTLSGetsNothingInPlainText(t *testing.T) {
	for _, test := range []struct {
		name    string
		then    func(w *world, old backends.Endpoint)
		timeout time.Duration
		status  int
		body    string
		plainly int64 // requests that reach the old pod in plain text
	}{
		{name: "a new pod serves TLS", status: 200, body: "encrypted",
			then: func(w *world, old backends.Endpoint) { w.pods(old, w.tlsPod("new")) }},
		{name: "the old pod gets its certificate", status: 200, body: "encrypted",
			then: func(w *world, old backends.Endpoint) { w.serveTLS(w.encrypted[old.Address].String()) }},
		{name: "the setting is disabled", status: 200, body: "plain", plainly: 1,
			then: func(w *world, _ backends.Endpoint) { w.encrypt.Store(false) }},
		{name: "nothing changes", status: 504, timeout: time.Second, body: "activator request timeout: timeoutSeconds is 1s",
			then: func(*world, backends.Endpoint) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var seen atomic.Int64
			w := secured(t, func() error { return nil })
			w.revision(backends.Info{Early: true, ContainerConcurrency: 1, Timeout: test.timeout})
			old := w.pod("old", func(w http.ResponseWriter, _ *http.Request) {
				seen.Add(1)
				w.Write([]byte("plain"))
			})
			w.encrypted[old.Address] = reserve.Port(t) // nobody listens
			w.pods(old)
			type reply struct {
				status int
				body   string
			}
			answered := make(chan reply)
			go func() {
				status, _, body := w.send("POST", "body")
				answered <- reply{status, body}
			}()
			eventually.True(t, "the request waits", func() bool { return w.budget.Held() == 1 })
			test.then(w, old)
			if got := <-answered; got != (reply{test.status, test.body}) {
				t.Errorf("got %v, want %d %q", got, test.status, test.body)
			}
			if n := seen.Load(); n != test.plainly {
				t.Errorf("%d requests reached the pod in plain text, want %d", n, test.plainly)
			}
			eventually.True(t, "nothing waits", func() bool { return w.budget.Held() == 0 })
		})
	}
}

func TestNothingIsSentToAPodWithAWrongCertificate(t *testing.T) {
	var seen atomic.Int64
	w := secured(t, func() error { return &identity.UntrustedError{Namespace: "ns", Err: errors.New("signed by nobody")} })
	w.revision(backends.Info{Early: true})
	pod := w.pod("bad", func(http.ResponseWriter, *http.Request) { seen.Add(1) })
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
	t.Cleanup(server.Close)
	w.encrypted[pod.Address] = netip.MustParseAddrPort(server.Listener.Addr().String())
	w.pods(pod)
	if status, _, body := w.send("POST", "body"); status != 502 || !strings.Contains(body, "signed by nobody") {
		t.Errorf("got %d %q, want 502 and why", status, body)
	}
	if n := seen.Load(); n != 0 {
		t.Errorf("%d requests reached it", n)
	}
	if waiting, flying := w.table.Get(key).Queue().Load(); waiting+flying != 0 {
		t.Errorf("%d wait and %d are in flight afterwards", waiting, flying)
	}
}

// HTTP/2 keeps its protocol on the way to the pod.
func TestHTTP2OverTLSToAPod(t *testing.T) {
	w := secured(t, func() error { return nil })
	w.revision(backends.Info{Early: true, H2C: true})
	pod := w.pod("a", answer("plain"))
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(r.Proto)) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	w.encrypted[pod.Address] = netip.MustParseAddrPort(server.Listener.Addr().String())
	w.pods(pod)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	w.client = &http.Client{Transport: &http.Transport{Protocols: protocols}}
	if status, _, body := w.send("POST", "body"); status != 200 || body != "HTTP/2.0" {
		t.Errorf("%d %q", status, body)
	}
}

var _ forward.Redirector = (*Handler)(nil)
