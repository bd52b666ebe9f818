package tracing

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

	tracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spanpb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
)

const (
	trace64  = "463ac35c9f6413ad"
	trace128 = "0af7651916cd43dd8448eb211c80319c"
	span64   = "b7ad6b7169203331"
)

func TestExtract(t *testing.T) {
	yes := "00-" + trace128 + "-" + span64 + "-01"
	for _, c := range []struct {
		name    string
		header  map[string]string
		want    string // as a traceparent; "" when there is none
		comment string
	}{
		{"nothing", nil, "", ""},
		{"sampled", map[string]string{"Traceparent": yes}, yes, ""},
		{"not sampled", map[string]string{"Traceparent": "00-" + trace128 + "-" + span64 + "-00"}, "00-" + trace128 + "-" + span64 + "-00", ""},
		{"other flags", map[string]string{"Traceparent": "00-" + trace128 + "-" + span64 + "-03"}, yes, "only the first is known"},
		{"a later version", map[string]string{"Traceparent": "cc-" + trace128 + "-" + span64 + "-01-what-else"}, yes, "is read as the first"},
		{"a later version that runs on", map[string]string{"Traceparent": "cc-" + trace128 + "-" + span64 + "-01x"}, "", ""},
		{"version 00 that runs on", map[string]string{"Traceparent": yes + "-x"}, "", ""},
		{"version ff", map[string]string{"Traceparent": "ff" + yes[2:]}, "", "is forbidden"},
		{"zero trace", map[string]string{"Traceparent": "00-" + strings.Repeat("0", 32) + "-" + span64 + "-01"}, "", ""},
		{"zero span", map[string]string{"Traceparent": "00-" + trace128 + "-" + strings.Repeat("0", 16) + "-01"}, "", ""},
		{"upper case", map[string]string{"Traceparent": strings.ToUpper(yes)}, "", ""},
		{"cut off", map[string]string{"Traceparent": yes[:54]}, "", ""},
		{"B3 in several fields", map[string]string{"X-B3-Traceid": trace128, "X-B3-Spanid": span64, "X-B3-Sampled": "1"}, yes, ""},
		{"B3 with a short trace", map[string]string{"X-B3-Traceid": trace64, "X-B3-Spanid": span64}, "00-" + strings.Repeat("0", 16) + trace64 + "-" + span64 + "-00", ""},
		{"B3 debug", map[string]string{"X-B3-Traceid": trace128, "X-B3-Spanid": span64, "X-B3-Flags": "1"}, yes, ""},
		{"B3 without span", map[string]string{"X-B3-Traceid": trace128}, "", ""},
		{"B3 in one field", map[string]string{"B3": trace128 + "-" + span64 + "-1-" + span64}, yes, ""},
		{"B3 in one field, no decision", map[string]string{"B3": trace128 + "-" + span64}, "00-" + trace128 + "-" + span64 + "-00", ""},
		{"B3 that says only no", map[string]string{"B3": "0"}, "", ""},
		{"B3 garbage", map[string]string{"B3": trace128 + "-" + span64 + "x"}, "", ""},
	} {
		got, found := Extract(func(name string) string { return c.header[name] })
		text := ""
		if found {
			text = got.String()
		}
		if text != c.want {
			t.Errorf("%s: got %q, want %q %s", c.name, text, c.want, c.comment)
		}
	}
}

func FuzzExtract(f *testing.F) {
	f.Add("00-"+trace128+"-"+span64+"-01", trace64+"-"+span64+"-d", trace64, span64)
	f.Fuzz(func(t *testing.T, parent, b3, trace, span string) {
		fields := map[string]string{"Traceparent": parent, "B3": b3, "X-B3-Traceid": trace, "X-B3-Spanid": span}
		got, found := Extract(func(name string) string { return fields[name] })
		if !found {
			return
		}
		again, ok := Extract(func(name string) string { return map[string]string{"Traceparent": got.String()}[name] })
		if got.SpanID != [8]byte{} && (!ok || again != got) {
			t.Errorf("%v is read back as %v", got, again)
		}
	})
}

// proxy is a forwarder that traces, before a backend that tells what it was sent.
type proxy struct {
	tracer *Tracer
	user   *forward.Upstream
}

func (p *proxy) Admit(r *forward.Request) forward.Decision {
	r.Data = p.tracer.Begin(r)
	return forward.Decision{Upstream: p.user}
}

func (p *proxy) Done(r *forward.Request, res *forward.Result) {
	r.Data.(*Span).End(r, res, r.Started, otlp.String("more", "said"))
}

