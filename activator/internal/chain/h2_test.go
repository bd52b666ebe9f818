package chain

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/wire"
)

// podH2 is pod for HTTP/2 with prior knowledge.
func (w *world) podH2(name string, handler http.HandlerFunc) backends.Endpoint {
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	w.t.Cleanup(server.Close)
	return backends.Endpoint{Address: netip.MustParseAddrPort(server.Listener.Addr().String()), Pod: name, Ready: true}
}

// A gRPC call to a full pod must reach a free one with its body, too.
func TestARefusedRequestOverHTTP2GoesToThePodWithAFreeSlot(t *testing.T) {
	w := newWorld(t, hold.Bounds{})
	r := w.revision(backends.Info{ContainerConcurrency: 1, H2C: true})
	refusing := func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set(wire.HeaderRefused, wire.RefusedLimit)
		rw.WriteHeader(wire.RefusedStatus)
	}
	w.pods(w.podH2("full-1", refusing), w.podH2("full-2", refusing), w.podH2("free", func(rw http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the pod was asked over %s", r.Proto)
		}
		rw.Header().Set("Trailer", "Grpc-Status")
		io.Copy(rw, r.Body)
		rw.Header().Set("Grpc-Status", "0")
	}))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	for _, size := range []int{0, 100, 1_000_000} {
		body := strings.Repeat("b", size)
		// A reader of no known length, as a stream has.
		request, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/svc/Method", io.MultiReader(strings.NewReader(body)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(wire.HeaderRevision, "rev")
		request.Header.Set(wire.HeaderNamespace, "ns")
		response, err := transport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != 200 || string(answer) != body || response.Trailer.Get("Grpc-Status") != "0" {
			t.Errorf("%d bytes: got %d, %d bytes, %v, trailer %v", size, response.StatusCode, len(answer), err, response.Trailer)
		}
	}
	eventually(t, "the slots are back", func() bool { _, flying := r.Queue.Load(); return flying == 0 })
}
