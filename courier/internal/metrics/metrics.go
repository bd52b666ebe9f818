// Package metrics shows the courier's figures to Prometheus.
//
// Owns: their names. Reads: the counters. Writes: nothing. Never: has a label with as many values
// as there are services.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/courier/internal/accept"
	"ebb.dev/ebb/courier/internal/deliver"
	"ebb.dev/ebb/courier/internal/load"
	"ebb.dev/ebb/courier/internal/tick"
)

// Sources are where the figures come from.
type Sources struct {
	Accept  *accept.Handler
	Deliver *deliver.Manager
	Load    *load.Reporter
	Tick    *tick.Ticker
}

var (
	accepted = prometheus.NewDesc("ebb_courier_calls_accepted_total", "Calls that were stored.", nil, nil)
	repeated = prometheus.NewDesc("ebb_courier_calls_repeated_total", "Requests whose idempotency key was known.", nil, nil)
	refused  = prometheus.NewDesc("ebb_courier_calls_refused_total", "Requests that were not accepted.", []string{"reason"}, nil)
	attempts = prometheus.NewDesc("ebb_courier_attempts_total", "Attempts to deliver a call, by what came of them: delivered, retried, dead (given up), "+
		"repeated (was delivered already), failed (Ebb could not keep what came of it).", []string{"result"}, nil)
	oversized = prometheus.NewDesc("ebb_courier_results_too_large_total", "Results that were too large to be kept.", nil, nil)
	callbacks = prometheus.NewDesc("ebb_courier_callbacks_total", "Callbacks that were called, and those that were given up.", []string{"result"}, nil)
	calls     = prometheus.NewDesc("ebb_courier_calls", "Calls that wait, and those under way.", []string{"state"}, nil)
	ticks     = prometheus.NewDesc("ebb_courier_schedules_total", "Times of schedules: a call was made, no courier ran then, or the call was left out.", []string{"result"}, nil)
	reports   = prometheus.NewDesc("ebb_courier_reports_total", "Reports to the autoscaler.", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Sources) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{accepted, repeated, refused, attempts, oversized, callbacks, calls, ticks, reports} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Sources) Collect(out chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	count(accepted, s.Accept.Accepted.Load())
	count(repeated, s.Accept.Repeated.Load())
	r := &s.Accept.Refused
	count(refused, r.Unknown.Load(), "unknown-route")
	count(refused, r.Malformed.Load(), "malformed")
	count(refused, r.TooLarge.Load(), "too-large")
	count(refused, r.TooMany.Load(), "too-many")
	count(refused, r.Loop.Load(), "loop")
	count(refused, r.Key.Load(), "key")
	count(refused, r.Store.Load(), "store")
	c := &s.Deliver.Counts
	count(attempts, c.Delivered.Load(), "delivered")
	count(attempts, c.Retried.Load(), "retried")
	count(attempts, c.Dead.Load(), "dead")
	count(attempts, c.Repeated.Load(), "repeated")
	count(attempts, c.Failed.Load(), "failed")
	count(oversized, c.Oversized.Load())
	count(callbacks, c.Called.Load(), "called")
	count(callbacks, c.Uncalled.Load(), "given-up")
	count(reports, s.Load.Sent.Load(), "accepted")
	count(reports, s.Load.Failed.Load(), "failed")
	count(ticks, s.Tick.Made.Load(), "made")
	count(ticks, s.Tick.Missed.Load(), "missed")
	count(ticks, s.Tick.LeftOut.Load(), "left-out")
	waiting, running := 0, 0
	for _, l := range s.Deliver.Loads() {
		waiting, running = waiting+l.Waiting, running+l.Running
	}
	out <- prometheus.MustNewConstMetric(calls, prometheus.GaugeValue, float64(waiting), "waiting")
	out <- prometheus.MustNewConstMetric(calls, prometheus.GaugeValue, float64(running), "running")
}
