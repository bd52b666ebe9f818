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

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/identity"
	"ebb.dev/ebb/forward"
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
	server := httptest.NewUnstartedServer(answer("encrypted"))
	server.EnableHTTP2 = true
	server.StartTLS()
	w.t.Cleanup(server.Close)
	w.encrypted[endpoint.Address] = netip.MustParseAddrPort(server.Listener.Addr().String())
	return endpoint
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

func TestAPodFromBeforeTLSIsReachedPlainly(t *testing.T) {
	w := secured(t, func() error { return nil })
	w.revision(backends.Info{Early: true, ContainerConcurrency: 1})
	old := w.pod("old", answer("plain"))
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.encrypted[old.Address] = netip.MustParseAddrPort(closed.Addr().String())
	closed.Close()
	w.pods(old)
	for range 3 {
		if status, _, body := w.send("POST", "body"); status != 200 || body != "plain" {
			t.Errorf("%d %q", status, body)
		}
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
	if waiting, flying := w.table.Get(key).Queue.Load(); waiting+flying != 0 {
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
