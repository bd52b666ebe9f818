package otlp

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var resource = []Attribute{String("service.name", "x"), String("k8s.pod.name", strings.Repeat("p", 300))}

func attributesOf(list []*commonpb.KeyValue) map[string]any {
	out := map[string]any{}
	for _, a := range list {
		switch v := a.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			out[a.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[a.Key] = v.IntValue
		}
	}
	return out
}

// noUnknown fails for anything that OpenTelemetry's own types do not know.
func noUnknown(t *testing.T, m proto.Message, encoded []byte) {
	t.Helper()
	again, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if len(again) != len(encoded) {
		t.Errorf("the message has %d bytes, OpenTelemetry's own encoding of it %d", len(encoded), len(again))
	}
}

func span() *Span {
	return &Span{
		TraceID: [16]byte{1, 15: 2}, SpanID: [8]byte{3, 7: 4}, Parent: [8]byte{5}, State: "a=b", Name: "GET", Kind: Server,
		Start: time.Unix(10, 1), End: time.Unix(11, 2), Failure: "it broke",
		Attributes: []Attribute{String("text", strings.Repeat("long", 100)), String("empty", ""), Int("number", 200), Int("zero", 0), Int("negative", -1)},
	}
}

func TestSpansAreWhatOpenTelemetryReads(t *testing.T) {
	root := &Span{TraceID: [16]byte{9}, SpanID: [8]byte{9}, Name: "root", Kind: Client, Start: time.Unix(1, 0), End: time.Unix(1, 0)}
	encoded := Request(resource, "scope", AppendSpan(AppendSpan(nil, span()), root))
	var got tracepb.ExportTraceServiceRequest
	if err := proto.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}
	noUnknown(t, &got, encoded)
	if a := attributesOf(got.ResourceSpans[0].Resource.Attributes); a["service.name"] != "x" || len(a["k8s.pod.name"].(string)) != 300 {
		t.Errorf("resource %v", a)
	}
	scope := got.ResourceSpans[0].ScopeSpans[0]
	if scope.Scope.Name != "scope" || len(scope.Spans) != 2 {
		t.Fatalf("scope %v with %d spans", scope.Scope, len(scope.Spans))
	}
	s, want := scope.Spans[0], span()
	a := attributesOf(s.Attributes)
	if string(s.TraceId) != string(want.TraceID[:]) || string(s.SpanId) != string(want.SpanID[:]) || string(s.ParentSpanId) != string(want.Parent[:]) ||
		s.TraceState != "a=b" || s.Name != "GET" || s.Kind != spanpb.Span_SPAN_KIND_SERVER ||
		s.StartTimeUnixNano != 10e9+1 || s.EndTimeUnixNano != 11e9+2 || s.Status.Message != "it broke" || s.Status.Code != spanpb.Status_STATUS_CODE_ERROR {
		t.Errorf("got %v", s)
	}
	if len(a) != 5 || a["text"] != strings.Repeat("long", 100) || a["empty"] != "" || a["number"] != int64(200) || a["zero"] != int64(0) || a["negative"] != int64(-1) {
		t.Errorf("attributes %v", a)
	}
	if s := scope.Spans[1]; len(s.ParentSpanId) != 0 || s.Status != nil || s.Kind != spanpb.Span_SPAN_KIND_CLIENT {
		t.Errorf("the root: %v", s)
	}
}

func TestMetricsAreWhatOpenTelemetryReads(t *testing.T) {
	m := &Metrics{Start: time.Unix(1, 0), Now: time.Unix(2, 0)}
	m.Gauge("g", "{request}", "a gauge", Point{[]Attribute{Int("i", 1)}, 2.5}, Point{nil, 0})
	m.Counter("c", "", "", Point{[]Attribute{String("s", "v")}, 7})
	m.Histogram("h", "s", "a histogram", Histogram{[]Attribute{String("s", "v")}, []uint64{1, 0, 300}, []float64{0.5, 1}, 12.25})
	encoded := Request(resource, "scope", m.Elements())
	var got metricspb.ExportMetricsServiceRequest
	if err := proto.Unmarshal(encoded, &got); err != nil {
		t.Fatal(err)
	}
	noUnknown(t, &got, encoded)
	metrics := got.ResourceMetrics[0].ScopeMetrics[0].Metrics
	if len(metrics) != 3 {
		t.Fatalf("%d metrics", len(metrics))
	}
	gauge := metrics[0].GetGauge().DataPoints
	if metrics[0].Name != "g" || metrics[0].Unit != "{request}" || len(gauge) != 2 || gauge[0].GetAsDouble() != 2.5 || gauge[0].TimeUnixNano != 2e9 {
		t.Errorf("gauge %v", metrics[0])
	}
	counter := metrics[1].GetSum()
	if !counter.IsMonotonic || counter.AggregationTemporality != 2 || counter.DataPoints[0].GetAsDouble() != 7 || counter.DataPoints[0].StartTimeUnixNano != 1e9 ||
		attributesOf(counter.DataPoints[0].Attributes)["s"] != "v" {
		t.Errorf("counter %v", metrics[1])
	}
	histogram := metrics[2].GetHistogram()
	p := histogram.DataPoints[0]
	if histogram.AggregationTemporality != 2 || p.Count != 301 || p.GetSum() != 12.25 || len(p.BucketCounts) != 3 || p.BucketCounts[2] != 300 ||
		len(p.ExplicitBounds) != 2 || math.Abs(p.ExplicitBounds[0]-0.5) > 0 || attributesOf(p.Attributes)["s"] != "v" {
		t.Errorf("histogram %v", metrics[2])
	}
}

