package chain

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// refusing is the address of a pod that refuses connections.
func refusing(t *testing.T) netip.AddrPort {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return netip.MustParseAddrPort(listener.Addr().String())
}

// mute is the address of a pod that accepts connections and says nothing.
func mute(t *testing.T) netip.AddrPort {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return netip.MustParseAddrPort(listener.Addr().String())
}

// unreachable is the address of a pod to which no connection comes about, nor an error: its backlog
// is full.
func unreachable(t *testing.T) netip.AddrPort {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(name.(*syscall.SockaddrInet4).Port))
	for range 10 {
		conn, err := net.DialTimeout("tcp", address.String(), 200*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { conn.Close() })
	}
	t.Fatalf("%s takes more connections than its backlog allows", address)
	return address
}

// While forty requests of a revision in trouble are here, those of another are answered as ever.
func TestOneSlowOrBrokenRevisionDelaysNoOther(t *testing.T) {
	none := func(*testing.T) []netip.AddrPort { return nil }
	some := func(pod func(*testing.T) netip.AddrPort) func(*testing.T) []netip.AddrPort {
		return func(t *testing.T) []netip.AddrPort { return []netip.AddrPort{pod(t), pod(t), pod(t)} }
	}
	for name, c := range map[string]struct {
		limit int
		pods  func(*testing.T) []netip.AddrPort
	}{
		"its pods never answer, one request each":         {1, some(mute)},
		"its pods never answer, any number of requests":   {0, some(mute)},
		"its pods refuse connections":                     {1, some(refusing)},
		"its pods refuse connections, without a limit":    {0, some(refusing)},
		"no connection to its pods comes about":           {1, some(unreachable)},
		"no connection to its pods comes about, no limit": {0, some(unreachable)},
		"it has no pod, and never will":                   {10, none},
		"its pods refuse, never answer, cannot be reached": {2, func(t *testing.T) []netip.AddrPort {
			return []netip.AddrPort{refusing(t), mute(t), unreachable(t)}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, hold.Bounds{PerRevision: 50})
			healthy := backends.Key{Namespace: "ns", Name: "healthy"}
			w.table.SetRevision(healthy, &backends.Info{UID: "h", ContainerConcurrency: 1})
			w.table.SetSlice(healthy, "h", []backends.Endpoint{w.pod("p", func(http.ResponseWriter, *http.Request) {})})
			get := func(ctx context.Context, revision string) (int, error) {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
				if err != nil {
					return 0, err
				}
				request.Header.Set(wire.HeaderNamespace, "ns")
				request.Header.Set(wire.HeaderRevision, revision)
				response, err := w.client.Do(request)
				if err != nil {
					return 0, err
				}
				return response.StatusCode, response.Body.Close()
			}
			// slowest is how long nine of ten requests to the healthy revision take at most.
			slowest := func() time.Duration {
				var took []time.Duration
				for range 50 {
					began := time.Now()
					if status, err := get(t.Context(), healthy.Name); err != nil || status != 200 {
						t.Fatalf("a request to the healthy revision got %d, %v", status, err)
					}
					took = append(took, time.Since(began))
				}
				slices.Sort(took)
				return took[len(took)*9/10]
			}
			before := slowest()

			troubled := w.revision(backends.Info{ContainerConcurrency: c.limit, Timeout: 5 * time.Second})
			var endpoints []backends.Endpoint
			for _, address := range c.pods(t) {
				endpoints = append(endpoints, backends.Endpoint{Address: address, Pod: address.String(), Ready: true})
			}
			w.pods(endpoints...)
			ctx, leave := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			defer clients.Wait()
			defer leave()
			for range 40 {
				clients.Go(func() {
					for ctx.Err() == nil { // who is told that there is no way to a pod asks again
						get(ctx, key.Name)
					}
				})
			}
			here := &troubled.Load().Meter
			eventually.True(t, "forty requests are here", func() bool { return here.Now() == 40 })

			during := slowest()
			t.Logf("%s before, %s beside the trouble", before, during)
			if during > 10*before+time.Second {
				t.Errorf("requests to another revision took %s before, and %s beside the trouble", before, during)
			}
			leave()
			eventually.True(t, "nothing is left of those that waited", func() bool {
				waiting, flying := troubled.Queue().Load()
				return waiting+flying == 0 && here.Now() == 0 && w.budget.Held() == 0 && w.budget.HeldBytes() == 0
			})
		})
	}
}
