package sidecar

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

func TestTheScrapeIsOneStat(t *testing.T) {
	r := startRig(t, hello, nil)
	r.get("/", wire.HeaderProxyRequest, "activator")
	r.get("/")
	// A request is complete a moment after its client has the response.
	eventually.True(t, "no request is counted", func() bool { return r.gate.Inside() == 0 })
	b := r.gate.ClosePeriod(time.Now()).Append(nil)
	r.get("/")
	resp, err := http.Get("http://127.0.0.1:" + strconv.Itoa(portOf(t, r.sideAddr("load reports"))) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	scraped, _ := io.ReadAll(resp.Body)
	if _, err := wire.DecodeStat("", scraped); err != nil {
		t.Errorf("the scrape does not decode: %v", err)
	}
	s, err := wire.DecodeStat("", b)
	if err != nil || s.Requests != 2 || s.ProxiedRequests != 1 || s.Completed != 2 || s.PodName != "pod" {
		t.Errorf("got %+v %v", s, err)
	}
}

// pushed is an autoscaler that takes what a pod pushes with its token: what came, and its address.
func pushed(t *testing.T) (<-chan wire.StatMessage, string) {
	got := make(chan wire.StatMessage, 16)
	autoscaler := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		messages, err := wire.DecodeStats(body, wire.MaxStats)
		if err != nil || len(messages) != 1 || !signed(r, body) {
			t.Errorf("pushed %v %v", messages, err)
			return
		}
		select {
		case got <- messages[0]:
		default:
		}
		w.WriteHeader(204)
	}))
	t.Cleanup(autoscaler.Close)
	return got, autoscaler.Listener.Addr().String()
}

func TestPressureIsPushed(t *testing.T) {
	got, autoscaler := pushed(t)
	release := make(chan bool)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { <-release }, func(c *wire.Sidecar) {
		c.Concurrency, c.Token, c.Autoscaler = 1, wire.Token(podKey, "ns", "rev-00001"), autoscaler
	})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { r.get("/") })
	}
	m := <-got
	if m.Namespace != "ns" || m.Revision != "rev-00001" || m.Stat.AverageConcurrent < 1 {
		t.Errorf("pushed %+v", m)
	}
	close(release)
	wg.Wait()
}

// Without a limit nothing waits, and a burst would be seen with the next scrape only.
func TestGrowthIsPushedWithoutALimit(t *testing.T) {
	got, autoscaler := pushed(t)
	release := make(chan bool)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { <-release }, func(c *wire.Sidecar) {
		c.Concurrency, c.Token, c.Autoscaler = 0, wire.Token(podKey, "ns", "rev-00001"), autoscaler
	})
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { r.get("/") })
	}
	m := <-got
	for m.Stat.AverageConcurrent < 19 { // the first push may leave before all are here; the rest, less than twice as many, follows
		m = <-got
	}
	if m.Namespace != "ns" || m.Revision != "rev-00001" || m.Stat.Queued != 0 || !m.Stat.OutOfTurn {
		t.Errorf("pushed %+v", m)
	}
	close(release)
	wg.Wait()
}
