package sidecar

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/queue-proxy/internal/routetag"
	"ebb.dev/ebb/wire"
)

func texts(list []*commonpb.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range list {
		out[a.Key] = a.Value.GetStringValue()
	}
	return out
}

// A request's span and its place in the metrics reach the collector at the latest when the pod
// ends; probes do not.
func TestSpansAndMetricsReachACollector(t *testing.T) {
	spans := make(chan *tracepb.ExportTraceServiceRequest, 10)
	metrics := make(chan *metricspb.ExportMetricsServiceRequest, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var err error
		switch r.URL.Path {
		case "/v1/traces":
			got := &tracepb.ExportTraceServiceRequest{}
			err = proto.Unmarshal(body, got)
			spans <- got
		case "/v1/metrics":
			got := &metricspb.ExportMetricsServiceRequest{}
			err = proto.Unmarshal(body, got)
			metrics <- got
		}
		if err != nil {
			t.Error(err)
		}
	}))
	defer collector.Close()
	told := make(chan string, 1)
	r := startRig(t, func(w http.ResponseWriter, r *http.Request) { told <- r.Header.Get("Traceparent") }, func(c *wire.Sidecar) {
		c.DrainQuiet = time.Millisecond
		c.Observability.Tracing.Protocol, c.Observability.Tracing.Endpoint = otlp.HTTP, collector.URL
		c.Observability.RequestMetrics.Protocol, c.Observability.RequestMetrics.Endpoint = otlp.HTTP, collector.URL
		c.Observability.RequestMetrics.Interval = "1h"
	})
	if status, _, _ := r.get("/", "K-Network-Probe", "queue"); status != 200 {
		t.Errorf("a probe got %d", status)
	}
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if status, _, _ := r.get("/traced", "Traceparent", parent); status != 200 {
		t.Errorf("the request got %d", status)
	}
	passed := <-told
	r.stop()
	err := <-r.done
	r.done <- err
	got := <-spans
	resource := texts(got.ResourceSpans[0].Resource.Attributes)
	if resource["kn.revision.name"] != r.cfg.Revision || resource["k8s.pod.name"] != r.cfg.Pod || resource["service.name"] != "queue-proxy" {
		t.Errorf("the resource is %v", resource)
	}
	list := got.ResourceSpans[0].ScopeSpans[0].Spans
	if len(list) != 2 {
		t.Fatalf("%d spans, want the request's and the container's", len(list))
	}
	if tag := texts(list[0].Attributes)["kn.route.tag"]; tag != routetag.Disabled {
		t.Errorf("the route's tag is %q", tag)
	}
	if want := "00-0af7651916cd43dd8448eb211c80319c-" + hex.EncodeToString(list[1].SpanId) + "-01"; passed != want || passed == parent {
		t.Errorf("the container was told %q, its span is %q", passed, want)
	}
	count := uint64(0)
	for _, m := range (<-metrics).ResourceMetrics[0].ScopeMetrics[0].Metrics {
		if m.Name == "kn.serving.invocation.duration" {
			for _, p := range m.GetHistogram().DataPoints {
				count += p.Count
			}
		}
	}
	if count != 1 {
		t.Errorf("%d requests were measured, want 1", count)
	}
}

// buggy is the policy with a bug that one path meets.
type buggy struct{ forward.Handler }

func (b buggy) Admit(r *forward.Request) forward.Decision {
	v := b.Handler.Admit(r)
	if r.Path() == "/bug" {
		panic("a bug")
	}
	return v
}

func TestAPanicIsCounted(t *testing.T) {
	r := startRig(t, hello, nil, func(s *Sidecar) { s.server.Handler = buggy{s.server.Handler} })
	for path, want := range map[string]int{"/bug": 500, "/": 200} {
		if status, _, _ := r.get(path); status != want {
			t.Errorf("%s got %d, want %d", path, status, want)
		}
	}
	if got := r.judged(); got != (wire.Judged{Good: 1}) { // it is not the program's fault
		t.Errorf("judged as %+v", got)
	}
	w := httptest.NewRecorder()
	r.metrics.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if text := w.Body.String(); !regexp.MustCompile(`(?m)^ebb_panics_total\{.*\} 1$`).MatchString(text) {
		t.Errorf("the panic is not counted in\n%s", text)
	}
}