func TestExportOverHTTP(t *testing.T) {
	code := atomic.Int64{}
	code.Store(200)
	type seen struct {
		path, contentType string
		spans             int
	}
	requests := make(chan seen, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var got tracepb.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Error(err)
		}
		requests <- seen{r.URL.Path, r.Header.Get("Content-Type"), len(got.ResourceSpans[0].ScopeSpans[0].Spans)}
		w.WriteHeader(int(code.Load()))
	}))
	defer collector.Close()
	for _, c := range []struct {
		endpoint, path string
		code           int
		fails, retry   bool
	}{
		{strings.TrimPrefix(collector.URL, "http://"), "/v1/traces", 200, false, false},
		{collector.URL, "/v1/traces", 202, false, false},
		{collector.URL + "/my/path", "/my/path", 400, true, false},
		{collector.URL + "/", "/v1/traces", 503, true, true},
	} {
		e, err := NewExporter(Target{Protocol: HTTP, Endpoint: c.endpoint}, Traces)
		if err != nil {
			t.Fatal(err)
		}
		code.Store(int64(c.code))
		err = e.Export(t.Context(), Request(resource, "s", AppendSpan(nil, span())))
		var retry *RetryableError
		if (err != nil) != c.fails || errors.As(err, &retry) != c.retry {
			t.Errorf("%s, status %d: %v", c.endpoint, c.code, err)
		}
		if got := <-requests; got.path != c.path || got.contentType != "application/x-protobuf" || got.spans != 1 {
			t.Errorf("%s: the collector got %+v", c.endpoint, got)
		}
		e.Close()
	}
}

// collector is a real gRPC server.
type collector struct {
	tracepb.UnimplementedTraceServiceServer
	code  codes.Code
	spans int
}

func (c *collector) Export(_ context.Context, r *tracepb.ExportTraceServiceRequest) (*tracepb.ExportTraceServiceResponse, error) {
	c.spans += len(r.ResourceSpans[0].ScopeSpans[0].Spans)
	if c.code != codes.OK {
		return nil, status.Error(c.code, "no")
	}
	return &tracepb.ExportTraceServiceResponse{}, nil
}

func TestExportOverGRPC(t *testing.T) {
	for _, c := range []struct {
		code         codes.Code
		fails, retry bool
	}{{codes.OK, false, false}, {codes.Unavailable, true, true}, {codes.InvalidArgument, true, false}} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		service := &collector{code: c.code}
		server := grpc.NewServer()
		tracepb.RegisterTraceServiceServer(server, service)
		go server.Serve(listener)
		e, err := NewExporter(Target{Protocol: GRPC, Endpoint: listener.Addr().String()}, Traces)
		if err != nil {
			t.Fatal(err)
		}
		err = e.Export(t.Context(), Request(resource, "s", AppendSpan(nil, span())))
		var retry *RetryableError
		if (err != nil) != c.fails || errors.As(err, &retry) != c.retry {
			t.Errorf("%s: %v", c.code, err)
		}
		e.Close()
		server.Stop()
		if service.spans != 1 {
			t.Errorf("%s: the collector got %d spans", c.code, service.spans)
		}
	}
}

func TestATargetThatMakesNoSenseIsRefused(t *testing.T) {
	for _, target := range []Target{{HTTP, "", ""}, {HTTP, "ftp://x", ""}, {"carrier pigeon", "x:1", ""}, {GRPC, "https://x", "no PEM"}, {GRPC, "a b", ""}} {
		if _, err := NewExporter(target, Traces); err == nil {
			t.Errorf("%+v was accepted", target)
		}
	}
}

func TestMetricsArePushedEveryIntervalAndAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := NewExporter(Target{Protocol: HTTP, Endpoint: "collector:4318"}, Meters)
		if err != nil {
			t.Fatal(err)
		}
		e.Transport(refuse{})
		ctx, cancel := context.WithCancel(t.Context())
		collected, failures := 0, 0
		done := make(chan bool)
		go func() {
			Push(ctx, e, 10*time.Second, resource, "s", func(*Metrics) { collected++ }, func(error) { failures++ })
			close(done)
		}()
		time.Sleep(25 * time.Second)
		cancel()
		<-done
		if collected != 3 || failures != 3 {
			t.Errorf("collected %d times, %d failures were told, want 3 each", collected, failures)
		}
	})
}

type refuse struct{}

func (refuse) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no") }
