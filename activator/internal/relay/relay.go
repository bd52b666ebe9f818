// Package relay knows at which two activators the requests of a revision gather. Gateways lead
// requests for hosts that rest to any activator, so the revision's queue would be in as many pieces
// (docs/decisions/0020).
//
// Owns: the list of these activators, the connections to them, and which of them could not be
// reached. Reads: the calls of watch and chain. Writes: nothing else. Never: waits; relays anything
// while there are no more than two activators.
package relay

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/ingress/plan"
)

const (
	// two is at how many activators the requests of a revision gather. They are among those that
	// stand in its own EndpointSlices.
	two = 2
	// restFor is how long nothing is relayed to an activator that could not be reached, or hangs.
	// One request tries again each time that it is over.
	restFor = 5 * time.Second
)

// Table has the activators to which gateways lead requests for hosts that rest.
type Table struct {
	// Self is the address of this activator.
	Self netip.Addr
	// Open returns the way to another one.
	Open func(netip.AddrPort) *forward.Upstream
	// Off says that nothing is to be relayed now; nil is never.
	Off func() bool
	// Capacity is how many requests at once an activator is meant to carry.
	Capacity func() float64
	// Relayed counts the requests that other activators took.
	Relayed atomic.Int64

	list atomic.Pointer[list] // nil while nothing is relayed

	mutex  sync.Mutex
	slices map[string][]netip.AddrPort
	others map[netip.AddrPort]*Activator
}

// list is the activators of one moment. It never changes.
type list struct {
	addresses sets.Set[string]
	others    map[string]*Activator
}

// Activator is another activator.
type Activator struct {
	upstream *forward.Upstream
	rests    atomic.Int64 // until when, in unix nanoseconds; 0 for one that could be reached
}

// Choice is a revision's memory of where its requests gather. The zero value knows nothing yet.
type Choice struct{ last atomic.Pointer[choice] }

type choice struct {
	of *list
	at []*Activator // none if this activator is one of the two
}

// SetSlice stores the activators that stand in an EndpointSlice. None is one that was deleted.
func (t *Table) SetSlice(name string, addresses []netip.AddrPort) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.slices == nil {
		t.slices, t.others = map[string][]netip.AddrPort{}, map[netip.AddrPort]*Activator{}
	}
	if t.slices[name] = addresses; len(addresses) == 0 {
		delete(t.slices, name)
	}
	next := &list{addresses: sets.New[string](), others: map[string]*Activator{}}
	all := map[netip.AddrPort]*Activator{}
	for _, addresses := range t.slices {
		for _, a := range addresses {
			// An activator with two addresses is in two lists, each of one kind.
			if a.Addr().Is4() != t.Self.Is4() || next.addresses.Has(a.Addr().String()) {
				continue
			}
			next.addresses.Insert(a.Addr().String())
			if a.Addr() != t.Self {
				all[a] = t.others[a]
			}
		}
	}
	if len(next.addresses) <= two {
		next, all = nil, nil
	}
	for a, other := range all {
		if other == nil {
			other = &Activator{upstream: t.Open(a)}
			all[a] = other
		}
		next.others[a.Addr().String()] = other
	}
	for a, other := range t.others {
		if all[a] == nil {
			go other.upstream.Close() // many connections take a while
		}
	}
	if now := t.list.Load(); now == nil || next == nil || !now.same(next) {
		t.list.Store(next)
	}
	t.others = all
}

func (l *list) same(other *list) bool {
	if len(l.others) != len(other.others) || !l.addresses.Equal(other.addresses) {
		return false
	}
	for a, one := range l.others {
		if other.others[a] != one {
			return false
		}
	}
	return true
}

// Relays reports whether anything is relayed now.
func (t *Table) Relays() bool {
	return t != nil && t.list.Load() != nil && (t.Off == nil || !t.Off())
}

// Gathers reports whether the requests of a revision with so many pods, of which each takes limit
// requests at once (0: any number), wait in a queue that should be in few pieces. It should not if
// its pods take more than two activators are meant to carry.
func (t *Table) Gathers(pods, limit int) bool {
	return pods == 0 || limit > 0 && float64(pods)*float64(limit) <= two*t.Capacity()
}

// For returns the activator that a revision's request is to be relayed to. It is nil if this one is
// to serve it: as one of the two, or because the two cannot be reached.
func (t *Table) For(c *Choice, revision string, now time.Time) *Activator {
	l := t.list.Load()
	if l == nil {
		return nil
	}
	last := c.last.Load()
	if last == nil || last.of != l {
		last = &choice{of: l}
		for _, a := range gather(t.Self.String(), l.addresses, revision) {
			last.at = append(last.at, l.others[a])
		}
		c.last.Store(last)
	}
	if n := len(last.at); n > 0 {
		first := rand.IntN(n)
		for i := range n {
			if a := last.at[(first+i)%n]; a.takes(now) {
				return a
			}
		}
	}
	return nil
}

// gather returns at which activators, other than self, the requests of a revision gather: none if
// self is one of the two. What it returns depends on nothing else, so activators that know the same
// others gather at the same two.
func gather(self string, all sets.Set[string], revision string) []string {
	if len(all) <= two {
		return nil
	}
	chosen := plan.Subset(revision, two, all)
	if chosen.Has(self) {
		return nil
	}
	return sets.List(chosen)
}

// Upstream is the way to the activator.
func (a *Activator) Upstream() *forward.Upstream { return a.upstream }

// takes reports whether a request may be relayed there.
func (a *Activator) takes(now time.Time) bool {
	until := a.rests.Load()
	return until == 0 || now.UnixNano() >= until && a.rests.CompareAndSwap(until, now.Add(restFor).UnixNano())
}

// Failed says that the activator could not be reached, or did not answer before a timer ended,
// Answered that it has answered.
func (a *Activator) Failed(now time.Time) { a.rests.Store(now.Add(restFor).UnixNano()) }

// Answered is described at Failed.
func (a *Activator) Answered() {
	if a.rests.Load() != 0 {
		a.rests.Store(0)
	}
}
