// Package usermetrics counts the user's requests and shows the counts to Prometheus and
// OpenTelemetry, under the contract's names (section 5.6).
//
// Owns: the histograms. Reads: finished exchanges. Writes: the text of /metrics, and OTLP metrics.
// Never: allocates for a request. It is written by hand because a Prometheus client would be a
// third of this process's memory, and this process stands in every pod.
package usermetrics

import (
	"bytes"
	"fmt"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward"
	"ebb.dev/ebb/internal/otlp"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/queue-proxy/internal/chain"
	"ebb.dev/ebb/queue-proxy/internal/routetag"
	"ebb.dev/ebb/standby"
	"ebb.dev/ebb/wire"
)

// bounds of the histograms, in seconds: OpenTelemetry's advice for HTTP durations, with finer steps
// below 5 ms. monitoring/knative.go names them again.
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

// byStatus is a histogram for each status from 100 to 599, and one for what is none; each is made
// when first needed.
type byStatus [501]atomic.Pointer[histogram]

func (b *byStatus) observe(status int, d time.Duration) {
	i := status - 100
	if i < 0 || i >= len(b)-1 {
		i = len(b) - 1
	}
	h := b[i].Load()
	if h == nil {
		h = new(histogram)
		if !b[i].CompareAndSwap(nil, h) {
			h = b[i].Load()
		}
	}
	h.observe(d)
}

func (b *byStatus) all() iter.Seq2[int, *histogram] {
	return func(yield func(int, *histogram) bool) {
		for i := range b {
			status := i + 100
			if i == len(b)-1 {
				status = 0
			}
			if h := b[i].Load(); h != nil && !yield(status, h) {
				return
			}
		}
	}
}

// door is what came through one of the Route's doors.
type door struct {
	tag            string
	server, client byStatus
}

// maxTags bounds how many named tags are told apart: the name is the client's word. The rest share
// anyTag.
const (
	maxTags = 20
	anyTag  = "kn:any"
)

// Metrics is the whole of them; make it with New.
type Metrics struct {
	resource []otlp.Attribute
	labels   string
	sources  Sources

	invocations byStatus
	ended       [6]atomic.Uint64

	// wakes are by the level at which the pod slept.
	wakes [standby.Compressed + 1]histogram
	// hooks and balks are by the place in hooks.
	hooks [len(hooks)]histogram
	balks [len(hooks)]atomic.Int64

	doors atomic.Pointer[[]*door]
	grow  sync.Mutex
}

// Labels of every series, from the name in Prometheus' spelling.
func labels(resource []otlp.Attribute) string {
	var b strings.Builder
	for _, a := range resource {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%s=%s", strings.ReplaceAll(a.Key, ".", "_"), strconv.Quote(a.Text))
	}
	return b.String()
}

// Sources are asked at each look; all but RejectedPeers must be set.
type Sources struct {
	Waiting  func() int   // requests without a slot
	Upgraded func() int   // connections that are open
	Panics   func() int64 // since the start, as what follows
	Evicted  func() int64 // connections closed for others
	// Overruns are how often the container sent more than it announced, by the kind of answer.
	Overruns func() iter.Seq2[string, int64]
	// RejectedPeers are connections to the node agent's port that were not the agent's. Without it
	// the pod never sleeps.
	RejectedPeers func() int64
}

// New makes Metrics with the resource's attributes as labels of every series.
func New(resource []otlp.Attribute, sources Sources) *Metrics {
	m := &Metrics{resource: resource, labels: labels(resource), sources: sources}
	m.doors.Store(&[]*door{{tag: routetag.Disabled}, {tag: routetag.Default}, {tag: routetag.Undefined}, {tag: anyTag}})
	return m
}

// Resource is what New was given.
func (m *Metrics) Resource() []otlp.Attribute { return m.resource }

// door finds the door of a tag, and makes it when it is new.
func (m *Metrics) door(tag string) *door {
	for _, d := range *m.doors.Load() {
		if d.tag == tag {
			return d
		}
	}
	m.grow.Lock()
	defer m.grow.Unlock()
	all := *m.doors.Load()
	for _, d := range all {
		if d.tag == tag {
			return d
		}
	}
	if len(all) >= maxTags {
		return all[3]
	}
	d := &door{tag: strings.Clone(tag)}
	all = append(slices.Clip(all), d)
	m.doors.Store(&all)
	return d
}

// Observe implements chain.Observer.
func (m *Metrics) Observe(r *forward.Request, res *forward.Result, e chain.Ended) {
	if e.Probe {
		return
	}
	cause := res.Cause
	if e.Down { // it got an answer all the same
		cause = forward.UpstreamFailed
	}
	if cause != forward.Completed {
		m.ended[cause].Add(1)
	}
	m.invocations.observe(res.Status, res.Duration)
	d := m.door(routetag.Of(r))
	d.server.observe(res.Status, res.Duration)
	if !e.Sent.IsZero() {
		d.client.observe(res.Status, r.Started.Add(res.Duration).Sub(e.Sent))
	}
}

// Woke counts a wake: how long requests waited for the pod.
func (m *Metrics) Woke(level standby.Level, waited time.Duration) { m.wakes[level].observe(waited) }

