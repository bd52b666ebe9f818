// Package metrics shows the activator's state to Prometheus.
//
// Owns: names and labels. Reads: queues, meters and counters at the moment of a scrape, so that a request
// costs nothing for it. Writes, never: anything else.
package metrics

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/activator/internal/announce"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/chain"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/report"
	"ebb.dev/ebb/internal/forward"
)

// Sources is what a Collector shows.
type Sources struct {
	Table    *backends.Table
	Budget   *hold.Budget
	Announce *announce.Server
	Report   *report.Reporter
	Rejected func() int64 // malformed requests
	// Untrusted counts pods whose certificate was not believed.
	Untrusted *atomic.Int64
}

// ColdStarts is the histogram of cold starts by phase. The phases of one cold start sum to its total:
//
//	pod       the request came -> the pod's sidecar runs (decided, scheduled, pulled)
//	start     -> the user container answers
//	announce  -> the activator knows
//	forward   -> the response began
//
// Without the pod's own word everything up to the activator's knowing is in pod. The node's clock may be off; a step that
// would be negative is zero, and the step after it shorter.
type ColdStarts struct{ histogram *prometheus.HistogramVec }

// NewColdStarts returns a histogram to be registered.
func NewColdStarts() *ColdStarts {
	return &ColdStarts{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cold_start_seconds",
		Help:    "cold starts, from the request that waited to its response, by phase; the phases of one sum to phase total",
		Buckets: []float64{.01, .02, .05, .1, .2, .3, .5, .75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300},
	}, []string{"k8s_namespace_name", "kn_revision_name", "phase"})}
}

// Collector is to be registered.
func (c *ColdStarts) Collector() prometheus.Collector { return c.histogram }

// Forget drops what is shown of a deleted revision.
func (c *ColdStarts) Forget(key backends.Key) {
	c.histogram.DeletePartialMatch(prometheus.Labels{"k8s_namespace_name": key.Namespace, "kn_revision_name": key.Name})
}

// Ended implements chain.Handler.Ended.
func (c *ColdStarts) Ended(x *chain.Exchange, r *forward.Request, result *forward.Result) {
	if !x.Ticket.Cold || x.Birth.Known.IsZero() || result.Status == 0 {
		return
	}
	end := r.Started.Add(max(result.FirstByte, x.Bound.Sub(r.Started)))
	steps := Phases(r.Started, x.Birth, end)
	for phase, seconds := range steps {
		c.histogram.WithLabelValues(x.Revision.Key.Namespace, x.Revision.Key.Name, phase).Observe(seconds)
	}
}

// Phases returns the seconds of each phase of a cold start, and of total.
func Phases(received time.Time, birth backends.Birth, end time.Time) map[string]float64 {
	known := clamp(birth.Known, received, end)
	started, answered := known, known
	if !birth.Started.IsZero() && !birth.Answered.IsZero() {
		started = clamp(birth.Started, received, known)
		answered = clamp(birth.Answered, started, known)
	}
	return map[string]float64{
		"pod":      started.Sub(received).Seconds(),
		"start":    answered.Sub(started).Seconds(),
		"announce": known.Sub(answered).Seconds(),
		"forward":  end.Sub(known).Seconds(),
		"total":    end.Sub(received).Seconds(),
	}
}

func clamp(t, low, high time.Time) time.Time {
	switch {
	case t.Before(low):
		return low
	case t.After(high):
		return high
	}
	return t
}

// The names of contract section 6.5 in Prometheus' spelling, with the labels that OpenTelemetry's attributes become; then Ebb's own.
var (
	labels = []string{"k8s_namespace_name", "kn_service_name", "kn_configuration_name", "kn_revision_name"}

	concurrency = describe("kn_revision_request_concurrency", "requests of the revision that are in this activator now", labels...)
	queued      = describe("kn_revision_request_queued", "requests of the revision that wait for a pod now", labels...)
	active      = describe("kn_revision_request_active", "requests of the revision that are at a pod now", labels...)
	requests    = describe("ebb_activator_requests_total", "requests that ended, by class of their status; 0: the client left first", append(labels, "code_class")...)
	held        = describe("ebb_activator_held_requests_total", "requests that had to wait for a pod", labels...)
	refused     = describe("ebb_activator_refused_by_pod_total", "times a full pod sent a request on to the next", labels...)
	pods        = describe("ebb_activator_pods", "pods that take requests of the revision", labels...)

	reachable = describe("kn_activator_stats_conn_reachable", "whether the autoscaler took the last report", "peer")
	errors    = describe("kn_activator_stats_conn_errors_total", "reports that the autoscaler did not take", "peer")

	totalHeld      = describe("ebb_activator_held", "requests that wait in all")
	totalHeldBytes = describe("ebb_activator_held_bytes", "memory set aside for requests that wait")
	turnedAway     = describe("ebb_activator_turned_away_total", "requests answered at once because too many wait")
	malformed      = describe("ebb_activator_malformed_requests_total", "requests that were no HTTP")
	untrusted      = describe("ebb_activator_untrusted_pods_total", "connections to pods that were given up because of the pod's certificate")
	announcements  = describe("ebb_activator_announcements_total", "announcements of pods, by what became of them", "outcome")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (s *Sources) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{concurrency, queued, active, requests, held, refused, pods, reachable, errors, totalHeld, totalHeldBytes, turnedAway, malformed, untrusted, announcements} {
		out <- d
	}
}

// Collect implements prometheus.Collector. Revisions that never had a request are left out.
func (s *Sources) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, value int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	s.Table.Each(func(r *backends.Revision) {
		load := r.Data.(*chain.Load)
		waiting, flying := r.Queue.Load()
		info := r.Info()
		names := []string{r.Key.Namespace, info.Service, info.Configuration, r.Key.Name}
		seen := waiting+flying > 0
		for class := range load.Requests {
			if n := load.Requests[class].Load(); n > 0 {
				seen = true
				count(requests, n, append(names, strconv.Itoa(class))...)
			}
		}
		if !seen {
			return
		}
		gauge(concurrency, float64(load.Meter.Now()), names...)
		gauge(queued, float64(waiting), names...)
		gauge(active, float64(flying), names...)
		gauge(pods, float64(len(r.Snapshot().Pods)), names...)
		count(held, load.Held.Load(), names...)
		count(refused, load.Refused.Load(), names...)
	})
	reached := 0.0
	if s.Report.Reachable() {
		reached = 1
	}
	gauge(reachable, reached, "autoscaler")
	count(errors, s.Report.Failed.Load(), "autoscaler")
	gauge(totalHeld, float64(s.Budget.Held()))
	gauge(totalHeldBytes, float64(s.Budget.HeldBytes()))
	count(turnedAway, s.Budget.Refusals())
	count(malformed, s.Rejected())
	count(untrusted, s.Untrusted.Load())
	for outcome, n := range map[string]int64{
		"taken": s.Announce.Taken.Load(), "stale": s.Announce.Stale.Load(), "slot_free": s.Announce.SlotsFree.Load(),
		"slot_declined": s.Announce.SlotsDeclined.Load(), "unauthorized": s.Announce.Unauthorized.Load(),
		"malformed": s.Announce.Malformed.Load(), "foreign": s.Announce.Foreign.Load(),
	} {
		count(announcements, n, outcome)
	}
}
