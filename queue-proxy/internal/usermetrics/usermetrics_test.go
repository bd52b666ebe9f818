package usermetrics

import (
	"iter"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/testing/promtool"
	"ebb.dev/ebb/queue-proxy/internal/chain"
	"ebb.dev/ebb/standby"
)

func overran(yield func(string, int64) bool) { yield("HEAD", 3) }

var some = Sources{Waiting: func() int { return 3 }, Upgraded: func() int { return 0 }, Panics: func() int64 { return 2 }, Evicted: func() int64 { return 5 }, Overruns: func() iter.Seq2[string, int64] { return overran }}

func TestMetricsCarryTheContractsNames(t *testing.T) {
	m := New([]otlp.Attribute{otlp.String("kn.service.name", "svc"), otlp.String("k8s.pod.name", `po"d`)}, some)
	m.Observe(&forward.Request{}, &forward.Result{Status: 200, Duration: 30 * time.Millisecond}, chain.Ended{Probe: true}) // a probe counts nowhere
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`kn_serving_queue_depth{kn_service_name="svc",k8s_pod_name="po\"d"} 3`,
		"# TYPE kn_serving_invocation_duration_seconds histogram",
		"# TYPE http_server_request_duration_seconds histogram",
		"# TYPE http_client_request_duration_seconds histogram",
		"# TYPE ebb_requests_not_completed_total counter",
		`ebb_panics_total{kn_service_name="svc",k8s_pod_name="po\"d"} 2`,
		"# TYPE ebb_evicted_connections_total counter",
		`ebb_evicted_connections_total{kn_service_name="svc",k8s_pod_name="po\"d"} 5`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, `http_response_status_code="200"`) {
		t.Error("a probe was counted")
	}
}

func TestPromtoolTakesTheMetrics(t *testing.T) {
	sources := some
	sources.RejectedPeers = func() int64 { return 0 }
	m := New([]otlp.Attribute{otlp.String("kn.service.name", "svc")}, sources)
	m.Observe(&forward.Request{}, &forward.Result{Status: 200, Duration: time.Millisecond}, chain.Ended{})
	promtool.CheckMetrics(t, m)
}

func TestDurationsFallIntoTheirBuckets(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{0, 500 * time.Microsecond, 30 * time.Millisecond, time.Hour} {
		h.observe(d)
	}
	got := map[int]uint64{}
	for i := range h.counts {
		if n := h.counts[i].Load(); n > 0 {
			got[i] = n
		}
	}
	if got[0] != 2 || got[6] != 1 || got[len(bounds)] != 1 || len(got) != 3 {
		t.Errorf("buckets %v", got)
	}
}

func TestOpenTelemetryGetsTheContractsNames(t *testing.T) {
	m := New(nil, some)
	for i := range 3 {
		started := time.Unix(10, 0)
		m.Observe(&forward.Request{Started: started}, &forward.Result{Status: 200 + i, Duration: 30 * time.Millisecond},
			chain.Ended{Sent: started.Add(20 * time.Millisecond)})
	}
	m.Observe(&forward.Request{}, &forward.Result{Status: 0, Cause: forward.ClientGone}, chain.Ended{})
	out := &otlp.Metrics{Start: time.Unix(1, 0), Now: time.Unix(2, 0)}
	m.Collect(out)
	var got metricspb.ExportMetricsServiceRequest
	if err := proto.Unmarshal(otlp.Request(nil, "s", out.Elements()), &got); err != nil {
		t.Fatal(err)
	}
	counts, sums := map[string]uint64{}, map[string]float64{}
	for _, metric := range got.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		counts[metric.Name] = 0
		for _, p := range metric.GetHistogram().GetDataPoints() {
			counts[metric.Name] += p.Count
			sums[metric.Name] += p.GetSum()
		}
	}
	for name, want := range map[string]uint64{"kn.serving.invocation.duration": 4, "http.server.request.duration": 4, "http.client.request.duration": 3, "kn.serving.queue.depth": 0, "ebb.panics": 0, "ebb.evicted.connections": 0} {
		if n, there := counts[name]; !there || n != want {
			t.Errorf("%s has %d requests, want %d", name, n, want)
		}
	}
	if d := sums["http.client.request.duration"]; d < 0.0299 || d > 0.0301 {
		t.Errorf("the container took %v s in all, want 0.03: the time in the queue is not its own", d)
	}
}

func TestTagsOfClientsAreBounded(t *testing.T) {
	m := New(nil, some)
	for i := range 100 {
		m.door(strconv.Itoa(i)).server.observe(200, 0)
	}
	if n := len(*m.doors.Load()); n != maxTags {
		t.Errorf("%d tags are told apart, want %d", n, maxTags)
	}
	rest := uint64(0)
	for _, h := range m.door("another").server.all() {
		rest = h.counts[0].Load()
	}
	if rest != 100-(maxTags-4) {
		t.Errorf("%d requests are counted for the rest", rest)
	}
}

func TestWakesAreShownForPodsThatMaySleep(t *testing.T) {
	zero := func() int { return 0 }
	none := func() int64 { return 0 }
	sources := Sources{Waiting: zero, Upgraded: zero, Panics: none, Evicted: none, Overruns: func() iter.Seq2[string, int64] { return overran }}
	if text := string(New(nil, sources).text()); strings.Contains(text, "ebb_wake") {
		t.Errorf("a pod that never sleeps shows wakes:\n%s", text)
	}
	sources.RejectedPeers = func() int64 { return 3 }
	m := New(nil, sources)
	m.Woke(standby.Frozen, 3*time.Millisecond)
	text := string(m.text())
	for _, want := range []string{`level="frozen",le="0.0025"} 0`, `level="frozen",le="0.005"} 1`, `level="compressed",le="+Inf"} 0`, "ebb_stranger_connections_total{} 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}
