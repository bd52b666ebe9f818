package probe

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/wire"
)

func TestAPodWithoutAnnouncementIsFoundByAsking(t *testing.T) {
	var asked atomic.Int64
	var ready atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(wire.HeaderNetworkProbe) != wire.ProbeQueue || r.UserAgent() != wire.AgentActivatorProbe {
			t.Errorf("asked with %v", r.Header)
		}
		if asked.Add(1) > 2 {
			ready.Store(true)
		}
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		io.WriteString(w, wire.ProbeQueue)
	}))
	defer server.Close()
	key := backends.Key{Namespace: "ns", Name: "rev"}
	budget := hold.NewBudget(hold.Bounds{})
	prober := New(func() bool { return false })
	table := backends.NewTable(func(k backends.Key, _ *backends.Info) *hold.Queue {
		return hold.New(0, budget.Share(k.Namespace), hold.Options{Pressure: func(int) { prober.Want(k) }})
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- prober.Run(ctx, table) }()
	table.SetRevision(key, &backends.Info{UID: "u", Early: true})
	address := netip.MustParseAddrPort(server.Listener.Addr().String())
	table.SetSlice(key, "s", []backends.Endpoint{{Address: address, Pod: "p"}})

	slot, err := table.Get(key).Queue().Acquire(t.Context(), &hold.Ticket{})
	if err != nil || slot.Address() != address {
		t.Fatalf("got %v, %v", slot, err)
	}
	slot.Release(true)
	if asked.Load() < 3 {
		t.Errorf("asked %d times, want at least 3", asked.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
