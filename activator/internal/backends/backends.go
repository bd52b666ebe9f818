// Package backends stores the revisions and the pods that can serve their requests.
//
// Owns: for each revision, the latest state of its object, of the EndpointSlices of its private
// Service and of its pods' announcements; its queue and its load. Reads: the calls of watch,
// announce and probe. Writes: the pods and the failure of each queue. Never: does I/O or waits.
// Each method returns within microseconds, so informer callbacks can call it and no revision delays
// another.
package backends

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/wire"
)

// Key names a revision.
type Key struct{ Namespace, Name string }

func (k Key) String() string { return k.Namespace + "/" + k.Name }

// Info is what the activator keeps of a Revision object.
type Info struct {
	UID                  string
	Service              string // labels, for metrics
	Configuration        string
	ContainerConcurrency int
	Timeout              time.Duration
	ResponseStartTimeout time.Duration
	IdleTimeout          time.Duration
	wire.Handling
	H2C bool
	// Early allows a pod to be used before it is ready in Kubernetes: when it has announced itself
	// or has answered our probe.
	Early bool
	// Failure is the reason why no pod of the revision can start. It is "" while pods can start.
	Failure string
	// Cold is what its annotations want for requests that find no pod; nil is nothing.
	Cold *cold.Rules
}

// entry is a revision with the state that its sources reported. It may exist before its Revision
// object is seen. Without slices and announcements there is none: most revisions are at zero.
type entry struct {
	revision      *Revision // nil until the object is seen
	slices        map[string][]Endpoint
	announcements map[netip.AddrPort]announcement
}

func (e *entry) note(address netip.AddrPort, a announcement) {
	if e.announcements == nil { // as of most revisions at zero
		e.announcements = map[netip.AddrPort]announcement{}
	}
	e.announcements[address] = a
}

// MaxUnknown bounds the revisions that are known only from announcements.
const MaxUnknown = 10_000

// MaxAnnouncements bounds the announcements that are stored for one revision. An announcement is
// deleted when an EndpointSlice confirms it, so the stored ones belong to pods that are starting or
// stopping.
const MaxAnnouncements = 1_000

// Table holds all revisions.
type Table struct {
	// Make returns the queue of a new revision.
	Make func(Key, *Info) *hold.Queue
	// Gone is called after a revision was deleted; may be nil.
	Gone func(*Revision)
	// Node is where this activator runs, "" if that is not known.
	Node string

	mutex   sync.Mutex
	entries map[Key]*entry
	unknown int // entries without a revision
	// zone is that of Node, "" until a pod there says so, and placed when that was learned.
	zone   string
	placed time.Time
	// ready are the revisions of the pods that Kubernetes lists as ready, one for each slice.
	ready map[netip.Addr][]Key

	// index serves lookups of requests. Its lock is held only during a map access.
	indexMutex sync.RWMutex
	index      map[Key]*Revision
}

// NewTable returns an empty table.
func NewTable(newQueue func(Key, *Info) *hold.Queue) *Table {
	return &Table{Make: newQueue, entries: map[Key]*entry{}, ready: map[netip.Addr][]Key{}, index: map[Key]*Revision{}}
}

// Get returns the revision, or nil if it is not known.
func (t *Table) Get(key Key) *Revision {
	t.indexMutex.RLock()
	defer t.indexMutex.RUnlock()
	return t.index[key]
}

// Each calls visit for every revision.
func (t *Table) Each(visit func(*Revision)) {
	t.indexMutex.RLock()
	all := slices.Collect(maps.Values(t.index))
	t.indexMutex.RUnlock()
	for _, r := range all {
		visit(r)
	}
}

func (t *Table) setIndex(key Key, r *Revision) {
	t.indexMutex.Lock()
	defer t.indexMutex.Unlock()
	if r == nil {
		delete(t.index, key)
	} else {
		t.index[key] = r
	}
}

// changeLocked applies a change to one revision, publishes the result and deletes empty entries.
func (t *Table) changeLocked(key Key, now time.Time, tell func(*entry)) {
	e, known := t.entries[key]
	if !known {
		e = &entry{revision: t.Get(key)}
	} else if e.revision == nil {
		t.unknown--
	}
	tell(e)
	e.publish(t.zone, now)
	if len(e.slices)+len(e.announcements) == 0 {
		delete(t.entries, key)
		return
	}
	t.entries[key] = e
	if e.revision == nil {
		t.unknown++
	}
}

// SetRevision stores the state of a Revision object.
func (t *Table) SetRevision(key Key, info *Info) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if e.revision != nil && e.revision.Info().UID != info.UID {
			t.drop(e) // deleted and created again with the same name
		}
		if e.revision == nil {
			e.revision = &Revision{Key: key, make: t.Make}
			e.revision.set(info)
			t.setIndex(key, e.revision)
			return
		}
		e.revision.set(info)
	})
}

// DeleteRevision deletes a revision. Its queued requests fail.
func (t *Table) DeleteRevision(key Key) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if e.revision != nil {
			t.drop(e)
		}
		clear(e.announcements)
	})
}

func (t *Table) drop(e *entry) {
	r := e.revision
	e.revision = nil
	t.setIndex(r.Key, nil)
	r.delete()
	if t.Gone != nil {
		t.Gone(r)
	}
}

