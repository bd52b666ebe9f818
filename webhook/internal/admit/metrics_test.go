package admit

import (
	"testing"
	"time"

	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/testing/promtool"
)

func TestPromtoolTakesTheMetrics(t *testing.T) {
	registry := telemetry.NewRegistry()
	NewMetrics(registry).observe("/defaulting", "Service", true, time.Millisecond)
	promtool.CheckMetrics(t, telemetry.Metrics(registry))
}
