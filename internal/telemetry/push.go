package telemetry

import (
	"context"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/run"
)

// Exporter returns a part that hands the metrics of a component's pod out by OTLP, to wherever
// current says (see Push).
func Exporter(component, namespace, pod string, registry prometheus.Gatherer, log *slog.Logger, current func() (otlp.Export, <-chan struct{})) run.Part {
	resource := []otlp.Attribute{otlp.String("service.name", component), otlp.String("k8s.namespace.name", namespace), otlp.String("k8s.pod.name", pod)}
	return run.Part{Name: "metrics export", Run: func(ctx context.Context) error {
		return Push(ctx, registry, resource, Scope(component), log, current)
	}}
}

// Scope is OpenTelemetry's name of what a component observes (contract section 4.8).
func Scope(component string) string { return "knative.dev/serving/pkg/" + component }

// Push exports what registry holds by OTLP, to wherever current says, until ctx ends. The channel
// that current returns is closed when it would answer otherwise.
func Push(ctx context.Context, registry prometheus.Gatherer, resource []otlp.Attribute, scope string, log *slog.Logger,
	current func() (otlp.Export, <-chan struct{})) error {
	failed := func(err error) { log.Warn("export metrics", "error", err) }
	for ctx.Err() == nil {
		export, changed := current()
		round, stop := context.WithCancel(ctx)
		done := make(chan struct{})
		go func() {
			defer close(done)
			if export.Protocol != otlp.HTTP && export.Protocol != otlp.GRPC {
				return
			}
			exporter, err := otlp.NewExporter(otlp.Target{Protocol: export.Protocol, Endpoint: export.Endpoint}, otlp.Meters)
			if err != nil {
				log.Error("metrics export is off", "error", err)
				return
			}
			var last time.Time
			otlp.Push(round, exporter, export.Interval, resource, scope, func(m *otlp.Metrics) {
				now := time.Now()
				runtime := last.IsZero() || now.Sub(last) >= export.Runtime
				if runtime {
					last = now
				}
				Collect(registry, m, func(name string) bool { return runtime || !ofRuntime(name) }, failed)
			}, failed)
		}()
		for next := export; next == export && ctx.Err() == nil; next, changed = current() {
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
		stop()
		<-done
	}
	return nil
}

// ofRuntime tells the metrics of the collectors that every registry has.
func ofRuntime(name string) bool {
	return strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_")
}

// Collect adds what registry holds of the wanted families to an OTLP export. Names and labels that
// OpenTelemetry's conventions own are spelled with dots there, and have no suffix for unit or kind;
// all others keep their names.
func Collect(registry prometheus.Gatherer, out *otlp.Metrics, wanted func(family string) bool, failed func(error)) {
	families, err := registry.Gather()
	if err != nil {
		failed(err) // what could be gathered is there all the same
	}
	for _, f := range families {
		if !wanted(f.GetName()) || ofPrometheus(f.GetName()) {
			continue
		}
		var points []otlp.Point
		var histograms []otlp.Histogram
		for _, m := range f.GetMetric() {
			var attributes []otlp.Attribute
			for _, l := range m.GetLabel() {
				attributes = append(attributes, otlp.String(dotted(l.GetName()), l.GetValue()))
			}
			switch {
			case m.GetHistogram() != nil:
				h := otlp.Histogram{Attributes: attributes, Sum: m.GetHistogram().GetSampleSum()}
				before := uint64(0)
				for _, b := range m.GetHistogram().GetBucket() {
					if math.IsInf(b.GetUpperBound(), 1) {
						continue
					}
					h.Bounds = append(h.Bounds, b.GetUpperBound())
					h.Counts = append(h.Counts, b.GetCumulativeCount()-before)
					before = b.GetCumulativeCount()
				}
				h.Counts = append(h.Counts, m.GetHistogram().GetSampleCount()-before)
				histograms = append(histograms, h)
			case m.GetCounter() != nil:
				points = append(points, otlp.Point{Attributes: attributes, Value: m.GetCounter().GetValue()})
			case m.GetGauge() != nil:
				points = append(points, otlp.Point{Attributes: attributes, Value: m.GetGauge().GetValue()})
			}
			// Summaries (the Go collector's pauses of the garbage collector) have no counterpart
			// that anybody reads.
		}
		name, unit := openName(f.GetName())
		switch f.GetType().String() {
		case "HISTOGRAM":
			out.Histogram(name, unit, f.GetHelp(), histograms...)
		case "COUNTER":
			out.Counter(name, unit, f.GetHelp(), points...)
		case "GAUGE":
			out.Gauge(name, unit, f.GetHelp(), points...)
		}
	}
}

// ofPrometheus tells the second spellings, of which OpenTelemetry has only the first.
func ofPrometheus(name string) bool {
	return strings.HasPrefix(name, "kn_") && strings.HasSuffix(name, "_per_second")
}

// dotted respells a name of the namespaces kn, k8s and faas. Only not_ready and init_duration are
// one word of two there.
func dotted(name string) string {
	if rest, ok := strings.CutPrefix(name, "faas_"); ok {
		return "faas." + rest
	}
	if !strings.HasPrefix(name, "kn_") && !strings.HasPrefix(name, "k8s_") {
		return name
	}
	return strings.ReplaceAll(strings.ReplaceAll(name, "_", "."), "not.ready", "not_ready")
}

// openName returns the name and the unit (UCUM) in OpenTelemetry.
func openName(name string) (open, unit string) {
	open = dotted(name)
	switch {
	case strings.HasSuffix(name, "_seconds"):
		unit = "s"
	case strings.HasSuffix(name, "_bytes"):
		unit = "By"
	case name == "faas_coldstarts_total":
		unit = "{coldstart}"
	}
	if open == name {
		return name, unit
	}
	for _, suffix := range []string{".total", "_total", ".seconds", "_seconds"} {
		open = strings.TrimSuffix(open, suffix)
	}
	return open, unit
}
