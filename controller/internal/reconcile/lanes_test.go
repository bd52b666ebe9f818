package reconcile

import (
	"fmt"
	"testing"
	"testing/synctest"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	cachetest "k8s.io/client-go/tools/cache/testing"

	"ebb.dev/ebb/test/eventually"
)

func keyOf(name string, i int) Key { return Key{Namespace: "ns", Name: fmt.Sprint(name, i)} }

// A restart queues all that there is. What is new, or changes, does not wait for that.
func TestNewWorkGoesBeforeARestartsAndTheRestartEnds(t *testing.T) {
	const old = 20000
	c := &Controller{Name: "test", Keys: func() (keys []Key) {
		for i := range old {
			keys = append(keys, keyOf("old", i))
		}
		return keys
	}}
	defer c.q().ShutDown()
	synctest.Test(t, func(*testing.T) { // a delay of nothing
		c.EnqueueAll(0)
	})
	if c.q().Len() != old {
		t.Fatalf("%d keys wait, want %d", c.q().Len(), old)
	}
	c.Enqueue(keyOf("old", old-1)) // it changed
	for i := range 100 {
		c.Enqueue(keyOf("new", i))
	}
	if c.lanes.waiting() != 101 || c.q().Len() != old+100 {
		t.Errorf("%d of %d keys have changed, want 101 of %d", c.lanes.waiting(), c.q().Len(), old+100)
	}
	var late int
	for i := range 101 + 101/lateShare {
		key, _ := c.q().Get()
		switch {
		case c.lanes.tookLate(key):
			late++
		case i == 0 && key != keyOf("old", old-1), i == 1 && key != keyOf("new", 0):
			t.Errorf("%v came as number %d", key, i)
		}
		c.q().Done(key)
	}
	if c.lanes.waiting() != 0 || late != 101/lateShare {
		t.Errorf("%d keys that changed wait, and %d of those that did not were taken; want 0 and %d", c.lanes.waiting(), late, 101/lateShare)
	}
	for c.q().Len() > 0 {
		key, _ := c.q().Get()
		if !c.lanes.tookLate(key) {
			t.Fatalf("%v did not change", key)
		}
		c.q().Done(key)
		late++
	}
	if late != old-1 {
		t.Errorf("%d old keys were reconciled, want %d", late, old-1)
	}
	if kept := len(c.lanes.marked) + len(c.lanes.waits) + len(c.lanes.taken) + len(c.lanes.late.keys) + len(c.lanes.early.keys); kept > 0 {
		t.Errorf("the lanes keep %d keys", kept)
	}
}

// What changes while it is reconciled, or before the delay of a changed setting ends, goes first,
// too, and no key is lost or doubled.
func TestAKeyChangesItsLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Controller{Name: "test"}
		defer c.q().ShutDown()
		next := func() (Key, bool) {
			t.Helper()
			synctest.Wait()
			if c.q().Len() == 0 {
				t.Fatal("no key waits")
			}
			c.lanes.since = 0 // how many late keys come between is another test's
			key, _ := c.q().Get()
			return key, c.lanes.tookLate(key)
		}
		a, b := keyOf("a", 0), keyOf("b", 0)
		c.enqueueLate(b, 0)
		c.enqueueLate(a, 0)
		c.enqueueLate(a, 0)
		c.Enqueue(a)
		if key, late := next(); key != a || late {
			t.Errorf("%v, late %v; want a first, because it changed", key, late)
		}
		c.enqueueLate(a, 0) // while it is reconciled
		c.Enqueue(a)
		c.q().Done(a)
		if key, late := next(); key != a || late {
			t.Errorf("%v, late %v; want a again, because it changed meanwhile", key, late)
		}
		c.Enqueue(a)
		c.enqueueLate(a, 0)
		c.q().Done(a)
		if key, late := next(); key != a || late {
			t.Errorf("%v, late %v; want a again, because it changed before all were queued", key, late)
		}
		c.enqueueLate(a, 0)
		c.q().Done(a)
		for i, want := range []Key{b, a} {
			if key, late := next(); key != want || !late {
				t.Errorf("number %d is %v, late %v; want %v", i, key, late, want)
			}
			c.q().Done(want)
		}
		if c.q().Len() != 0 {
			t.Errorf("%d keys are left", c.q().Len())
		}
	})
}

// A queue that is never empty forgets the keys that were taken.
func TestLanesKeepOnlyWhatWaits(t *testing.T) {
	l := newLanes()
	l.Push(keyOf("first", 0))
	for i := range 20000 {
		l.Push(keyOf("a", i))
		l.Pop()
	}
	if kept := cap(l.early.keys); l.Len() != 1 || kept > 100 {
		t.Errorf("%d keys wait, and there is room for %d", l.Len(), kept)
	}
}

// A replaced activator concerns all revisions, and none of them as much as a new one.
func TestWhatConcernsAllGoesBehindNewWork(t *testing.T) {
	source := cachetest.NewFakeControllerSource()
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "activators"}}
	source.Add(slice)
	informer := cache.NewSharedIndexInformer(source, slice, 0, nil)
	c := &Controller{Name: "test"}
	defer c.q().ShutDown()
	c.WatchForAll(informer, func() (keys []Key) {
		for i := range 100 {
			keys = append(keys, keyOf("old", i))
		}
		return keys
	})
	go informer.RunWithContext(t.Context())
	// Whatever becomes of the slice, all keys wait behind what changed.
	for _, change := range []func(runtime.Object){nil, source.Modify, source.Delete} {
		if change != nil {
			change(slice)
		}
		eventually.True(t, "all keys wait", func() bool { return c.q().Len() == 100 })
		if c.lanes.waiting() != 0 {
			t.Fatalf("%d keys wait as if they had changed", c.lanes.waiting())
		}
		c.Enqueue(keyOf("new", 0))
		for i := range 101 {
			key, _ := c.q().Get()
			if i == 0 && key != keyOf("new", 0) {
				t.Errorf("%v came first", key)
			}
			c.lanes.tookLate(key)
			c.q().Done(key)
		}
	}
}
