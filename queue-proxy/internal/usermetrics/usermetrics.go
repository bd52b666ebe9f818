// Package usermetrics counts the user's requests and prints the counts for Prometheus, under the contract's names (section 5.6).
//
// Owns: the histograms. Reads: finished exchanges. Writes: the text of /metrics. Never: allocates for a request. It is written by hand
// because a Prometheus client would be a third of this process's memory, and this process stands in every pod.
package usermetrics

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/internal/forward"
	"ebb.dev/ebb/wire"
)

// bounds of the histograms, in seconds: OpenTelemetry's advice for HTTP durations, with finer steps below 5 ms.
var bounds = [...]float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60, 300}

type histogram struct {
	counts [len(bounds) + 1]atomic.Uint64
	nanos  atomic.Int64
}

func (h *histogram) observe(d time.Duration) {
	s := d.Seconds()
	i := 0
	for i < len(bounds) && s > bounds[i] {
		i++
	}
	h.counts[i].Add(1)
	h.nanos.Add(int64(d))
}

// Route tags (contract section 5.6).
const (
	tagDefault   = "kn:default"
	tagUndefined = "kn:undefined"
	tagDisabled  = "kn:disabled"
)

// Metrics is the whole of them; make it with New.
type Metrics struct {
	labels  string
	waiting func() int

	// One histogram a status; all others share the last. Made when first needed.
	byStatus [1000]atomic.Pointer[histogram]
	tags     [3]atomic.Uint64
	named    atomic.Uint64 // requests with any other tag
	ended    [6]atomic.Uint64
	upgraded func() int
}

// New makes Metrics with the resource attributes as labels of every series.
func New(service, configuration, revision, namespace, pod string, waiting, upgraded func() int) *Metrics {
	var b strings.Builder
	for _, l := range [][2]string{
		{"kn_service_name", service}, {"kn_configuration_name", configuration}, {"kn_revision_name", revision},
		{"k8s_namespace_name", namespace}, {"k8s_pod_name", pod},
	} {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%s", l[0], strconv.Quote(l[1]))
	}
	return &Metrics{labels: b.String(), waiting: waiting, upgraded: upgraded}
}

// Observe implements chain.Observer.
func (m *Metrics) Observe(r *forward.Request, res *forward.Result, probe bool) {
	if probe {
		return
	}
	if res.Cause != forward.Completed {
		m.ended[res.Cause].Add(1)
	}
	status := res.Status
	if status < 0 || status > 999 {
		status = 999
	}
	h := m.byStatus[status].Load()
	if h == nil {
		h = new(histogram)
		if !m.byStatus[status].CompareAndSwap(nil, h) {
			h = m.byStatus[status].Load()
		}
	}
	h.observe(res.Duration)
	switch tag(r) {
	case tagDisabled:
		m.tags[0].Add(1)
	case tagDefault:
		m.tags[1].Add(1)
	case tagUndefined:
		m.tags[2].Add(1)
	default:
		m.named.Add(1)
	}
}

// tag says which of the Route's doors the request came through.
func tag(r *forward.Request) string {
	name, viaDefault := r.Header(wire.HeaderTag), r.Header(wire.HeaderDefaultRoute)
	switch {
	case viaDefault == "":
		if name == "" {
			return tagDisabled
		}
		return name
	case viaDefault == "true" && name != "":
		return tagUndefined
	case viaDefault == "true":
		return tagDefault
	}
	return name
}

// ServeHTTP prints the metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != wire.PathMetrics {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(m.text())
}

func (m *Metrics) text() []byte {
	var b bytes.Buffer
	const invocation, server = "kn_serving_invocation_duration_seconds", "http_server_request_duration_seconds"
	for _, name := range []string{invocation, server} {
		fmt.Fprintf(&b, "# HELP %s How long requests took, from the end of their head to the end of the response.\n# TYPE %s histogram\n", name, name)
		for status := range m.byStatus {
			if h := m.byStatus[status].Load(); h != nil {
				m.histogram(&b, name, status, h)
			}
		}
	}
	fmt.Fprintf(&b, "# HELP kn_serving_queue_depth Requests that wait for a slot.\n# TYPE kn_serving_queue_depth gauge\nkn_serving_queue_depth{%s} %d\n", m.labels, m.waiting())
	fmt.Fprintf(&b, "# HELP ebb_upgraded_connections Open upgraded (WebSocket) connections.\n# TYPE ebb_upgraded_connections gauge\nebb_upgraded_connections{%s} %d\n", m.labels, m.upgraded())
	b.WriteString("# HELP ebb_requests_by_route_tag_total Requests by the tag of the Route that they came through; any-tag sums the named ones.\n# TYPE ebb_requests_by_route_tag_total counter\n")
	for i, name := range []string{tagDisabled, tagDefault, tagUndefined} {
		fmt.Fprintf(&b, "ebb_requests_by_route_tag_total{%s,kn_route_tag=%q} %d\n", m.labels, name, m.tags[i].Load())
	}
	fmt.Fprintf(&b, "ebb_requests_by_route_tag_total{%s,kn_route_tag=\"any-tag\"} %d\n", m.labels, m.named.Load())
	b.WriteString("# HELP ebb_requests_not_completed_total Requests that ended otherwise than by a whole response of the container.\n# TYPE ebb_requests_not_completed_total counter\n")
	for cause := forward.Replied; cause <= forward.BadRequest; cause++ {
		fmt.Fprintf(&b, "ebb_requests_not_completed_total{%s,cause=%q} %d\n", m.labels, cause, m.ended[cause].Load())
	}
	return b.Bytes()
}

func (m *Metrics) histogram(b *bytes.Buffer, name string, status int, h *histogram) {
	sum := uint64(0)
	for i := range h.counts {
		sum += h.counts[i].Load()
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		fmt.Fprintf(b, "%s_bucket{%s,http_response_status_code=\"%d\",le=\"%s\"} %d\n", name, m.labels, status, bound, sum)
	}
	seconds := float64(h.nanos.Load()) / 1e9
	fmt.Fprintf(b, "%s_sum{%s,http_response_status_code=\"%d\"} %g\n", name, m.labels, status, seconds)
	fmt.Fprintf(b, "%s_count{%s,http_response_status_code=\"%d\"} %d\n", name, m.labels, status, sum)
}
