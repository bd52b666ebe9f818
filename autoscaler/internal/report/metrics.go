// Package report publishes the loop's decisions as metrics, and tells activators, and whoever else
// may ask (peers.go), how pods came to be (births.go).
//
// Owns: the collector and the handlers. Reads: the loop's views and the pods. Writes: nothing.
// Never: changes a decision.
package report

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/standby"
)

// Collector exports the loop's views under the contract's names, with underscores in place of dots.
type Collector struct {
	Each func(func(loop.View))
	// Counts returns further counters: values by name and reason.
	Counts func() []Count
}

// Count is one counter with a reason.
type Count struct {
	Name, Help, Reason string
	Value              int64
}

// labels are in alphabetical order, as label pairs must be.
var labels = []string{"k8s_namespace_name", "kn_configuration_name", "kn_revision_name", "kn_service_name"}

func labelPairs(v loop.View) []*dto.LabelPair {
	return []*dto.LabelPair{pair(labels[0], v.Key.Namespace), pair(labels[1], v.Spec.Configuration), pair(labels[2], v.Key.Name), pair(labels[3], v.Spec.Service)}
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// series is one gauge of one revision.
type series struct {
	desc  *prometheus.Desc
	pairs []*dto.LabelPair
	value float64
}

// Desc implements prometheus.Metric.
func (s *series) Desc() *prometheus.Desc { return s.desc }

// Write implements prometheus.Metric.
func (s *series) Write(m *dto.Metric) error {
	m.Label, m.Gauge = s.pairs, &dto.Gauge{Value: &s.value}
	return nil
}

func describe(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, labels, nil) }

var (
	desired     = describe("kn_revision_pods_desired", "Pods the windows ask for.")
	excess      = describe("kn_revision_capacity_excess", "Spare capacity beyond the target burst capacity.")
	panicMode   = describe("kn_revision_panic_mode", "1 while the panic window decides.")
	requested   = describe("kn_revision_pods_requested", "Pods asked for, within bounds.")
	ready       = describe("kn_revision_pods_count", "Pods that are ready.")
	notReady    = describe("kn_revision_pods_not_ready_count", "Pods that are not ready.")
	pending     = describe("kn_revision_pods_pending_count", "Pods that are pending.")
	terminating = describe("kn_revision_pods_terminating_count", "Pods that are terminating.")
	asleep      = prometheus.NewDesc("ebb_revision_pods_asleep", "Pods that sleep, by level.", append(append([]string{}, labels...), "level"), nil)
	busy        = describe("ebb_revision_pods_busy", "Pods that are kept because their programs say that they are busy; only for revisions with busy-for.")
	metrics     = map[decide.Metric][3]*prometheus.Desc{
		decide.Concurrency: {
			describe("kn_revision_concurrency_stable", "Average of concurrent requests over the stable window."),
			describe("kn_revision_concurrency_panic", "Average of concurrent requests over the panic window."),
			describe("kn_revision_concurrency_target", "Concurrent requests aimed for in a pod."),
		},
		decide.RequestsPerSecond: {
			describe("kn_revision_rps_stable", "Average of requests per second over the stable window."),
			describe("kn_revision_rps_panic", "Average of requests per second over the panic window."),
			describe("kn_revision_rps_target", "Requests per second aimed for in a pod."),
		},
	}
	// stableRate is the second spelling of kn_revision_rps_stable, with its unit as in Knative.
	stableRate = describe("kn_revision_rps_stable_per_second", "Average of requests per second over the stable window.")
	ruleInfo   = prometheus.NewDesc("ebb_revision_decision_rule", "1 for the rule that brought the latest decision about.", append(append([]string{}, labels...), "rule"), nil)
)

// Describe implements prometheus.Collector.
func (c Collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{desired, excess, panicMode, requested, ready, notReady, pending, terminating, asleep, busy, stableRate, ruleInfo} {
		out <- d
	}
	for _, three := range metrics {
		for _, d := range three {
			out <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(out chan<- prometheus.Metric) {
	for _, count := range c.Counts() {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(count.Name, count.Help, nil, prometheus.Labels{"reason": count.Reason}),
			prometheus.CounterValue, float64(count.Value))
	}
	c.Each(func(v loop.View) {
		if v.Last.Times == 0 {
			return
		}
		// All series of a revision share one set of labels. A set for each would be most of this
		// process's allocations.
		pairs := labelPairs(v)
		gauge := func(d *prometheus.Desc, f float64) { out <- &series{d, pairs, f} }
		d := v.Last.Decision
		gauge(desired, float64(d.Desired))
		gauge(excess, d.ExcessBurst)
		gauge(panicMode, truth(d.Panicking))
		gauge(requested, float64(v.Status.Desired))
		gauge(ready, float64(v.Counts.Ready))
		gauge(notReady, float64(v.Counts.NotReady))
		gauge(pending, float64(v.Counts.Pending))
		gauge(terminating, float64(v.Counts.Terminating))
		if v.Last.Keep != nil || v.Counts.Asleep > 0 {
			for level, n := range v.Counts.Deep {
				out <- &series{asleep, append(pairs[:4:4], pair("level", standby.Level(level).String())), float64(n)}
			}
		}
		if v.Spec.BusyFor > 0 {
			gauge(busy, float64(v.Last.Busy))
		}
		three := metrics[d.Metric]
		gauge(three[0], d.Observation.Stable)
		gauge(three[1], d.Observation.Panic)
		gauge(three[2], d.Target)
		if d.Metric == decide.RequestsPerSecond {
			gauge(stableRate, d.Observation.Stable)
		}
		out <- &series{ruleInfo, append(pairs[:4:4], pair("rule", v.Last.Rule())), 1}
	})
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
