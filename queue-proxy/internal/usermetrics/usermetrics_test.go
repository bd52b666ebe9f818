package usermetrics

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/internal/forward"
)

func TestMetricsCarryTheContractsNames(t *testing.T) {
	m := New("svc", "cfg", "rev", "ns", `po"d`, func() int { return 3 }, func() int { return 0 })
	m.Observe(&forward.Request{}, &forward.Result{Status: 200, Duration: 30 * time.Millisecond}, true) // a probe counts nowhere
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`kn_serving_queue_depth{kn_service_name="svc",kn_configuration_name="cfg",kn_revision_name="rev",k8s_namespace_name="ns",k8s_pod_name="po\"d"} 3`,
		"# TYPE kn_serving_invocation_duration_seconds histogram",
		"# TYPE http_server_request_duration_seconds histogram",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, `http_response_status_code="200"`) {
		t.Error("a probe was counted")
	}
}

func TestDurationsFallIntoTheirBuckets(t *testing.T) {
	var h histogram
	for _, d := range []time.Duration{0, 500 * time.Microsecond, 30 * time.Millisecond, time.Hour} {
		h.observe(d)
	}
	got := map[int]uint64{}
	for i := range h.counts {
		if n := h.counts[i].Load(); n > 0 {
			got[i] = n
		}
	}
	if got[0] != 2 || got[6] != 1 || got[len(bounds)] != 1 || len(got) != 3 {
		t.Errorf("buckets %v", got)
	}
}
