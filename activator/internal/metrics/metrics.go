// Package metrics shows the activator's state to Prometheus.
//
// Owns: names and labels. Reads: queues, meters and counters at the moment of a scrape, so that a
// request costs nothing for it. Writes, never: anything else.
package metrics

import (
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/activator/internal/announce"
	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/activator/internal/report"
	"ebb.dev/ebb/forward"
)

// Sources is what a Collector shows.
type Sources struct {
	Table    *backends.Table
	Budget   *hold.Budget
	Announce *announce.Server
	Report   *report.Reporter
	Rejected func() int64 // malformed requests
	Panics   func() int64
	Evicted  func() int64 // client connections
	// Untrusted counts pods whose certificate was not believed.
	Untrusted *atomic.Int64
	Plans     *plans.Table
	Unknown   *plans.Room
	Relay     *relay.Table
}

// The names of contract section 6.5 in Prometheus' spelling, with the labels that OpenTelemetry's
// attributes become; then Ebb's own.
var (
	labels = []string{"k8s_namespace_name", "kn_service_name", "kn_configuration_name", "kn_revision_name"}

	concurrency = describe("kn_revision_request_concurrency", "Requests of the revision that are in this activator now.", labels...)
	queued      = describe("kn_revision_request_queued", "Requests of the revision that wait for a pod now.", labels...)
	active      = describe("kn_revision_request_active", "Requests of the revision that are at a pod now.", labels...)
	requests    = describe("ebb_activator_requests_total", "Requests that ended, by class of their status; 0: the client left first.", append(labels, "code_class")...)
	notComplete = describe("ebb_activator_requests_not_completed_total", "Requests that ended otherwise than by a whole response of the pod, by cause.", append(labels, "cause")...)
	held        = describe("ebb_activator_held_requests_total", "Requests that had to wait for a pod.", labels...)
	refused     = describe("ebb_activator_refused_by_pod_total", "Times a full pod sent a request on to the next.", labels...)
	pages       = describe("ebb_activator_waiting_pages_total", "Waiting pages that were sent to browsers.", labels...)
	fallbacks   = describe("ebb_activator_fallbacks_total", "Requests that left the revision for its fallback Service, where ebb_activator_requests_total counts them.", labels...)
	notWoken    = describe("ebb_activator_not_woken_requests_total", "Requests that were answered without a pod, because they wake none.", labels...)
	turnedAway  = describe("ebb_activator_revision_rejected_requests_total", "Requests that could not wait, or any longer, by reason.", append(labels, "reason")...)
	pods        = describe("ebb_activator_pods", "Pods that take requests of the revision.", labels...)

	reachable = describe("kn_activator_stats_conn_reachable", "1 if the autoscaler took the last report.", "peer")
	errors    = describe("kn_activator_stats_conn_errors_total", "Reports that the autoscaler did not accept.", "peer")

	totalHeld      = describe("ebb_activator_queued_requests", "Requests that are queued, of all revisions.")
	totalHeldBytes = describe("ebb_activator_held_bytes", "Memory of requests, queued and in flight.")
	rejected       = describe("ebb_activator_rejected_requests_total", "Requests that were rejected or cut because a limit of EBB_HOLD_* was reached.")
	malformed      = describe("ebb_activator_malformed_requests_total", "Requests that were no HTTP.")
	panics         = describe("ebb_activator_panics_total", "Panics that were caught; the log has the stack.")
	evicted        = describe("ebb_activator_evicted_connections_total", "Client connections that were closed to make room for new ones.")
	untrusted      = describe("ebb_activator_untrusted_pods_total", "Connections to pods that were given up because of the pod's certificate.")
	knownPlans     = describe("ebb_activator_plans", "Routes with hosts that activators choose revisions for.")
	unknown        = describe("ebb_activator_unknown_hosts_total", "Requests that a gateway led here for a host whose plan, or its revision, is not known: 404.")
	relayed        = describe("ebb_activator_relayed_requests_total", "Requests for hosts that rest that were relayed to another activator, whose ebb_activator_requests_total counts them.")
	announcements  = describe("ebb_activator_announcements_total", "Announcements of pods, by what became of them.", "outcome")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (s *Sources) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{concurrency, queued, active, requests, notComplete, held, refused, pages, fallbacks, notWoken, turnedAway, pods, reachable, errors, totalHeld, totalHeldBytes, rejected, malformed, panics, evicted, untrusted, knownPlans, unknown, relayed, announcements} {
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
	s.Table.Each(func(r *backends.Revision) { collect(r, gauge, count) })
	reached := 0.0
	if s.Report.Reachable() {
		reached = 1
	}
	gauge(reachable, reached, "autoscaler")
	count(errors, s.Report.Failed.Load(), "autoscaler")
	gauge(totalHeld, float64(s.Budget.Held()))
	gauge(totalHeldBytes, float64(s.Budget.HeldBytes()))
	count(rejected, s.Budget.Refusals())
	count(malformed, s.Rejected())
	count(panics, s.Panics())
	count(evicted, s.Evicted())
	count(untrusted, s.Untrusted.Load())
	gauge(knownPlans, float64(s.Plans.Len()))
	count(unknown, s.Unknown.Answered.Load())
	count(relayed, s.Relay.Relayed.Load())
	for outcome, n := range map[string]int64{
		"taken": s.Announce.Taken.Load(), "stale": s.Announce.Stale.Load(), "slot_free": s.Announce.SlotsFree.Load(),
		"slot_declined": s.Announce.SlotsDeclined.Load(), "unauthorized": s.Announce.Unauthorized.Load(),
		"clock": s.Announce.Guard.OtherClock.Load(), "replayed": s.Announce.Guard.Replayed.Load(),
		"malformed": s.Announce.Malformed.Load(), "foreign": s.Announce.Foreign.Load(),
	} {
		count(announcements, n, outcome)
	}
}

// collect shows one revision.
func collect(r *backends.Revision, gauge func(*prometheus.Desc, float64, ...string), count func(*prometheus.Desc, int64, ...string)) {
	queue, load := r.Used()
	if load == nil {
		return
	}
	waiting, flying := queue.Load()
	info := r.Info()
	names := []string{r.Key.Namespace, info.Service, info.Configuration, r.Key.Name}
	seen := waiting+flying > 0 || load.Fallbacks.Load() > 0
	for class := range load.Requests {
		if n := load.Requests[class].Load(); n > 0 {
			seen = true
			count(requests, n, append(names, strconv.Itoa(class))...)
		}
	}
	if !seen {
		return
	}
	// From zero on, so that the first is an increase.
	for cause := forward.Replied; cause <= forward.BadRequest; cause++ {
		count(notComplete, load.NotCompleted[cause].Load(), append(names, cause.String())...)
	}
	for reason := bind.AnswerBudget; reason <= bind.AnswerNoFallback; reason++ {
		if n := load.Answers[reason].Load(); n > 0 {
			count(turnedAway, n, append(names, reason.String())...)
		}
	}
	if info.Cold != nil {
		count(pages, load.Answers[bind.AnswerPage].Load(), names...)
		count(fallbacks, load.Fallbacks.Load(), names...)
		count(notWoken, load.Answers[bind.AnswerNotWoken].Load(), names...)
	}
	gauge(concurrency, float64(load.Meter.Now()), names...)
	gauge(queued, float64(waiting), names...)
	gauge(active, float64(flying), names...)
	gauge(pods, float64(len(r.Snapshot().Pods)), names...)
	count(held, load.Held.Load(), names...)
	count(refused, load.Refused.Load(), names...)
}
