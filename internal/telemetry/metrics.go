package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Leases shows how many Leases the replicas of a component divide among themselves, and how many
// of them this replica holds. Added up over the replicas, the second is as large as the first, or a
// Lease has no holder.
func Leases(registry prometheus.Registerer, component string, all, held func() int) {
	labels := prometheus.Labels{"component": component}
	registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ebb_leases", ConstLabels: labels,
			Help: "Leases that the replicas of the component divide among themselves."}, func() float64 { return float64(all()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ebb_leases_held", ConstLabels: labels,
			Help: "Leases of the component that this replica holds."}, func() float64 { return float64(held()) }),
	)
}

// CertificateEnds returns a collector of the ends of certificates by their names. A name needs a
// bound: it is a label.
func CertificateEnds(ends func() map[string]time.Time) prometheus.Collector {
	return certificateEnds{ends}
}

type certificateEnds struct{ ends func() map[string]time.Time }

var certificateEnd = prometheus.NewDesc("ebb_certificate_end_timestamp_seconds",
	"When the certificate is no longer valid, in seconds since 1970.", []string{"certificate"}, nil)

// Describe implements prometheus.Collector.
func (c certificateEnds) Describe(out chan<- *prometheus.Desc) { out <- certificateEnd }

// Collect implements prometheus.Collector.
func (c certificateEnds) Collect(out chan<- prometheus.Metric) {
	for name, end := range c.ends() {
		out <- prometheus.MustNewConstMetric(certificateEnd, prometheus.GaugeValue, float64(end.Unix()), name)
	}
}