// SetSlice stores the endpoints of one EndpointSlice of the revision's private Service. Nil
// endpoints mean that the slice was deleted.
func (t *Table) SetSlice(key Key, slice string, endpoints []Endpoint) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	now := time.Now()
	t.placeLocked(endpoints, now)
	t.changeLocked(key, now, func(e *entry) {
		t.own(key, e.slices[slice], endpoints)
		if len(endpoints) == 0 { // as of most revisions at zero
			delete(e.slices, slice)
			return
		}
		if e.slices == nil {
			e.slices = map[string][]Endpoint{}
		}
		e.slices[slice] = endpoints
	})
}

// placePeriod is for how long a zone stays that was learned. When a node's label has changed,
// EndpointSlices contradict each other until all are written anew.
const placePeriod = 10 * time.Second

// placeLocked learns the zone of this activator from a pod on its node, and looks at all pods anew
// if it is another than before.
func (t *Table) placeLocked(endpoints []Endpoint, now time.Time) {
	for _, e := range endpoints {
		if t.Node == "" || e.Node != t.Node || e.Zone == t.zone || t.zone != "" && now.Sub(t.placed) < placePeriod {
			continue
		}
		t.zone, t.placed = e.Zone, now
		for _, other := range t.entries {
			other.publish(t.zone, now)
		}
	}
}

// own records of which revision the pods of a changed slice are.
func (t *Table) own(key Key, before, after []Endpoint) {
	for _, e := range before {
		if address := e.Address.Addr(); e.Ready && !e.Terminating {
			owners := t.ready[address]
			if i := slices.Index(owners, key); i >= 0 {
				owners = slices.Delete(owners, i, i+1)
			}
			if t.ready[address] = owners; len(owners) == 0 {
				delete(t.ready, address)
			}
		}
	}
	for _, e := range after {
		if e.Ready && !e.Terminating {
			t.ready[e.Address.Addr()] = append(t.ready[e.Address.Addr()], key)
		}
	}
}

// Knows reports whether Kubernetes lists a pod as ready at an address.
func (t *Table) Knows(address netip.Addr) bool {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return len(t.ready[address]) > 0
}

// Silent takes at which pods nobody answered, and at which somebody did, of those that Kubernetes
// lists as ready. What is known of one pod is of its node's kernel, so it holds for all pods there.
func (t *Table) Silent(silent, answered []netip.Addr) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	nodes := t.nodesLocked(silent)
	for node := range t.nodesLocked(answered) {
		delete(nodes, node)
	}
	if len(nodes) == 0 {
		return
	}
	for _, e := range t.entries {
		if e.revision == nil {
			continue
		}
		there := map[netip.Addr]bool{}
		for _, endpoints := range e.slices {
			for _, one := range endpoints {
				if nodes[one.Node] {
					there[one.Address.Addr()] = true
				}
			}
		}
		if queue, _ := e.revision.Used(); queue != nil && len(there) > 0 {
			queue.Silent(there)
		}
	}
}

// nodesLocked are the nodes of pods that Kubernetes lists as ready.
func (t *Table) nodesLocked(pods []netip.Addr) map[string]bool {
	nodes := map[string]bool{}
	for _, pod := range pods {
		for _, key := range t.ready[pod] {
			e := t.entries[key]
			if e == nil {
				continue
			}
			for _, endpoints := range e.slices {
				for _, one := range endpoints {
					if one.Address.Addr() == pod && one.Node != "" {
						nodes[one.Node] = true
					}
				}
			}
		}
	}
	return nodes
}

// Announce stores an announcement. It returns false if the announcement is older than the stored
// one, if a limit is reached, or if the address is that of another revision's pod.
func (t *Table) Announce(a wire.Announcement) bool {
	key, now := Key{a.Namespace, a.Revision}, time.Now()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.entries[key] == nil && t.Get(key) == nil && t.unknown >= MaxUnknown {
		return false
	}
	if owners := t.ready[a.Address.Addr()]; len(owners) > 0 && !slices.Contains(owners, key) {
		return false // Kubernetes says that this is a pod of another revision
	}
	taken := false
	t.changeLocked(key, now, func(e *entry) {
		old, spoke := e.announcements[a.Address]
		if spoke && old.pod == a.Pod && a.Sequence <= old.sequence && a.Sequence != 0 || !spoke && len(e.announcements) >= MaxAnnouncements {
			return
		}
		next := announcement{pod: a.Pod, ready: a.Ready, at: now, first: now, sequence: a.Sequence, started: a.ProcessStarted, answered: a.UserReady,
			asleep: a.Asleep != ""}
		if spoke && !old.listed {
			next.first = old.first
		}
		if spoke && old.pod == a.Pod && old.ready == a.Ready {
			next.listed = old.listed
		}
		e.note(a.Address, next)
		taken = true
	})
	return taken
}

// ProbeSucceeded records that a pod which is not ready in Kubernetes answered our probe. It counts
// as an announcement, unless the pod has sent one in the meantime.
func (t *Table) ProbeSucceeded(key Key, b hold.Backend) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if _, spoke := e.announcements[b.Address]; !spoke && len(e.announcements) < MaxAnnouncements {
			now := time.Now()
			e.note(b.Address, announcement{pod: b.Pod, ready: true, at: now, first: now})
		}
	})
}

// SlotFree tells the queue that a pod keeps a free slot for this activator. It returns whether a
// request takes the slot.
func (t *Table) SlotFree(a wire.Announcement) bool {
	r := t.Get(Key{a.Namespace, a.Revision})
	if r == nil {
		return false
	}
	queue, _ := r.Used()
	return queue != nil && queue.SlotFree(a.Address)
}

// Sweep deletes announcements that have expired. It is called every second.
func (t *Table) Sweep(now time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for key, e := range t.entries {
		if len(e.announcements) > 0 {
			t.changeLocked(key, now, func(*entry) {})
		}
	}
}
