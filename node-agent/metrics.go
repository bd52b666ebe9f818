package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"ebb.dev/ebb/standby"
)

// count counts what links do.
type count struct {
	took    *prometheus.HistogramVec
	failed  *prometheus.CounterVec
	refused *prometheus.CounterVec
}

func observe(registry *prometheus.Registry, pods func() int, guarded func() bool) *count {
	c := &count{
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ebb_node_agent_work_seconds", Help: "Time to freeze, thaw or compress the containers of a pod.",
			Buckets: []float64{.0001, .0003, .001, .003, .01, .03, .1, .3, 1},
		}, []string{"work"}),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_node_agent_failures_total", Help: "Work on the containers of a pod that failed.",
		}, []string{"work"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_node_agent_refused_total", Help: "Peers that are not the queue-proxy that they should be, by reason.",
		}, []string{"reason"}),
	}
	registry.MustRegister(c.took, c.failed, c.refused, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ebb_node_agent_pods", Help: "Pods of this node that may sleep.",
	}, func() float64 { return float64(pods()) }), prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ebb_node_agent_guarded", Help: "1 while the guard watches; without it no pod is frozen.",
	}, func() float64 {
		if guarded() {
			return 1
		}
		return 0
	}))
	for work := standby.FreezeAll; work <= standby.Compress; work++ { // from zero on, so that the first is an increase
		c.took.WithLabelValues(work.String())
		c.failed.WithLabelValues(work.String())
	}
	return c
}

func (c *count) Worked(work standby.Work, took time.Duration, err error) {
	c.took.WithLabelValues(work.String()).Observe(took.Seconds())
	if err != nil {
		c.failed.WithLabelValues(work.String()).Inc()
	}
}

func (c *count) Refused(reason string) { c.refused.WithLabelValues(reason).Inc() }