// Hooked counts a call of a hook, "sleep" or "wake".
func (m *Metrics) Hooked(hook string, took time.Duration, err error) {
	i := slices.Index(hooks[:], hook)
	m.hooks[i].observe(took)
	if err != nil {
		m.balks[i].Add(1)
	}
}

var hooks = [...]string{"sleep", "wake"}

// family is a metric: its name in OpenTelemetry's spelling and in Prometheus', its type there, its
// labels besides those of the pod, and what it means.
type family struct {
	name, shown, kind string
	labels            []string
	help              string
}

const (
	statusKey = "http.response.status_code"
	tagKey    = "kn.route.tag"
	causeKey  = "cause"
	answerKey = "answer"
	levelKey  = "level"
	hookKey   = "hook"
)

var (
	invocation = family{"kn.serving.invocation.duration", "kn_serving_invocation_duration_seconds", "histogram", []string{statusKey},
		"How long requests took, from the end of their head to the end of the response."}
	serverSeconds = family{"http.server.request.duration", "http_server_request_duration_seconds", "histogram", []string{statusKey, tagKey},
		"How long requests took, by the Route's tag that they came through."}
	clientSeconds = family{"http.client.request.duration", "http_client_request_duration_seconds", "histogram", []string{statusKey, tagKey},
		"How long the container took for requests, without their time in the queue."}
	queueDepth   = family{"kn.serving.queue.depth", "kn_serving_queue_depth", "gauge", nil, "Requests that wait for a slot."}
	upgrades     = family{"ebb.upgraded.connections", "ebb_upgraded_connections", "gauge", nil, "Open upgraded (WebSocket) connections."}
	notCompleted = family{"ebb.requests.not_completed", "ebb_requests_not_completed_total", "counter", []string{causeKey},
		"Requests that ended otherwise than by a whole response of the container."}
	caught  = family{"ebb.panics", "ebb_panics_total", "counter", nil, "Panics that were caught; the log has the stack."}
	evicted = family{"ebb.evicted.connections", "ebb_evicted_connections_total", "counter", nil,
		"Client connections that were closed to make room for new ones."}
	overruns = family{"ebb.overrun.answers", "ebb_overrun_answers_total", "counter", []string{answerKey},
		"How often the container sent more than its response announced, by the kind of answer: HEAD, 204, 304, Content-Length, chunked."}
	wake = family{"ebb.wake.duration", "ebb_wake_duration_seconds", "histogram", []string{levelKey},
		"How long requests waited for the pod to wake, by the level at which it slept."}
	hook = family{"ebb.standby.hook.duration", "ebb_standby_hook_duration_seconds", "histogram", []string{hookKey},
		"How long the program took for the call before it sleeps and for the one after it woke."}
	balks = family{"ebb.standby.hook.failures", "ebb_standby_hook_failures_total", "counter", []string{hookKey},
		"Calls of these that failed."}
	strangers = family{"ebb.stranger.connections", "ebb_stranger_connections_total", "counter", nil,
		"Connections to the node agent's port that were not the agent's."}
	build = family{"ebb.build.info", "ebb_build_info", "gauge", []string{"version", "go_version"},
		"1, with the version of queue-proxy and of Go as labels."}
)

// ServeHTTP prints the metrics for Prometheus.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path != wire.PathMetrics {
		http.NotFound(w, req)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(m.text())
}

func head(b *bytes.Buffer, f family) string {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", f.shown, f.help, f.shown, f.kind)
	return f.shown
}

func (m *Metrics) text() []byte {
	var b bytes.Buffer
	name := head(&b, invocation)
	for status, h := range m.invocations.all() {
		m.print(&b, name, fmt.Sprintf("http_response_status_code=\"%d\"", status), h)
	}
	for _, side := range []struct {
		family
		of func(*door) *byStatus
	}{
		{serverSeconds, func(d *door) *byStatus { return &d.server }},
		{clientSeconds, func(d *door) *byStatus { return &d.client }},
	} {
		name := head(&b, side.family)
		for _, d := range *m.doors.Load() {
			for status, h := range side.of(d).all() {
				m.print(&b, name, fmt.Sprintf("http_response_status_code=\"%d\",kn_route_tag=%s", status, strconv.Quote(d.tag)), h)
			}
		}
	}
	fmt.Fprintf(&b, "%s{%s} %d\n", head(&b, queueDepth), m.labels, m.sources.Waiting())
	fmt.Fprintf(&b, "%s{%s} %d\n", head(&b, upgrades), m.labels, m.sources.Upgraded())
	name = head(&b, notCompleted)
	for cause := forward.Replied; cause <= forward.BadRequest; cause++ {
		fmt.Fprintf(&b, "%s{%s,cause=%q} %d\n", name, m.labels, cause, m.ended[cause].Load())
	}
	fmt.Fprintf(&b, "%s{%s} %d\n", head(&b, caught), m.labels, m.sources.Panics())
	fmt.Fprintf(&b, "%s{%s} %d\n", head(&b, evicted), m.labels, m.sources.Evicted())
	name = head(&b, overruns)
	for answer, n := range m.sources.Overruns() {
		fmt.Fprintf(&b, "%s{%s,answer=%q} %d\n", name, m.labels, answer, n)
	}
	fmt.Fprintf(&b, "%s{%s,version=%q,go_version=%q} 1\n", head(&b, build), m.labels, version.Version, runtime.Version())
	if m.sources.RejectedPeers == nil {
		return b.Bytes()
	}
	name = head(&b, wake)
	for level := range m.wakes {
		m.print(&b, name, fmt.Sprintf("level=%q", standby.Level(level)), &m.wakes[level])
	}
	name = head(&b, hook)
	for i, of := range hooks {
		m.print(&b, name, fmt.Sprintf("hook=%q", of), &m.hooks[i])
	}
	name = head(&b, balks)
	for i, of := range hooks {
		fmt.Fprintf(&b, "%s{%s,hook=%q} %d\n", name, m.labels, of, m.balks[i].Load())
	}
	fmt.Fprintf(&b, "%s{%s} %d\n", head(&b, strangers), m.labels, m.sources.RejectedPeers())
	return b.Bytes()
}

