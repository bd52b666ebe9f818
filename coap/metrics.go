package coap

import (
	"errors"

	"github.com/pion/logging"
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the entry tells of itself.
type metrics struct {
	entry      *Entry
	answers    *prometheus.CounterVec
	dropped    *prometheus.CounterVec
	handshakes *prometheus.CounterVec
	gauges     []prometheus.Collector
}

func newMetrics(e *Entry) *metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	return &metrics{
		entry:      e,
		answers:    counter("ebb_coap_answers_total", "Answers to CoAP requests and notifications, by their code.", "code"),
		dropped:    counter("ebb_coap_datagrams_dropped_total", "Datagrams that were not read, by reason.", "reason"),
		handshakes: counter("ebb_coap_handshakes_failed_total", "DTLS handshakes that failed, by reason.", "reason"),
		gauges: []prometheus.Collector{
			gauge("ebb_coap_peers", "CoAP peers with a session.", func() float64 { return float64(len(e.all())) }),
			gauge("ebb_coap_body_bytes", "Memory reserved for bodies of CoAP requests and answers.", func() float64 { return float64(e.memory.Used()) }),
		},
	}
}

func (m *metrics) each(visit func(prometheus.Collector)) {
	for _, c := range append([]prometheus.Collector{m.answers, m.dropped, m.handshakes}, m.gauges...) {
		visit(c)
	}
}

func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	m.each(func(c prometheus.Collector) { c.Describe(out) })
}

func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.each(func(c prometheus.Collector) { c.Collect(out) })
}

func (m *metrics) drop(reason string) { m.dropped.WithLabelValues(reason).Inc() }

func (m *metrics) failed(err error) {
	reason := "protocol"
	if errors.Is(err, errNoKey) {
		reason = "identity"
	}
	m.handshakes.WithLabelValues(reason).Inc()
}

// quiet is the log of DTLS, which would let a flood fill ours: what failed is counted.
type quiet struct{}

func (quiet) NewLogger(string) logging.LeveledLogger { return silence{} }

type silence struct{}

func (silence) Trace(string)          {}
func (silence) Tracef(string, ...any) {}
func (silence) Debug(string)          {}
func (silence) Debugf(string, ...any) {}
func (silence) Info(string)           {}
func (silence) Infof(string, ...any)  {}
func (silence) Warn(string)           {}
func (silence) Warnf(string, ...any)  {}
func (silence) Error(string)          {}
func (silence) Errorf(string, ...any) {}
