package process

import (
	"testing"
	"time"

	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/testing/promtool"
)

func TestPromtoolTakesTheDurations(t *testing.T) {
	registry := telemetry.NewRegistry()
	d := observe(registry)
	d.scrape(time.Millisecond, true)
	promtool.CheckMetrics(t, telemetry.Metrics(registry))
}
