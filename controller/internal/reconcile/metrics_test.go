package reconcile

import (
	"testing"

	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/testing/promtool"
)

func TestPromtoolTakesTheMetrics(t *testing.T) {
	registry := telemetry.NewRegistry()
	m := NewMetrics(registry)
	m.duration.WithLabelValues("revision", "ok").Observe(1)
	for _, depth := range m.depth {
		depth.WithLabelValues("revision").Set(1)
	}
	promtool.CheckMetrics(t, telemetry.Metrics(registry))
}
