// Package leasetest keeps Leases in memory for tests of who leads.
//
// Owns: the Leases it is given. Reads and writes: nothing else. Never: lets a write pass that client-go's own fake would let pass and an
// API server would not: one of an object that has changed since it was read.
package leasetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// client-go delays each report of an error after the one before, by a time that it keeps for the whole process: in the virtual time of
// another test that may be years.
func init() { utilruntime.ErrorHandlers = nil }

// Store keeps Leases as an API server does: writes are refused when the object has changed since it was read.
type Store struct {
	t        testing.TB
	mutex    sync.Mutex
	version  int
	leases   map[string]*coordinationv1.Lease
	watchers []*watcher
	writes   int
}

// New returns an empty Store.
func New(t testing.TB) *Store { return &Store{t: t, leases: map[string]*coordinationv1.Lease{}} }

// Client is one replica's way to the store. Each call takes a moment before it arrives and one before the answer is back; while Cut
// says so none does.
type Client struct {
	kubernetes.Interface
	// Cut says whether no call gets through.
	Cut   func() bool
	store *Store
	delay func() time.Duration
}

// Client returns a way to the Store on which calls take up to longest, twice. Everything but Leases is client-go's fake.
func (s *Store) Client(random *rand.Rand, longest time.Duration) *Client {
	var mutex sync.Mutex
	return &Client{Interface: fake.NewClientset(), store: s, Cut: func() bool { return false }, delay: func() time.Duration {
		mutex.Lock()
		defer mutex.Unlock()
		return time.Duration(random.Int63n(int64(longest) + 1))
	}}
}

// CoordinationV1 implements kubernetes.Interface.
func (c *Client) CoordinationV1() coordinationv1client.CoordinationV1Interface {
	return group{c.Interface.CoordinationV1(), c}
}

// IsWatchListSemanticsUnSupported tells client-go to list and then to watch.
func (c *Client) IsWatchListSemanticsUnSupported() bool { return true }

type group struct {
	coordinationv1client.CoordinationV1Interface
	c *Client
}

func (g group) Leases(string) coordinationv1client.LeaseInterface { return leases{c: g.c} }

type leases struct {
	coordinationv1client.LeaseInterface
	c *Client
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// call runs do in the store, between two delays.
func (l leases) call(ctx context.Context, do func(s *Store) error) error {
	wait := func() error {
		timer := time.NewTimer(l.c.delay())
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		if l.c.Cut() {
			return fmt.Errorf("connection refused")
		}
		return nil
	}
	if err := wait(); err != nil {
		return err
	}
	l.c.store.mutex.Lock()
	err := do(l.c.store)
	l.c.store.mutex.Unlock()
	if err != nil {
		return err
	}
	return wait() // it may have happened although the caller never hears of it
}

// Put stores a Lease whatever it was before.
func (s *Store) Put(l *coordinationv1.Lease) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.put(watch.Added, l)
}

// Names lists the Leases.
func (s *Store) Names() []string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return slices.Sorted(maps.Keys(s.leases))
}

// Spec is that of a Lease that exists.
func (s *Store) Spec(name string) coordinationv1.LeaseSpec {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.leases[name].Spec
}

// Writes counts the writes so far.
func (s *Store) Writes() int {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.writes
}

func (s *Store) put(kind watch.EventType, l *coordinationv1.Lease) *coordinationv1.Lease {
	s.version++
	s.writes++
	l = l.DeepCopy()
	l.ResourceVersion = fmt.Sprint(s.version)
	if kind == watch.Deleted {
		delete(s.leases, l.Name)
	} else {
		s.leases[l.Name] = l
	}
	for _, w := range s.watchers {
		select {
		case <-w.stop:
		case w.news <- watch.Event{Type: kind, Object: l.DeepCopy()}:
		default:
			w.t.Error("a watcher is a thousand events behind")
		}
	}
	return l.DeepCopy()
}

