// Package backends knows the revisions and the pods that take their requests.
//
// Owns: for each revision, what its object, the EndpointSlices of its private Service and its pods themselves said
// last, and the queue of its held requests. Reads: what watch and announce tell it. Writes: the pods and the failure of each
// queue. Never: does I/O or waits; every method returns after microseconds, so that informer callbacks may call
// them, and one revision's work never delays another's.
package backends

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	H2C                  bool
	// Early says that a pod may be used before Kubernetes calls it ready: when it says so itself, or answers our probe.
	Early bool
	// Failure is why no pod of the revision can start, "" while one can.
	Failure string
}

// Revision is one revision; its fields never change, what it points to does.
type Revision struct {
	Key   Key
	Queue *hold.Queue
	// Data belongs to whoever made the table: it is what Attach returned.
	Data any

	info  atomic.Pointer[Info]
	state atomic.Pointer[Snapshot]
}

// Info is what its object says now.
func (r *Revision) Info() *Info { return r.info.Load() }

// Snapshot is an immutable list of the pods that take requests.
type Snapshot struct {
	Pods []hold.Backend
	// Births says how each pod came to be known; it is parallel to Pods.
	Births []Birth
	// Unproven are the pods that slices list as not ready and that have not announced themselves.
	Unproven []hold.Backend
	// Changed is closed when a newer snapshot exists.
	Changed <-chan struct{}

	changed chan struct{}
}

// Birth is how the activator learned of a pod.
type Birth struct {
	Known     time.Time // the activator learned that it takes requests
	Announced bool      // by its own word rather than Kubernetes'
	// Started is when the sidecar's process began, Answered when the user container first answered; zero when the pod
	// did not say so. Both are by the node's clock.
	Started, Answered time.Time
}

// Snapshot returns the newest one.
func (r *Revision) Snapshot() *Snapshot { return r.state.Load() }

// Birth returns what is known of how the pod at address came to be known.
func (s *Snapshot) Birth(address netip.AddrPort) (Birth, bool) {
	i, ok := slices.BinarySearchFunc(s.Pods, address, func(b hold.Backend, a netip.AddrPort) int { return b.Address.Compare(a) })
	if !ok {
		return Birth{}, false
	}
	return s.Births[i], true
}

// entry is a revision with what the sources said of it. It may exist before its Revision object is seen.
type entry struct {
	revision *Revision // nil until the object is seen
	slices   map[string][]Endpoint
	words    map[netip.AddrPort]word
}

// MaxUnknown bounds how many revisions that no object was seen of are remembered from announcements.
const MaxUnknown = 10_000

// MaxWords bounds how many addresses of one revision are remembered from announcements; a word is
// forgotten as soon as an EndpointSlice confirms it, so these are pods that start or stop just now.
const MaxWords = 1_000

// Table holds all revisions.
type Table struct {
	// Make returns the queue of a new revision and whatever else belongs to it.
	Make func(Key, *Info) (*hold.Queue, any)
	// Gone is called after a revision was deleted; may be nil.
	Gone func(*Revision)

	mutex   sync.Mutex
	entries map[Key]*entry
	unknown int

	// index is what requests look into; its lock is held for the time of a map access only.
	indexMutex sync.RWMutex
	index      map[Key]*Revision
}

// NewTable returns an empty table.
func NewTable(make_ func(Key, *Info) (*hold.Queue, any)) *Table {
	return &Table{Make: make_, entries: map[Key]*entry{}, index: map[Key]*Revision{}}
}

// Get returns the revision, or nil when it is not known.
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

// changeLocked runs what a source tells of one revision, publishes the outcome, and forgets what is empty.
func (t *Table) changeLocked(key Key, now time.Time, tell func(*entry)) {
	e, known := t.entries[key]
	if !known {
		e = &entry{slices: map[string][]Endpoint{}, words: map[netip.AddrPort]word{}}
		t.entries[key] = e
	} else if e.revision == nil {
		t.unknown--
	}
	tell(e)
	e.publish(now)
	switch {
	case e.revision != nil:
	case len(e.slices)+len(e.words) == 0:
		delete(t.entries, key)
	default:
		t.unknown++
	}
}

// SetRevision tells what a Revision object says now.
func (t *Table) SetRevision(key Key, info *Info) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if e.revision != nil && e.revision.Info().UID != info.UID {
			t.drop(e) // deleted and made again under the same name
		}
		if e.revision == nil {
			r := &Revision{Key: key}
			r.info.Store(info)
			r.state.Store(newSnapshot(nil, nil))
			r.Queue, r.Data = t.Make(key, info)
			e.revision = r
			t.setIndex(key, r)
		}
		e.revision.info.Store(info)
		e.revision.Queue.SetFailure(info.Failure)
	})
}

