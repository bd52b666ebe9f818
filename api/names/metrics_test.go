package names

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/wire"
)

func TestAListOfMetricsIsTyped(t *testing.T) {
	s, err := ScalingOf(map[string]string{MetricsAnnotation: "concurrency=50, rps=9.5,waiting@header=5, vllm:num_requests_waiting@prometheus:8000/stats=2 shared"}, &rules.Config{})
	if err != nil {
		t.Fatal(err)
	}
	want := []Metric{
		{Name: "concurrency", Target: 50}, {Name: "rps", Target: 9.5}, {Name: "waiting", Source: SourceHeader, Target: 5},
		{Name: "vllm:num_requests_waiting", Source: SourcePrometheus, Port: 8000, Path: "/stats", Target: 2, Shared: true},
	}
	if diff := cmp.Diff(want, s.Metrics); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]wire.ToldMetric{{Name: "waiting"}, {Name: "vllm:num_requests_waiting", Port: 8000, Path: "/stats"}}, s.WireTold(7000)); diff != "" {
		t.Error(diff)
	}
	s, _ = ScalingOf(map[string]string{MetricsAnnotation: "queue@prometheus=1"}, &rules.Config{})
	if diff := cmp.Diff([]wire.ToldMetric{{Name: "queue", Port: 7000, Path: "/metrics"}}, s.WireTold(7000)); diff != "" {
		t.Error(diff)
	}
}

func TestAWrongListOfMetricsIsRefusedWithAReason(t *testing.T) {
	for list, want := range map[string]string{
		"":                        "an entry is like",
		"waiting":                 "an entry is like",
		"a@header=1,":             "an entry is like",
		"waiting=5":               "waiting needs a source: waiting@header or waiting@prometheus",
		"concurrency@header=5":    "concurrency is counted by Ebb",
		"waiting@statsd=5":        `"statsd" is not a source`,
		"waiting@prometheus8=5":   `"prometheus8" is not a source`,
		"9@header=5":              `"9" is not a name`,
		"wai ting@header=5":       `"wai ting" is not a name`,
		"@header=5":               `"" is not a name`,
		"waiting@header=":         `"" is not a target`,
		"waiting@header=NaN":      `"NaN" is not a target from 0.01 to 1000000000`,
		"waiting@header=-1":       `"-1" is not a target`,
		"waiting@header=0":        `"0" is not a target`,
		"waiting@header=1e300":    `"1e300" is not a target`,
		"waiting@header=5 sum":    `"sum" is unknown`,
		"concurrency=5 shared":    `"shared" is unknown`,
		"a@header=1, a@header=2":  "a is there twice",
		"a@prometheus:0=1":        `"0" is not a port`,
		"a@prometheus:65536=1":    `"65536" is not a port`,
		"a@prometheus:8012=1":     "port 8012 is queue-proxy's",
		"a@prometheus/m?x=1":      "is not a path",
		"a@prometheus/\r\nHost=1": "is not a path",
		"a@header=1,b@header=1,c@header=1,d@header=1,e@header=1": "has 5 metrics, more than 4",
		strings.Repeat("a", 101) + "@header=1":                   "is not a name",
		strings.Repeat("a", 3000):                                "has 3000 characters",
	} {
		annotations := map[string]string{MetricsAnnotation: list}
		s, _ := ScalingOf(annotations, &rules.Config{})
		if err := ValidateScaling(annotations, &rules.Config{}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), MetricsAnnotation) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
		if s.Metrics != nil {
			t.Errorf("%q reads as %v", list, s.Metrics)
		}
	}
}

func TestWhatAListOfMetricsContradictsIsRefused(t *testing.T) {
	with := func(list, key, value string) map[string]string {
		return map[string]string{MetricsAnnotation: list, key: value}
	}
	for _, c := range []struct {
		annotations map[string]string
		class, want string
	}{
		{with("waiting@header=5", TargetAnnotation, "10"), "", ""},
		{with("waiting@header=5", MetricAnnotation, MetricRPS), ClassKPA, ""},
		{with("waiting@header=5", ClassAnnotation, ClassHPA), ClassKPA, "only the class " + ClassKPA},
		{with("waiting@header=5", ClassAnnotation, ClassKPA), ClassHPA, ""},
		{map[string]string{MetricsAnnotation: "waiting@header=5"}, ClassHPA, "only the class " + ClassKPA},
		{with("waiting@header=5", AdaptiveTargetAnnotation, AdaptiveTarget), ClassKPA, "a target is learned for concurrency alone"},
		{with("concurrency=5", TargetAnnotation, "10"), ClassKPA, "already"},
		{with("rps=5", MetricAnnotation, MetricRPS), ClassKPA, "already"},
		{with("rps=5", AutoscalingGroup+"/targetUtilizationPercentage", "50"), ClassKPA, "targetUtilizationPercentage"},
	} {
		err := ValidateScaling(c.annotations, &rules.Config{Autoscaling: rules.Autoscaling{Class: c.class}})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.annotations, err, c.want)
		}
	}
}

func FuzzMetrics(f *testing.F) {
	for _, seed := range []string{"concurrency=50, waiting@header=5", "a@prometheus:9000/x=5 shared", "a@prometheus=1e9", "=", "@=", ",", "a@header=\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		annotations := map[string]string{MetricsAnnotation: list}
		s, err := ScalingOf(annotations, &rules.Config{})
		if (err == nil) != (len(s.Metrics) > 0) {
			t.Errorf("%q is %v and reads as %v", list, err, s.Metrics)
		}
		_ = ValidateScaling(annotations, &rules.Config{}).Error()
		if len(s.Metrics) > MaxMetrics || len(s.WireTold(8080)) > wire.MaxTold {
			t.Errorf("%q has %d metrics", list, len(s.Metrics))
		}
		for _, m := range s.Metrics {
			if !(m.Target >= MinTarget && m.Target <= MaxMetricTarget) || len(m.Name) > MaxMetricName || len(m.Path) > MaxMetricPath ||
				m.Told() == (m.Name == MetricConcurrency || m.Name == MetricRPS) {
				t.Errorf("%q reads as %+v", list, m)
			}
		}
	})
}
