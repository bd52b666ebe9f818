package chain

import (
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// fleet is several activators behind the Service to which gateways lead hello.example.com, a host
// that rests. Its Route leads to revision key.
type fleet struct {
	t   testing.TB
	all []*world
	// two are those at which the revision's requests gather, other is one of the rest.
	two   []*world
	other *world
}

func newFleet(t testing.TB, n int) *fleet {
	f := &fleet{t: t}
	addresses := sets.New[string]()
	for i := range n {
		self := netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})
		addresses.Insert(self.String())
		w := newWorldAt(t, hold.Bounds{}, self.String())
		w.handler.Relay = &relay.Table{Self: self, Capacity: func() float64 { return 100 }, Open: func(a netip.AddrPort) *forward.Upstream {
			return forward.NewUpstream(a.String(), forward.UpstreamOptions{DialTimeout: 5 * time.Second})
		}}
		w.rests(`{"host":"hello.example.com","to":[{"rev":"` + key.Name + `"}]}`)
		f.all = append(f.all, w)
	}
	for _, w := range f.all {
		w.knows(f.all...)
	}
	chosen := plan.Subset(key.Name, 2, addresses)
	for _, w := range f.all {
		if chosen.Has(w.handler.Relay.Self.String()) {
			f.two = append(f.two, w)
		} else {
			f.other = w
		}
	}
	return f
}

// knows says which activators stand in the EndpointSlice that an activator has seen.
func (w *world) knows(others ...*world) {
	var addresses []netip.AddrPort
	for _, other := range others {
		addresses = append(addresses, other.address())
	}
	w.handler.Relay.SetSlice("s", addresses)
}

func (w *world) address() netip.AddrPort { return netip.MustParseAddrPort(w.url[len("http://"):]) }

func (f *fleet) revision(info backends.Info) {
	for _, w := range f.all {
		w.revision(info)
	}
}

func (f *fleet) pods(endpoints ...backends.Endpoint) {
	for _, w := range f.all {
		w.pods(endpoints...)
	}
}

// led sends a request as a gateway does that leads its host to this activator.
func (w *world) led(method, body string, header ...string) (status int, answer string) {
	w.t.Helper()
	status, _, answer = w.send(method, body, append([]string{wire.HeaderRevision, "", wire.HeaderNamespace, "", wire.HeaderResting, "external"}, header...)...)
	return status, answer
}

// counted is how many requests an activator has counted, and how many it has relayed.
func (w *world) counted() (requests, relayed int64) {
	if r := w.table.Get(key); r != nil {
		load := r.Load()
		for i := range load.Requests {
			requests += load.Requests[i].Load()
		}
	}
	return requests, w.handler.Relay.Relayed.Load()
}

// counts waits until the activators together have counted each of n requests once, and have nothing
// left.
func (f *fleet) counts(n int64) {
	f.t.Helper()
	eventually.Seen(f.t, "each request is counted once, and nothing is left", func() (seen [5]int64, ok bool) {
		for _, w := range f.all {
			requests, relayed := w.counted()
			seen[0] += requests
			seen[1] += relayed
			seen[2] += w.budget.Held()
			seen[3] += w.budget.HeldBytes()
			if r := w.table.Get(key); r != nil {
				waiting, flying := r.Queue().Load()
				seen[4] += waiting + flying + int64(r.Load().Meter.Now())
			}
		}
		return seen, seen[0] == n && seen[2]+seen[3]+seen[4] == 0
	})
}
