package admit

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts and times what was judged.
type Metrics struct {
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "webhook_request_duration_seconds",
		Help:    "How long admission requests took to answer, by path, kind and whether they were allowed.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .5, 1, 5, 10},
	}, []string{"path", "kind", "allowed"})}
	registry.MustRegister(m.duration)
	return m
}

func (m *Metrics) observe(path, kind string, allowed bool, took time.Duration) {
	if m != nil {
		m.duration.WithLabelValues(path, kind, strconv.FormatBool(allowed)).Observe(took.Seconds())
	}
}