// Get implements coordinationv1client.LeaseInterface.
func (l leases) Get(ctx context.Context, name string, _ metav1.GetOptions) (found *coordinationv1.Lease, err error) {
	err = l.call(ctx, func(s *Store) error {
		if s.leases[name] == nil {
			return apierrors.NewNotFound(resource, name)
		}
		found = s.leases[name].DeepCopy()
		return nil
	})
	return found, err
}

// List implements coordinationv1client.LeaseInterface.
func (l leases) List(ctx context.Context, _ metav1.ListOptions) (list *coordinationv1.LeaseList, err error) {
	err = l.call(ctx, func(s *Store) error {
		list = &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: fmt.Sprint(s.version)}}
		for _, one := range s.leases {
			list.Items = append(list.Items, *one.DeepCopy())
		}
		sort.Slice(list.Items, func(i, j int) bool { return list.Items[i].Name < list.Items[j].Name })
		return nil
	})
	return list, err
}

// Create implements coordinationv1client.LeaseInterface.
func (l leases) Create(ctx context.Context, made *coordinationv1.Lease, _ metav1.CreateOptions) (stored *coordinationv1.Lease, err error) {
	err = l.call(ctx, func(s *Store) error {
		if s.leases[made.Name] != nil {
			return apierrors.NewAlreadyExists(resource, made.Name)
		}
		made := made.DeepCopy()
		made.UID = types.UID(fmt.Sprint("uid-", s.version))
		stored = s.put(watch.Added, made)
		return nil
	})
	return stored, err
}

// Update implements coordinationv1client.LeaseInterface.
func (l leases) Update(ctx context.Context, changed *coordinationv1.Lease, _ metav1.UpdateOptions) (stored *coordinationv1.Lease, err error) {
	err = l.call(ctx, func(s *Store) error {
		now := s.leases[changed.Name]
		if now == nil {
			return apierrors.NewNotFound(resource, changed.Name)
		}
		if now.ResourceVersion != changed.ResourceVersion {
			return apierrors.NewConflict(resource, changed.Name, fmt.Errorf("it is at %s, not %s", now.ResourceVersion, changed.ResourceVersion))
		}
		stored = s.put(watch.Modified, changed)
		return nil
	})
	return stored, err
}

// Delete implements coordinationv1client.LeaseInterface.
func (l leases) Delete(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return l.call(ctx, func(s *Store) error {
		now := s.leases[name]
		if now == nil {
			return apierrors.NewNotFound(resource, name)
		}
		if p := o.Preconditions; p != nil && (*p.ResourceVersion != now.ResourceVersion || *p.UID != now.UID) {
			return apierrors.NewConflict(resource, name, fmt.Errorf("it is at %s", now.ResourceVersion))
		}
		s.put(watch.Deleted, now)
		return nil
	})
}

// Watch implements coordinationv1client.LeaseInterface.
func (l leases) Watch(ctx context.Context, _ metav1.ListOptions) (watch.Interface, error) {
	news, out := make(chan watch.Event, 1000), make(chan watch.Event)
	w := &watcher{t: l.c.store.t, news: news, out: out, stop: make(chan struct{})}
	l.c.store.mutex.Lock()
	// What the list before said may be old by now.
	for _, one := range l.c.store.leases {
		news <- watch.Event{Type: watch.Modified, Object: one.DeepCopy()}
	}
	l.c.store.watchers = append(l.c.store.watchers, w)
	l.c.store.mutex.Unlock()
	go func() {
		defer close(out)
		for {
			select {
			case e := <-news:
				select {
				case <-time.After(l.c.delay()):
				case <-w.stop:
					return
				}
				select {
				case out <- e:
				case <-w.stop:
					return
				}
			case <-w.stop:
				return
			}
		}
	}()
	return w, nil
}

type watcher struct {
	t    testing.TB
	news chan watch.Event
	out  chan watch.Event
	stop chan struct{}
	once sync.Once
}

func (w *watcher) Stop()                          { w.once.Do(func() { close(w.stop) }) }
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }
