package store

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
)

func opened(t *testing.T, dir string, idle time.Duration) *Store {
	t.Helper()
	kept, err := Open(t.Context(), Options{Dir: dir, Bytes: 256 << 20, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Idle: idle, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.Close)
	return kept
}

func added(t *testing.T, kept *Store, of call.Service) *call.Call {
	t.Helper()
	c := &call.Call{Service: of, ID: call.NewID(), Host: "h", Method: "POST", Path: "/", Callback: "http://example.com/"}
	if _, err := kept.Add(t.Context(), c, nil); err != nil {
		t.Fatal(err)
	}
	return c
}

var service = call.Service{Namespace: "ns", Name: "svc"}

func TestCallsWithoutAQueueAreFoundAtAStart(t *testing.T) {
	dir := t.TempDir()
	kept := opened(t, dir, 0)
	other := call.Service{Namespace: "ns", Name: "other"}
	if _, err := kept.Queue(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	added(t, kept, other)
	added(t, kept, service) // its queue was removed, and the courier ends
	kept.Close()
	kept = opened(t, dir, 0)
	depths, err := kept.Depths(t.Context())
	if err != nil || len(depths) != 2 || depths[0].Calls != 1 || depths[1].Calls != 1 {
		t.Errorf("%v, %v", depths, err)
	}
}

// A tenant has a backlog, and its calls go on coming.
func TestNobodyListsTheBacklog(t *testing.T) {
	kept := opened(t, t.TempDir(), 0)
	if _, err := kept.Queue(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := kept.AddCallback(t.Context(), added(t, kept, service)); err != nil {
			t.Fatal(err)
		}
	}
	for stream, queue := range map[string]string{calls: consumerName(service), callbacks: ofCallbacks + "ns"} {
		consumer, err := kept.js.Consumer(t.Context(), stream, queue)
		for n := 0; n < 100; { // JetStream counts a moment later
			if err != nil {
				t.Fatal(err)
			}
			var info *jetstream.ConsumerInfo
			if info, err = consumer.Info(t.Context()); err == nil {
				n = int(info.NumPending)
			}
		}
	}
	asked := new(atomic.Int64)
	if _, err := kept.conn.Subscribe("$JS.API.STREAM.INFO.>", func(m *nats.Msg) {
		if strings.Contains(string(m.Data), "subjects_filter") {
			asked.Add(1)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := kept.count(t.Context()); err != nil { // as a start does
		t.Fatal(err)
	}
	for range 10 {
		added(t, kept, service)
		if _, err := kept.Depths(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := kept.Trim(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := kept.Calling(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("all of a stream was listed %d times", n)
	}
}

func TestAQueueThatGetsACallWhileItIsRemovedIsThereAfterwards(t *testing.T) {
	kept := opened(t, t.TempDir(), 0)
	if _, err := kept.Queue(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	added(t, kept, service)
	if err := kept.Remove(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	if depths, err := kept.Depths(t.Context()); err != nil || len(depths) != 1 {
		t.Errorf("%v, %v", depths, err)
	}
}

func TestCallbacksAreCountedAfterAStartByTheirQueues(t *testing.T) {
	dir := t.TempDir()
	kept := opened(t, dir, 0)
	for range 10 {
		if err := kept.AddCallback(t.Context(), added(t, kept, service)); err != nil {
			t.Fatal(err)
		}
	}
	kept.Close()
	kept = opened(t, dir, 0)
	if n := kept.callbacks.Held("ns"); n != 10*leastCost {
		t.Errorf("10 callbacks count %d bytes", n)
	}
	// As a courier of the release before leaves them: one queue for all, and none of a namespace.
	stream, err := kept.js.Stream(t.Context(), callbacks)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteConsumer(t.Context(), ofCallbacks+"ns"); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.CreateConsumer(t.Context(), jetstream.ConsumerConfig{Durable: "callbacks", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	kept.Close()
	kept = opened(t, dir, 0)
	namespaces, err := kept.Calling(t.Context())
	if n := kept.callbacks.Held("ns"); n != 10*leastCost || err != nil || len(namespaces) != 1 {
		t.Errorf("10 callbacks of an older courier count %d bytes, in the queues of %v, %v", n, namespaces, err)
	}
}

func TestQueuesOfCallbacksThatAreEmptyForLongGo(t *testing.T) {
	kept := opened(t, t.TempDir(), time.Nanosecond)
	c := added(t, kept, service)
	for range 2 { // the second needs it anew
		if _, err := kept.Callbacks(t.Context(), "ns"); err != nil {
			t.Fatal(err)
		}
		if _, err := kept.Calling(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, known := kept.calling.Load("ns"); known {
			t.Error("the queue is still there")
		}
		if err := kept.AddCallback(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		queue, err := kept.Callbacks(t.Context(), "ns")
		if err != nil {
			t.Fatal(err)
		}
		messages, err := queue.Wait(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for m := range messages.Messages() {
			n++
			if err := kept.DoneCallback(m); err != nil {
				t.Fatal(err)
			}
		}
		if n != 1 {
			t.Errorf("%d callbacks", n)
		}
		if err := kept.conn.Flush(); err != nil {
			t.Fatal(err)
		}
	}
}