// DeleteRevision forgets a revision; what waits for it fails.
func (t *Table) DeleteRevision(key Key) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if e.revision != nil {
			t.drop(e)
		}
		clear(e.words)
	})
}

func (t *Table) drop(e *entry) {
	r := e.revision
	e.revision = nil
	t.setIndex(r.Key, nil)
	r.Queue.Delete()
	if t.Gone != nil {
		t.Gone(r)
	}
}

// SetSlice tells what an EndpointSlice of the revision's private Service lists; nil endpoints means that
// the slice was deleted.
func (t *Table) SetSlice(key Key, slice string, endpoints []Endpoint) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if endpoints == nil {
			delete(e.slices, slice)
		} else {
			e.slices[slice] = endpoints
		}
	})
}

// Announce tells what a pod said of itself. It reports false when the word was not taken: it is older than
// one that is known, or more is remembered already than an honest cluster would say.
func (t *Table) Announce(a wire.Announcement) bool {
	key, now := Key{a.Namespace, a.Revision}, time.Now()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.entries[key] == nil && t.unknown >= MaxUnknown {
		return false
	}
	taken := false
	t.changeLocked(key, now, func(e *entry) {
		old, spoke := e.words[a.Address]
		if spoke && old.pod == a.Pod && a.Sequence <= old.sequence && a.Sequence != 0 || !spoke && len(e.words) >= MaxWords {
			return
		}
		next := word{pod: a.Pod, ready: a.Ready, at: now, sequence: a.Sequence, started: a.ProcessStarted, answered: a.UserReady}
		if spoke && old.pod == a.Pod && old.ready == a.Ready {
			next.listed = old.listed
		}
		e.words[a.Address] = next
		taken = true
	})
	return taken
}

// Prove tells that a pod that slices list as not ready answered our probe. It counts as the pod's own word,
// unless the pod has spoken itself meanwhile.
func (t *Table) Prove(key Key, b hold.Backend) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.changeLocked(key, time.Now(), func(e *entry) {
		if _, spoke := e.words[b.Address]; !spoke && len(e.words) < MaxWords {
			e.words[b.Address] = word{pod: b.Pod, ready: true, at: time.Now()}
		}
	})
}

// SlotFree passes on that a pod keeps a slot for this activator. It reports whether a request waits for it.
func (t *Table) SlotFree(a wire.Announcement) bool {
	r := t.Get(Key{a.Namespace, a.Revision})
	return r != nil && r.Queue.SlotFree(a.Address)
}

// Sweep forgets words that time has made worthless. It is called every second.
func (t *Table) Sweep(now time.Time) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for key, e := range t.entries {
		if len(e.words) > 0 {
			t.changeLocked(key, now, func(*entry) {})
		}
	}
}

// publish computes the pods and, when they changed, replaces the snapshot and tells the queue.
func (e *entry) publish(now time.Time) {
	early, resort := true, time.Duration(0)
	if e.revision != nil {
		info := e.revision.Info()
		early, resort = info.Early, lastResort(info.Timeout)
	}
	spoken := e.words
	if len(spoken) > 0 {
		spoken = maps.Clone(spoken) // merge forgets words, and births are made from them
	}
	pods := merge(e.slices, e.words, early, resort, now)
	if e.revision == nil {
		return
	}
	var unproven []hold.Backend
	for _, endpoints := range e.slices {
		if !early {
			break
		}
		for _, endpoint := range endpoints {
			if _, spoke := e.words[endpoint.Address]; !endpoint.Ready && !endpoint.Terminating && !spoke {
				unproven = append(unproven, hold.Backend{Address: endpoint.Address, Pod: endpoint.Pod})
			}
		}
	}
	old := e.revision.state.Load()
	slices.SortFunc(unproven, func(a, b hold.Backend) int { return a.Address.Compare(b.Address) })
	if slices.Equal(old.Pods, pods) && slices.Equal(old.Unproven, unproven) {
		return
	}
	next := newSnapshot(pods, unproven)
	for _, b := range pods {
		birth, known := old.Birth(b.Address)
		if said, spoke := spoken[b.Address]; !known {
			birth = Birth{Known: now, Announced: spoke && said.ready, Started: said.started, Answered: said.answered}
		}
		next.Births = append(next.Births, birth)
	}
	e.revision.state.Store(next)
	if !slices.Equal(old.Pods, pods) {
		e.revision.Queue.SetPods(pods)
	}
	close(old.changed)
}

func newSnapshot(pods, unproven []hold.Backend) *Snapshot {
	changed := make(chan struct{})
	return &Snapshot{Pods: pods, Unproven: unproven, Changed: changed, changed: changed}
}
