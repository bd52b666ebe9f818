package names

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

// MetricsAnnotation lists what a revision is scaled by. The metric that asks for the most pods
// decides:
//
//	autoscaling.ebb.dev/metrics: concurrency=50, waiting@header=5, vllm:num_requests_waiting@prometheus:8000=5
const MetricsAnnotation = EbbAutoscalingGroup + "/metrics"

// Bounds of MetricsAnnotation.
const (
	MaxMetrics       = wire.MaxTold
	MaxMetricName    = 100 // characters
	MaxMetricPath    = 200
	MaxMetricTarget  = 1e9
	maxMetricsLength = 2048
)

// Source is where a metric comes from.
type Source string

const (
	// SourceRequests is Ebb's own count of requests. It has no spelling: the names are
	// MetricConcurrency and MetricRPS.
	SourceRequests Source = ""
	// SourceHeader is the response header wire.HeaderLoad of the user container.
	SourceHeader Source = "header"
	// SourcePrometheus is a page of the pod in Prometheus' text format.
	SourcePrometheus Source = "prometheus"
)

// Metric is one entry of MetricsAnnotation.
type Metric struct {
	Name   string
	Source Source
	// Port and Path are those of SourcePrometheus. Port 0 is the user container's.
	Port int32
	Path string
	// Target is the value per pod that the autoscaler aims for.
	Target float64
	// Shared says that each pod tells the same number, which is of all pods together. Otherwise the
	// numbers of the pods add up.
	Shared bool
}

// Told reports whether the user container tells the metric.
func (m Metric) Told() bool { return m.Source != SourceRequests }

// Told returns the metrics that the user container tells, in the order in which queue-proxy reports
// them.
func (s Scaling) Told() (told []Metric) {
	for _, m := range s.Metrics {
		if m.Told() {
			told = append(told, m)
		}
	}
	return told
}

// WireTold returns what queue-proxy must know of the metrics that the user container tells.
func (s Scaling) WireTold(userPort int32) (told []wire.ToldMetric) {
	for _, m := range s.Told() {
		w := wire.ToldMetric{Name: m.Name}
		if m.Source == SourcePrometheus {
			w.Port, w.Path = int(m.Port), m.Path
			if w.Port == 0 {
				w.Port = int(userPort)
			}
		}
		told = append(told, w)
	}
	return told
}

func (r *reader) metrics() []Metric {
	text, given := r.annotations[MetricsAnnotation]
	if !given {
		return nil
	}
	all, err := parseMetrics(text)
	if err != nil {
		if len(text) > maxMetricsLength {
			text = text[:maxMetricsLength] + "..."
		}
		r.fail(apis.ErrInvalidValue(text, MetricsAnnotation, err.Error()))
	}
	return all
}

func parseMetrics(text string) ([]Metric, error) {
	if len(text) > maxMetricsLength {
		return nil, fmt.Errorf("has %d characters, more than %d", len(text), maxMetricsLength)
	}
	entries := strings.Split(text, ",")
	if len(entries) > MaxMetrics {
		return nil, fmt.Errorf("has %d metrics, more than %d", len(entries), MaxMetrics)
	}
	var all []Metric
	for _, entry := range entries {
		m, err := parseMetric(strings.TrimSpace(entry))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other Metric) bool { return other.Name == m.Name }) {
			return nil, fmt.Errorf("%s is there twice", m.Name)
		}
		all = append(all, m)
	}
	return all, nil
}

// metricShape is what an entry looks like.
const metricShape = "an entry is like concurrency=50, waiting@header=5 or queue:length@prometheus:9000/metrics=5 shared"