func TestTheSpansOfAForwardedRequest(t *testing.T) {
	spans := make(chan []*spanpb.Span, 10)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var got tracepb.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Error(err)
		}
		spans <- got.ResourceSpans[0].ScopeSpans[0].Spans
	}))
	defer collector.Close()
	told := make(chan http.Header, 1)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told <- r.Header.Clone()
		w.WriteHeader(503)
	}))
	defer backend.Close()
	for _, c := range []struct {
		name      string
		rate      float64
		parent    string
		traced    bool
		unchanged bool
	}{
		{"its own trace", 1, "", true, false},
		{"nobody asked", 0, "", false, false},
		{"the caller traces", 0, "00-" + trace128 + "-" + span64 + "-01", true, false},
		{"the caller does not", 1, "00-" + trace128 + "-" + span64 + "-00", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tracer, err := New(Options{Target: otlp.Target{Protocol: otlp.HTTP, Endpoint: collector.URL}, Rate: c.rate, Scope: "s"})
			if err != nil {
				t.Fatal(err)
			}
			p := &proxy{tracer, forward.NewUpstream(strings.TrimPrefix(backend.URL, "http://"), forward.UpstreamOptions{})}
			server := &forward.Server{Handler: p}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go server.Serve(l)
			request, _ := http.NewRequest("GET", "http://"+l.Addr().String()+"/a?b", nil)
			if c.parent != "" {
				request.Header.Set("Traceparent", c.parent)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			response.Body.Close()
			server.Shutdown(t.Context()) // Done was called
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			tracer.Run(ctx) // sends what is there
			parent := (<-told).Get("Traceparent")
			passed, ok := Extract(func(string) string { return parent })
			if !ok || passed.Sampled != c.traced || c.unchanged && parent != c.parent {
				t.Errorf("the container was told %q", parent)
			}
			if !c.traced {
				select {
				case got := <-spans:
					t.Errorf("spans %v were sent", got)
				default:
				}
				return
			}
			got := <-spans
			if len(got) != 2 {
				t.Fatalf("got %d spans, want 2", len(got))
			}
			outer, inner := got[0], got[1]
			if outer.Kind != spanpb.Span_SPAN_KIND_SERVER || inner.Kind != spanpb.Span_SPAN_KIND_CLIENT || string(inner.ParentSpanId) != string(outer.SpanId) ||
				string(inner.SpanId) != string(passed.SpanID[:]) || string(inner.TraceId) != string(passed.TraceID[:]) || outer.Status == nil {
				t.Errorf("the spans do not fit: outer %v, inner %v, passed %s", outer, inner, parent)
			}
			if c.parent == "" && len(outer.ParentSpanId) != 0 || c.parent != "" && string(outer.ParentSpanId) != "\xb7\xad\x6b\x71\x69\x20\x33\x31" {
				t.Errorf("the outer span's parent is %x", outer.ParentSpanId)
			}
		})
	}
}

func TestTheShareOfTracedRequests(t *testing.T) {
	tracer, err := New(Options{Target: otlp.Target{Protocol: Stdout}, Rate: 0.25, Stdout: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	traced := 0
	for range n {
		if tracer.Begin(&forward.Request{}) != nil {
			traced++
		}
	}
	if share := float64(traced) / n; math.Abs(share-0.25) > 0.03 {
		t.Errorf("%.3f of the requests are traced, want 0.25", share)
	}
}

// failing is a collector that cannot take anything for a while.
type failing struct {
	until atomic.Int64
	calls atomic.Int64
}

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.calls.Add(1) <= f.until.Load() {
		return nil, errors.New("not yet")
	}
	return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}}, nil
}

func TestSpansWaitForACollectorAndAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost atomic.Int64
		tracer, err := New(Options{Target: otlp.Target{Protocol: otlp.HTTP, Endpoint: "c:1"}, Failed: func(error) { lost.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		collector := &failing{}
		collector.until.Store(2)
		tracer.exporter.Transport(collector)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() {
			tracer.Run(ctx)
			close(done)
		}()
		tracer.add(&otlp.Span{Name: "a"})
		time.Sleep(time.Minute)
		if collector.calls.Load() != 3 || tracer.Dropped.Load() != 0 || lost.Load() != 0 {
			t.Errorf("%d attempts, %d dropped", collector.calls.Load(), tracer.Dropped.Load())
		}
		collector.until.Store(1e9)
		tracer.add(&otlp.Span{Name: "b"})
		time.Sleep(flushEvery + time.Millisecond)
		synctest.Wait() // it was taken, refused, and is to be tried again: until time goes on nothing more is taken
		big := &otlp.Span{Name: strings.Repeat("x", 1<<20)}
		for range 5 {
			tracer.add(big)
		}
		if got := tracer.Dropped.Load(); got != 3 {
			t.Errorf("%d of 5 spans of 1 MiB were dropped at once, want 3", got)
		}
		time.Sleep(time.Minute)
		if got := tracer.Dropped.Load(); got != 6 || lost.Load() != 2 {
			t.Errorf("%d spans were dropped and %d losses told, want all 6 and two", got, lost.Load())
		}
		cancel()
		<-done
	})
}

func TestNoProtocolIsNoTracer(t *testing.T) {
	for _, protocol := range []string{"", "none"} {
		tracer, err := New(Options{Target: otlp.Target{Protocol: protocol}})
		if tracer != nil || err != nil {
			t.Errorf("%q: %v %v", protocol, tracer, err)
		}
		tracer.Begin(&forward.Request{}).End(&forward.Request{}, &forward.Result{}, time.Time{})
		tracer.Run(t.Context())
	}
	if _, err := New(Options{Target: otlp.Target{Protocol: "smoke"}}); err == nil {
		t.Error("an unknown protocol was accepted")
	}
}
