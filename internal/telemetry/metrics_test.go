package telemetry

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/internal/testing/promtool"
)

func TestLeasesAndCertificatesAreShown(t *testing.T) {
	registry := NewRegistry()
	Leases(registry, "autoscaler", func() int { return 3 }, func() int { return 2 })
	registry.MustRegister(CertificateEnds(func() map[string]time.Time { return map[string]time.Time{"webhook-certs": time.Unix(1700000000, 0)} }))
	answer := httptest.NewRecorder()
	Metrics(registry).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`ebb_leases{component="autoscaler"} 3`, `ebb_leases_held{component="autoscaler"} 2`,
		`ebb_certificate_end_timestamp_seconds{certificate="webhook-certs"} 1.7e+09`,
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("lacks %s", want)
		}
	}
	promtool.CheckMetrics(t, Metrics(registry))
}
