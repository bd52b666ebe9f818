package admit

import (
	"testing"
	"time"

	"ebb.dev/ebb/internal/promtool"
	"ebb.dev/ebb/internal/telemetry"
)

func TestPromtoolTakesTheMetrics(t *testing.T) {
	registry := telemetry.NewRegistry()
	NewMetrics(registry).observe("/defaulting", "Service", true, time.Millisecond)
	promtool.CheckMetrics(t, telemetry.Metrics(registry))
}