func (m *Metrics) print(b *bytes.Buffer, name, labels string, h *histogram) {
	sum := uint64(0)
	for i := range h.counts {
		sum += h.counts[i].Load()
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		fmt.Fprintf(b, "%s_bucket{%s,%s,le=\"%s\"} %d\n", name, m.labels, labels, bound, sum)
	}
	fmt.Fprintf(b, "%s_sum{%s,%s} %g\n", name, m.labels, labels, float64(h.nanos.Load())/1e9)
	fmt.Fprintf(b, "%s_count{%s,%s} %d\n", name, m.labels, labels, sum)
}

// Collect adds the metrics to an OTLP export.
func (m *Metrics) Collect(out *otlp.Metrics) {
	out.Histogram(invocation.name, "s", invocation.help, m.invocations.points(nil)...)
	var server, client []otlp.Histogram
	for _, d := range *m.doors.Load() {
		tag := []otlp.Attribute{otlp.String(tagKey, d.tag)}
		server, client = append(server, d.server.points(tag)...), append(client, d.client.points(tag)...)
	}
	out.Histogram(serverSeconds.name, "s", serverSeconds.help, server...)
	out.Histogram(clientSeconds.name, "s", clientSeconds.help, client...)
	out.Gauge(queueDepth.name, "{request}", queueDepth.help, otlp.Point{Value: float64(m.sources.Waiting())})
	out.Gauge(upgrades.name, "{connection}", upgrades.help, otlp.Point{Value: float64(m.sources.Upgraded())})
	var ended []otlp.Point
	for cause := forward.Replied; cause <= forward.BadRequest; cause++ {
		ended = append(ended, otlp.Point{Attributes: []otlp.Attribute{otlp.String(causeKey, cause.String())}, Value: float64(m.ended[cause].Load())})
	}
	out.Counter(notCompleted.name, "{request}", notCompleted.help, ended...)
	out.Counter(caught.name, "{panic}", caught.help, otlp.Point{Value: float64(m.sources.Panics())})
	out.Counter(evicted.name, "{connection}", evicted.help, otlp.Point{Value: float64(m.sources.Evicted())})
	var overrun []otlp.Point
	for answer, n := range m.sources.Overruns() {
		overrun = append(overrun, otlp.Point{Attributes: []otlp.Attribute{otlp.String(answerKey, answer)}, Value: float64(n)})
	}
	out.Counter(overruns.name, "{answer}", overruns.help, overrun...)
	if m.sources.RejectedPeers == nil {
		return
	}
	var wakes []otlp.Histogram
	for level := range m.wakes {
		wakes = append(wakes, m.wakes[level].point(otlp.String(levelKey, standby.Level(level).String())))
	}
	out.Histogram(wake.name, "s", wake.help, wakes...)
	var took []otlp.Histogram
	var failed []otlp.Point
	for i, of := range hooks {
		took = append(took, m.hooks[i].point(otlp.String(hookKey, of)))
		failed = append(failed, otlp.Point{Attributes: []otlp.Attribute{otlp.String(hookKey, of)}, Value: float64(m.balks[i].Load())})
	}
	out.Histogram(hook.name, "s", hook.help, took...)
	out.Counter(balks.name, "{call}", balks.help, failed...)
	out.Counter(strangers.name, "{connection}", strangers.help, otlp.Point{Value: float64(m.sources.RejectedPeers())})
}

func (b *byStatus) points(more []otlp.Attribute) (points []otlp.Histogram) {
	for status, h := range b.all() {
		points = append(points, h.point(append([]otlp.Attribute{otlp.Int(statusKey, int64(status))}, more...)...))
	}
	return points
}

func (h *histogram) point(attributes ...otlp.Attribute) otlp.Histogram {
	p := otlp.Histogram{Attributes: attributes, Bounds: bounds[:], Sum: float64(h.nanos.Load()) / 1e9}
	for i := range h.counts {
		p.Counts = append(p.Counts, h.counts[i].Load())
	}
	return p
}
