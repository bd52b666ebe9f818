package report

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

func keys() wire.Keys { return wire.KeysOf(map[string][]byte{wire.TokenSecretKey: []byte("key")}) }

// collector is an autoscaler that fails as often as it is told to.
type collector struct {
	mutex    sync.Mutex
	messages []wire.StatMessage
	failures atomic.Int64
	forged   atomic.Int64
	arrived  chan struct{}
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if s, err := wire.ReadSignature(r); err != nil || !s.By(keys(), "", wire.ActivatorSubject) || !s.Covers(body) {
		c.forged.Add(1)
	}
	messages, err := wire.DecodeStats(body, wire.MaxStats)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if c.failures.Add(-1) >= 0 {
		http.Error(w, "nobody decides", http.StatusServiceUnavailable)
		return
	}
	c.mutex.Lock()
	c.messages = append(c.messages, messages...)
	c.mutex.Unlock()
	if len(messages) > 0 {
		c.arrived <- struct{}{}
	}
	w.WriteHeader(http.StatusNoContent)
}

// outOfTurn waits until a report that came out of turn is so. Regular ones may come before it.
func (c *collector) outOfTurn(t *testing.T, what string, is func(wire.StatMessage) bool) (found wire.StatMessage) {
	t.Helper()
	eventually.Seen(t, what, func() ([]wire.StatMessage, bool) {
		c.mutex.Lock()
		defer c.mutex.Unlock()
		i := slices.IndexFunc(c.messages, func(m wire.StatMessage) bool { return m.Stat.OutOfTurn && is(m) })
		if i >= 0 {
			found = c.messages[i]
		}
		return slices.Clone(c.messages), i >= 0
	})
	return found
}

// tableOf returns a table of revisions in the namespace ns.
func tableOf(names ...string) *backends.Table {
	budget := hold.NewBudget(hold.Bounds{})
	table := backends.NewTable(func(k backends.Key, info *backends.Info) *hold.Queue {
		return hold.New(info.ContainerConcurrency, budget.Share(k.Namespace), hold.Options{})
	})
	for _, name := range names {
		table.SetRevision(backends.Key{Namespace: "ns", Name: name}, &backends.Info{UID: name})
	}
	return table
}

func TestAWaitingRequestIsReportedAtOnceAndUntilItIsTaken(t *testing.T) {
	c := &collector{arrived: make(chan struct{}, 100)}
	c.failures.Store(3)
	server := httptest.NewServer(c)
	defer server.Close()
	table := tableOf("rev")
	revision := table.Get(backends.Key{Namespace: "ns", Name: "rev"})
	revision.Load().Meter.In(time.Now())
	go revision.Queue().Acquire(t.Context(), &hold.Ticket{})
	for waiting := int64(0); waiting == 0; waiting, _ = revision.Queue().Load() {
		runtime.Gosched()
	}
	r := (&Reporter{
		Pod: "activator-0", URL: server.URL + wire.PathStats, Keys: keys,
		Log: slog.New(slog.DiscardHandler),
	}).Start()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, table) }()
	r.ReportNow(revision.Key)
	r.ReportNow(backends.Key{Namespace: "ns", Name: "unknown"})
	got := c.outOfTurn(t, "the autoscaler hears of it", func(wire.StatMessage) bool { return true })
	if got.Namespace != "ns" || got.Revision != "rev" || got.Stat.PodName != "activator-0" || got.Stat.Queued != 1 ||
		got.Stat.AverageConcurrent != 1 || got.Stat.Timestamp == 0 {
		t.Errorf("got %+v", got)
	}
	if r.Failed.Load() != 3 || c.forged.Load() != 0 {
		t.Errorf("%d failures are counted, want 3; %d tokens were wrong", r.Failed.Load(), c.forged.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A report out of turn that leaves in the middle of a burst is followed by one of the rest, even if
// that is not twice as much.
func TestTheRestOfABurstFollows(t *testing.T) {
	c := &collector{arrived: make(chan struct{}, 100)}
	table := tableOf("rev")
	revision := table.Get(backends.Key{Namespace: "ns", Name: "rev"})
	arrive := func(n int) {
		for range n {
			revision.Load().Meter.In(time.Now())
		}
	}
	arrive(20)
	var rest sync.Once
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest.Do(func() { arrive(10) }) // while the first report is under way
		c.ServeHTTP(w, r)
	}))
	defer server.Close()
	r := (&Reporter{
		Pod: "activator-0", URL: server.URL, Keys: keys,
		Log: slog.New(slog.DiscardHandler),
	}).Start()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, table) }()
	r.ReportNow(revision.Key)
	c.outOfTurn(t, "the rest is reported", func(m wire.StatMessage) bool { return m.Stat.AverageConcurrent == 30 })
	cancel()
	<-done
}

func TestLoadIsReportedEverySecond(t *testing.T) {
	c := &collector{arrived: make(chan struct{}, 100)}
	server := httptest.NewServer(c)
	defer server.Close()
	table := tableOf("busy", "idle")
	table.Get(backends.Key{Namespace: "ns", Name: "busy"}).Load().Meter.In(time.Now())
	r := (&Reporter{
		Pod: "activator-0", URL: server.URL, Keys: keys,
		Log: slog.New(slog.DiscardHandler),
	}).Start()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx, table) }()
	<-c.arrived
	<-c.arrived
	cancel()
	<-done
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, m := range c.messages {
		if m.Revision != "busy" {
			t.Errorf("%s is reported", m.Revision)
		}
	}
	if first, second := c.messages[0].Stat, c.messages[1].Stat; first.Requests != 1 || second.Requests != 0 || second.AverageConcurrent != 1 || first.OutOfTurn || second.OutOfTurn {
		t.Errorf("got %+v, then %+v", first, second)
	}
}
