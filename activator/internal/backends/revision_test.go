package backends

import (
	"errors"
	"sync"
	"testing"

	"ebb.dev/ebb/activator/internal/cold"
	"ebb.dev/ebb/activator/internal/hold"
)

// Most revisions of a large cluster are at zero, and what they need for requests is not there.
func TestARevisionAtZeroHasAQueueOnceItIsNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*Table, *Revision)
		want bool
	}{
		"nothing happened":   {func(*Table, *Revision) {}, false},
		"somebody looked":    {func(_ *Table, r *Revision) { r.Queued(); _ = r.Snapshot().Pods }, false},
		"a slot is free":     {func(t *Table, _ *Revision) { t.SlotFree(announced(1, true, 1)) }, false},
		"a pod is not ready": {func(t *Table, _ *Revision) { t.SetSlice(key, "s", []Endpoint{{Address: address(1)}}) }, false},
		"a pod":              {func(t *Table, _ *Revision) { t.Announce(announced(1, true, 1)) }, true},
		"it cannot start": {func(t *Table, _ *Revision) {
			t.SetRevision(key, &Info{UID: "u", Early: true, Failure: "Unschedulable"})
		}, true},
		"a request is counted": {func(_ *Table, r *Revision) { r.Load().Requests[2].Add(1) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			table := newTable()
			table.SetRevision(key, &Info{UID: "u", Early: true})
			r := table.Get(key)
			c.do(table, r)
			if queue, load := r.Used(); (queue != nil) != c.want || (load != nil) != c.want {
				t.Errorf("queue %v, load %v", queue != nil, load != nil)
			}
		})
	}
}

// A request that comes while the revision is changed or deleted finds one queue, which knows of it.
func TestTheFirstRequestComesAtAnyMoment(t *testing.T) {
	for range 200 {
		table := newTable()
		table.SetRevision(key, &Info{UID: "u", Early: true})
		r := table.Get(key)
		var queues [2]*hold.Queue
		var group sync.WaitGroup
		for i := range queues {
			group.Go(func() { queues[i] = r.Queue() })
		}
		group.Go(func() {
			if seen := r.Snapshot(); len(seen.Pods) == 0 {
				<-seen.Changed
			}
		})
		group.Go(func() {
			table.SetRevision(key, &Info{UID: "u", Early: true, Cold: &cold.Rules{MaxWaiting: 1}})
			table.Announce(announced(1, true, 1))
		})
		group.Wait()
		if queues[0] != queues[1] {
			t.Fatal("there are two queues")
		}
		slot, ok := queues[0].Try()
		if !ok {
			t.Fatal("the queue does not know of the pod")
		}
		slot.Release(true)
		table.DeleteRevision(key)
	}
	table := newTable()
	table.SetRevision(key, &Info{UID: "u"})
	r := table.Get(key)
	table.DeleteRevision(key)
	if _, err := r.Queue().Acquire(t.Context(), &hold.Ticket{}); !errors.Is(err, hold.ErrDeleted) {
		t.Errorf("a request after the end of its revision gets %v", err)
	}
}
