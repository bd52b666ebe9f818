package telemetry

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metricspb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/protobuf/proto"

	"ebb.dev/ebb/internal/otlp"
)

func filled() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kn_activator_stats_conn_errors_total", Help: "h"}, []string{"peer"})
	counter.WithLabelValues("autoscaler").Add(3)
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "kn_revision_pods_not_ready_count"}, []string{"k8s_namespace_name"})
	gauge.WithLabelValues("ns").Set(2)
	histogram := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ebb_cold_start_seconds", Buckets: []float64{1, 2}})
	for _, v := range []float64{0.5, 1.5, 1.5, 9} {
		histogram.Observe(v)
	}
	starts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "faas_coldstarts_total"}, []string{"faas_trigger"})
	starts.WithLabelValues("http").Inc()
	registry.MustRegister(counter, gauge, histogram, starts,
		prometheus.NewHistogram(prometheus.HistogramOpts{Name: "faas_init_duration_seconds"}),
		prometheus.NewGauge(prometheus.GaugeOpts{Name: "kn_revision_rps_stable_per_second"}))
	return registry
}

func TestMetricsKeepTheirMeaningInOpenTelemetry(t *testing.T) {
	out := &otlp.Metrics{Start: time.Unix(1, 0), Now: time.Unix(2, 0)}
	Collect(filled(), out, func(string) bool { return true }, func(err error) { t.Error(err) })
	var got metricspb.ExportMetricsServiceRequest
	if err := proto.Unmarshal(otlp.Request(nil, "s", out.Elements()), &got); err != nil {
		t.Fatal(err)
	}
	metrics := got.ResourceMetrics[0].ScopeMetrics[0].Metrics
	if len(metrics) != 5 {
		t.Fatalf("got %v", metrics)
	}
	if m := metrics[0]; m.Name != "ebb_cold_start_seconds" || m.Unit != "s" || len(m.GetHistogram().DataPoints) != 1 ||
		m.GetHistogram().DataPoints[0].BucketCounts[0] != 1 || m.GetHistogram().DataPoints[0].BucketCounts[1] != 2 || m.GetHistogram().DataPoints[0].BucketCounts[2] != 1 {
		t.Errorf("histogram %v", m)
	}
	if m := metrics[1]; m.Name != "faas.coldstarts" || m.Unit != "{coldstart}" || m.GetSum().DataPoints[0].Attributes[0].Key != "faas.trigger" {
		t.Errorf("counter %v", m)
	}
	if m := metrics[2]; m.Name != "faas.init_duration" || m.Unit != "s" {
		t.Errorf("histogram %v", m)
	}
	if m := metrics[3]; m.Name != "kn.activator.stats.conn.errors" || !m.GetSum().IsMonotonic || m.GetSum().DataPoints[0].GetAsDouble() != 3 {
		t.Errorf("counter %v", m)
	}
	if m := metrics[4]; m.Name != "kn.revision.pods.not_ready.count" || m.GetGauge().DataPoints[0].Attributes[0].Key != "k8s.namespace.name" {
		t.Errorf("gauge %v", m)
	}
}

func TestWhereMetricsGoMayChangeWhileTheyGo(t *testing.T) {
	paths := make(chan string, 100)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		select {
		case paths <- r.URL.Path:
		default:
		}
	}))
	defer collector.Close()
	type setting struct {
		export  otlp.Export
		changed chan struct{}
	}
	var now atomic.Pointer[setting]
	set := func(protocol, path string) {
		old := now.Swap(&setting{otlp.Export{Protocol: protocol, Endpoint: collector.URL + path, Interval: time.Millisecond}, make(chan struct{})})
		if old != nil {
			close(old.changed)
		}
	}
	set("none", "/never")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		done <- Push(ctx, filled(), nil, "s", slog.New(slog.DiscardHandler), func() (otlp.Export, <-chan struct{}) {
			s := now.Load()
			return s.export, s.changed
		})
	}()
	for _, want := range []string{"/one", "/two"} {
		set(otlp.HTTP, want)
		for got := range paths {
			if got == want {
				break
			}
			if got == "/never" {
				t.Fatal("metrics were pushed although nobody asked")
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// config-observability's runtime-export-interval: between two exports with the metrics of the Go
// runtime lie several without.
func TestMetricsOfTheRuntimeAreExportedLessOften(t *testing.T) {
	registry := NewRegistry()
	own := prometheus.NewGauge(prometheus.GaugeOpts{Name: "ours"})
	registry.MustRegister(own)
	exports := make(chan map[string]bool, 1000)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var got metricspb.ExportMetricsServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &got)
		}
		if err != nil {
			t.Error(err)
			return
		}
		names := map[string]bool{}
		for _, m := range got.ResourceMetrics[0].ScopeMetrics[0].Metrics {
			names[m.Name] = true
		}
		select {
		case exports <- names:
		default:
		}
	}))
	defer collector.Close()
	for _, c := range []struct {
		runtime time.Duration
		again   bool
	}{{0, true}, {time.Hour, false}} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		to := otlp.Export{Protocol: otlp.HTTP, Endpoint: collector.URL, Interval: time.Millisecond, Runtime: c.runtime}
		go func() {
			done <- Push(ctx, registry, nil, "s", slog.New(slog.DiscardHandler), func() (otlp.Export, <-chan struct{}) { return to, nil })
		}()
		for i := range 4 {
			names := <-exports
			if !names["ours"] || names["go_goroutines"] != (i == 0 || c.again) {
				t.Errorf("every %v at least: export %d has %v", c.runtime, i, names)
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for len(exports) > 0 {
			<-exports
		}
	}
}