// parseMetric reads NAME[@SOURCE]=TARGET[ shared].
func parseMetric(entry string) (Metric, error) {
	left, right, ok := strings.Cut(entry, "=")
	if !ok {
		return Metric{}, fmt.Errorf("%q: %s", entry, metricShape)
	}
	var m Metric
	name, source, hasSource := strings.Cut(strings.TrimSpace(left), "@")
	if !validMetricName(name) {
		return m, fmt.Errorf("%q is not a name: use up to %d letters, digits, _ and :, and no digit first", name, MaxMetricName)
	}
	m.Name = name
	requests := name == MetricConcurrency || name == MetricRPS
	switch {
	case requests && hasSource:
		return m, fmt.Errorf("%s is counted by Ebb, so it has no source", name)
	case !requests && !hasSource:
		return m, fmt.Errorf("%s needs a source: %s@%s or %s@%s", name, name, SourceHeader, name, SourcePrometheus)
	}
	if hasSource {
		if err := m.setSource(source); err != nil {
			return m, err
		}
	}
	target, flag, _ := strings.Cut(strings.TrimSpace(right), " ")
	var err error
	if m.Target, err = strconv.ParseFloat(target, 64); err != nil || !(m.Target >= MinTarget && m.Target <= MaxMetricTarget) {
		return m, fmt.Errorf("%s: %q is not a target from %g to %.0f", name, target, MinTarget, float64(MaxMetricTarget))
	}
	switch flag = strings.TrimSpace(flag); {
	case flag == "":
	case flag == "shared" && m.Told():
		m.Shared = true
	default:
		return m, fmt.Errorf("%s: %q is unknown: only shared may follow the target of a metric that the pods tell", name, flag)
	}
	return m, nil
}

// setSource reads header or prometheus[:PORT][/PATH].
func (m *Metric) setSource(text string) error {
	rest, ok := strings.CutPrefix(text, string(SourcePrometheus))
	switch {
	case text == string(SourceHeader):
		m.Source = SourceHeader
		return nil
	case !ok || rest != "" && rest[0] != ':' && rest[0] != '/':
		return fmt.Errorf("%s: %q is not a source: use %s, or %s with a port and a path, as in %s:9000/metrics", m.Name, text, SourceHeader, SourcePrometheus, SourcePrometheus)
	}
	m.Source, m.Path = SourcePrometheus, "/metrics"
	if slash := strings.IndexByte(rest, '/'); slash >= 0 {
		rest, m.Path = rest[:slash], rest[slash:]
	}
	if len(m.Path) > MaxMetricPath || strings.ContainsFunc(m.Path, func(c rune) bool {
		return !letterOrDigit(c) && !strings.ContainsRune("/._~-", c)
	}) {
		return fmt.Errorf("%s: %q is not a path of up to %d letters, digits and /._~-", m.Name, m.Path, MaxMetricPath)
	}
	if rest == "" {
		return nil
	}
	port, err := strconv.ParseUint(rest[1:], 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("%s: %q is not a port from 1 to %d", m.Name, rest[1:], math.MaxUint16)
	}
	if slices.Contains(SidecarPorts, int32(port)) {
		return fmt.Errorf("%s: port %d is queue-proxy's", m.Name, port)
	}
	m.Port = int32(port)
	return nil
}

func letterOrDigit(c rune) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func validMetricName(name string) bool {
	return name != "" && len(name) <= MaxMetricName && !(name[0] >= '0' && name[0] <= '9') &&
		!strings.ContainsFunc(name, func(c rune) bool { return !letterOrDigit(c) && c != '_' && c != ':' })
}

// validateMetrics says which other annotations a list of metrics contradicts.
func validateMetrics(s Scaling, annotations map[string]string, limits rules.Autoscaling) *apis.FieldError {
	if len(s.Metrics) == 0 {
		return nil
	}
	class, ok := annotations[ClassAnnotation]
	if !ok {
		class = limits.Class
	}
	contradiction := func(key, why string) *apis.FieldError {
		return &apis.FieldError{Message: "cannot be combined", Paths: []string{MetricsAnnotation, key}, Details: why}
	}
	var errs *apis.FieldError
	if class == ClassHPA {
		errs = errs.Also(contradiction(ClassAnnotation, fmt.Sprintf("only the class %s scales by several metrics", ClassKPA)))
	}
	if s.AdaptiveTarget {
		errs = errs.Also(contradiction(AdaptiveTargetAnnotation, "a target is learned for concurrency alone"))
	}
	if !slices.ContainsFunc(s.Metrics, func(m Metric) bool { return !m.Told() }) {
		return errs
	}
	for _, key := range []string{MetricAnnotation, TargetAnnotation, TargetUtilizationAnnotation} {
		if _, spelling, ok := Lookup(annotations, key); ok {
			errs = errs.Also(contradiction(spelling, fmt.Sprintf("the list has the target of %s or %s already", MetricConcurrency, MetricRPS)))
		}
	}
	return errs
}
