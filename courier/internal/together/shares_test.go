package together

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var (
	attacker = call.Service{Namespace: "attacker", Name: "svc"}
	victim   = call.Service{Namespace: "victim", Name: "svc"}
)

// small opens a store of 64 MiB: 21 MiB for calls, 12 MiB for results.
func small(t *testing.T, dir string) *store.Store {
	t.Helper()
	kept, err := store.Open(t.Context(), store.Options{Dir: dir, Bytes: 64 << 20, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kept.Close)
	return kept
}

func add(t *testing.T, kept *store.Store, of call.Service, size int) error {
	t.Helper()
	if _, err := kept.Queue(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	_, err := kept.Add(t.Context(), &call.Call{Service: of, ID: call.NewID(), Host: "h", Method: "POST", Path: "/"}, make([]byte, size))
	return err
}

// fill adds calls until they are refused.
func fill(t *testing.T, kept *store.Store, of call.Service, size int) (n int) {
	t.Helper()
	for ; n < 10000; n++ {
		if err := add(t, kept, of, size); errors.Is(err, store.ErrShare) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing is refused")
	return 0
}

func TestCallsOfANamespaceLeaveRoomToOthersAlsoAfterAStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := small(t, dir)
	first := fill(t, kept, attacker, 250<<10)
	if kept.HasRoom("attacker", 250<<10) || !kept.HasRoom("victim", 250<<10) {
		t.Error("who has room is known only after a body was read")
	}
	if err := add(t, kept, victim, 250<<10); err != nil || first < 10 {
		t.Errorf("beside %d calls: %v", first, err)
	}
	depths, err := kept.Depths(t.Context())
	if err == nil {
		err = kept.Settle(t.Context(), depths, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	kept.Close()
	kept = small(t, dir)
	if err := add(t, kept, attacker, 250<<10); !errors.Is(err, store.ErrShare) {
		t.Errorf("after a start the attacker stores more: %v", err)
	}
	if err := add(t, kept, victim, 250<<10); err != nil {
		t.Errorf("after a start: %v", err)
	}
	queue, err := kept.Queue(t.Context(), attacker)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := queue.Fetch(first)
	if err != nil {
		t.Fatal(err)
	}
	for m := range messages.Messages() {
		if err := kept.Done(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(t, kept, attacker, 250<<10); err != nil {
		t.Errorf("when its calls are delivered: %v", err)
	}
}

func TestManySmallCallsAreBoundedInNumber(t *testing.T) {
	t.Parallel()
	kept := small(t, t.TempDir())
	if n := fill(t, kept, attacker, 1); n > 64<<20/100*35/2/(4<<10) || n < 1000 {
		t.Errorf("%d calls of a byte in 21 MiB", n)
	}
	if err := add(t, kept, victim, 1); err != nil {
		t.Error(err)
	}
}

func TestResultsPushOutThoseOfTheLargestNamespace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := small(t, dir)
	finish := func(of call.Service) string {
		r := &call.Record{Service: of, ID: call.NewID(), State: call.Completed, Status: 200}
		if err := kept.Finish(t.Context(), r, make([]byte, 250<<10)); err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	own, oldest := finish(victim), finish(attacker)
	for range 60 { // 15 MB
		finish(attacker)
	}
	kept.Close()
	kept = small(t, dir) // it knows after a start whose they are
	for range 60 {
		finish(attacker)
	}
	if _, _, err := kept.Result(t.Context(), victim, own); err != nil {
		t.Errorf("the result of the victim: %v", err)
	}
	if _, _, err := kept.Result(t.Context(), attacker, oldest); !errors.Is(err, store.ErrNone) {
		t.Errorf("the oldest of the attacker: %v", err)
	}
	if err := kept.Trim(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if _, _, err := kept.Result(t.Context(), victim, own); err != nil {
		t.Errorf("the only result of the victim, after the bound of 5: %v", err)
	}
}

func TestLargeBodiesOfANamespaceLeaveRoomToOthers(t *testing.T) {
	t.Parallel()
	kept := small(t, t.TempDir()) // 24 MiB for bodies
	put := func(namespace string) error {
		_, err := kept.PutBody(t.Context(), namespace, namespace+"."+call.NewID(), strings.NewReader(strings.Repeat("x", 3<<20)))
		return err
	}
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = put("attacker")
	}
	if !errors.Is(err, store.ErrShare) || n < 3 {
		t.Errorf("after %d bodies of 3 MiB: %v", n, err)
	}
	if err := put("victim"); err != nil {
		t.Error(err)
	}
}

// A tenant's clients name callbacks that nobody answers; each waits for its next attempt.
func TestCallbacksOfANeighbourDelayNobodyElses(t *testing.T) {
	t.Parallel()
	hangs := make(chan struct{})
	defer close(hangs)
	var called atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			select {
			case <-hangs:
			case <-r.Context().Done():
			}
			return
		}
		called.Add(1)
	}))
	w := open(t, t.TempDir(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), func(context.Context, netip.Addr) error { return nil }, nil)
	for range 100 {
		w.call(nil, wire.HeaderAsyncTarget, neighbour.String(), wire.HeaderCallback, receiver.URL+"/hang")
	}
	eventually.True(t, "the neighbour's calls are delivered", func() bool { return w.deliver.Counts.Delivered.Load() >= 100 })
	began := time.Now()
	w.call(nil, wire.HeaderCallback, receiver.URL+"/good")
	eventually.True(t, "there is a callback", func() bool { return called.Load() == 1 })
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it came after %v", took)
	}
	go w.stop()
}

// A path that answers 500 has more calls than a queue had pending at most.
func TestCallsThatWaitForTheirNextAttemptKeepNoOthersOut(t *testing.T) {
	t.Parallel()
	kept, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Bytes: 256 << 20, Queue: time.Hour, Results: time.Hour, Dead: time.Hour, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	queue, err := kept.Queue(t.Context(), attacker)
	if err != nil {
		t.Fatal(err)
	}
	const many = 5500
	for range many {
		if err := add(t, kept, attacker, 1); err != nil {
			t.Fatal(err)
		}
	}
	handed := 0
	for range 2 * many / 100 {
		messages, err := queue.Fetch(100)
		if err != nil {
			t.Fatal(err)
		}
		for m := range messages.Messages() {
			handed++
			if err := m.NakWithDelay(time.Hour); err != nil {
				t.Fatal(err)
			}
		}
	}
	if handed != many {
		t.Errorf("%d of %d calls were handed out", handed, many)
	}
}
