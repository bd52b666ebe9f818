package chain

import (
	"context"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// 200 requests a second, some with large heads, against a service that can do four, from clients
// that give up after a second: the queue is full, by count or by bytes, memory stays where it is, a
// neighbour is not delayed, and nothing is left behind. EBB_OVERLOAD=2h makes it the replay that
// lasts.
func TestOverloadIsTurnedAwayAndDelaysNobodyElse(t *testing.T) {
	lasts := 5 * time.Second
	if text := os.Getenv("EBB_OVERLOAD"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	// Small enough to be met on a machine that sends a tenth of it.
	bounds := hold.Bounds{PerRevision: 20, PerRevisionBytes: 512 << 10}
	w := newWorld(t, bounds)
	share := w.revision(backends.Info{Early: true, ContainerConcurrency: 2}).Queue().Share()
	var started, abandoned, refused atomic.Int64
	w.pods(w.pod("slow", func(rw http.ResponseWriter, r *http.Request) {
		started.Add(1)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-r.Context().Done():
			abandoned.Add(1)
		}
	}))
	neighbour := backends.Key{Namespace: "ns", Name: "neighbour"}
	w.table.SetRevision(neighbour, &backends.Info{UID: "n", Early: true})
	w.table.SetSlice(neighbour, "s", []backends.Endpoint{w.pod("quick", func(http.ResponseWriter, *http.Request) {})})

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	large := strings.Repeat("x", 60<<10)
	get := func(ctx context.Context, revision, field string) (int, time.Duration) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url, nil)
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		r.Header.Set(wire.HeaderNamespace, "ns")
		r.Header.Set(wire.HeaderRevision, revision)
		r.Header.Set("X-Large", field)
		begin := time.Now()
		response, err := client.Do(r)
		if err != nil {
			return 0, time.Since(begin)
		}
		defer response.Body.Close()
		io.Copy(io.Discard, response.Body)
		return response.StatusCode, time.Since(begin)
	}
	// neighbourhood asks the other service for a while and returns the time that 99 of 100 answers
	// did not exceed.
	neighbourhood := func(lasts time.Duration) time.Duration {
		var took []time.Duration
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(lasts); time.Now().Before(end); <-tick.C {
			status, d := get(t.Context(), neighbour.Name, "")
			if status != 200 {
				t.Errorf("the neighbour got %d", status)
			}
			took = append(took, d)
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	before := neighbourhood(time.Second)

	var clients sync.WaitGroup
	stop := make(chan struct{})
	clients.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			// Requests that are checked at the same moment may pass together, one on each core.
			slack := int64(runtime.GOMAXPROCS(0)) * 80 << 10
			if held, bytes := w.budget.Held(), share.Bytes(); held > bounds.PerRevision || bytes > bounds.PerRevisionBytes+slack {
				t.Errorf("%d requests wait and all use %d bytes, the bounds are %d and %d", held, bytes, bounds.PerRevision, bounds.PerRevisionBytes)
			}
			field := ""
			if n%10 == 0 {
				field = large
			}
			clients.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if status, _ := get(ctx, key.Name, field); status == http.StatusServiceUnavailable {
					refused.Add(1)
				}
			})
		}
	})
	warm := min(2*time.Second, lasts/2)
	neighbourhood(warm) // by then as many clients leave as come
	first := memory()
	during := neighbourhood(lasts - warm)
	last := memory()
	close(stop)
	clients.Wait()
	left := time.Now()
	eventually.True(t, "nothing waits and nothing is in flight", func() bool {
		waiting, flying := w.table.Get(key).Queue().Load()
		return waiting+flying == 0 && w.budget.Held() == 0 && w.budget.HeldBytes() == 0
	})
	t.Logf("neighbour's p99 %s before and %s during; memory %d KiB early and %d KiB late; %d requests reached the pod, %d of them were given up by clients; %d were refused; all was clean %s after the last client left",
		before, during, first>>10, last>>10, started.Load(), abandoned.Load(), refused.Load(), time.Since(left))
	if started.Load() < int64(lasts/time.Second) {
		t.Errorf("only %d requests reached the pod in %s", started.Load(), lasts)
	}
	if refused.Load() == 0 {
		t.Error("none was refused, so no bound was met")
	}
	if last > first+first/2+8<<20 {
		t.Errorf("memory grew from %d to %d KiB", first>>10, last>>10)
	}
	if during > 10*before+time.Second {
		t.Errorf("the neighbour's p99 rose from %s to %s", before, during)
	}
	if took := time.Since(left); took > 5*time.Second {
		t.Errorf("it took %s until nothing was left of the last clients", took)
	}
}
