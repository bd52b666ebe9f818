package chain

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// podH2 is pod for HTTP/1.1, and for HTTP/2 with prior knowledge.
func (w *world) podH2(name string, handler http.HandlerFunc) backends.Endpoint {
	server := httptest.NewUnstartedServer(handler)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
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
	eventually.True(t, "the slots are back", func() bool { _, flying := r.Queue().Load(); return flying == 0 })
}

// One connection is not one pod: its streams are spread like requests of their own.
func TestStreamsOfOneConnectionAreSpreadOverThePods(t *testing.T) {
	// Without a limit two random pods are compared for each request: in one of ten thousand runs a
	// pod is more than 6 off.
	t.Run("no limit", func(t *testing.T) { spread(t, backends.Info{H2C: true}, 6) })
	t.Run("a limit", func(t *testing.T) { spread(t, backends.Info{H2C: true, ContainerConcurrency: 20}, 2) })
}

func spread(t *testing.T, info backends.Info, off int64) {
	const pods, streams = 10, 100
	w := newWorld(t, hold.Bounds{})
	w.revision(info)
	release := make(chan bool)
	counts := make([]atomic.Int64, pods)
	var remotes sync.Map
	var endpoints []backends.Endpoint
	for i := range pods {
		endpoints = append(endpoints, w.podH2(fmt.Sprint("p", i), func(rw http.ResponseWriter, r *http.Request) {
			counts[i].Add(1)
			<-release
		}))
	}
	w.pods(endpoints...)
	l := w.handler.Ended
	w.handler.Ended = func(x *Exchange, r *forward.Request, res *forward.Result) {
		remotes.Store(r.RemoteAddr(), nil)
		if l != nil {
			l(x, r, res)
		}
	}
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	defer transport.CloseIdleConnections()
	failures := make(chan error, streams)
	for range streams {
		go func() {
			request, err := http.NewRequestWithContext(t.Context(), "POST", w.url+"/svc/Stream", strings.NewReader("x"))
			if err != nil {
				failures <- err
				return
			}
			request.Header.Set(wire.HeaderRevision, "rev")
			request.Header.Set(wire.HeaderNamespace, "ns")
			response, err := transport.RoundTrip(request)
			if err == nil {
				response.Body.Close()
				if response.StatusCode != 200 {
					err = errors.New(response.Status)
				}
			}
			failures <- err
		}()
	}
	total := func() (n int64) {
		for i := range counts {
			n += counts[i].Load()
		}
		return n
	}
	eventually.True(t, "all streams are at pods", func() bool { return total() == streams })
	for i := range counts {
		if n := counts[i].Load(); n < streams/pods-off || n > streams/pods+off {
			t.Errorf("pod %d has %d of %d streams", i, n, streams)
		}
	}
	close(release)
	for range streams {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
	eventually.True(t, "the ends are told", func() bool { n := 0; remotes.Range(func(any, any) bool { n++; return true }); return n > 0 })
	n := 0
	remotes.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("the streams came over %d connections; the test does not test", n)
	}
}
