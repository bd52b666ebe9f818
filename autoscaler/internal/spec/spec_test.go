package spec

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/api/schedule"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/standby"
)

func autoscaler(annotations map[string]string) *v1alpha1.PodAutoscaler {
	return &v1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-00001", UID: "u1", Generation: 2, Annotations: annotations,
			Labels: map[string]string{names.ServiceLabel: "hello", names.ConfigurationLabel: "hello"}},
		Spec: v1alpha1.PodAutoscalerSpec{ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "hello-00001-deployment"}},
	}
}

func TestDefaults(t *testing.T) {
	got, problems := resolve(autoscaler(nil), settings.Default().Autoscaler, 10*time.Minute)
	want := &loop.Spec{Target: loop.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "hello-00001-deployment"},
		Service: "hello", Configuration: "hello", Found: &revision.State{Desired: -1},
		Config: revision.Config{UID: "u1", Generation: 2, Name: "default/hello-00001", BudgetOwner: "default/hello", Rules: &revision.Rules{
			Scraped: true, PanicWindow: 6 * time.Second, MinSchedule: schedule.Schedule{}, ScaleUp: revision.Rate{PerSecond: 50, Burst: 500},
			Formula: decide.Config{Total: 100, Target: 70, TargetBurstCapacity: 211, ActivatorCapacity: 100, MaxScaleUpRate: 1000, MaxScaleDownRate: 2,
				PanicThreshold: 2, StableWindow: time.Minute, Reachable: true},
			Zero: zero.Config{Initial: 1, ScaleToZero: true, StableWindow: time.Minute, Grace: 30 * time.Second, ProgressDeadline: 10 * time.Minute, PathHold: time.Minute}}}}
	if len(problems) > 0 || !reflect.DeepEqual(got, want) {
		t.Errorf("problems %v\ngot  %+v\nwant %+v", problems, got, want)
	}
}

func TestAnnotations(t *testing.T) {
	const group = names.AutoscalingGroup + "/"
	cases := []struct {
		key, value string
		check      func(*loop.Spec) bool
	}{
		{"min-scale", "3", func(s *loop.Spec) bool { return s.Zero.Min == 3 }},
		{"minScale", "3", func(s *loop.Spec) bool { return s.Zero.Min == 3 }},
		{"max-scale", "5", func(s *loop.Spec) bool { return s.Zero.Max == 5 }},
		{"maxScale", "5", func(s *loop.Spec) bool { return s.Zero.Max == 5 }},
		{"initial-scale", "4", func(s *loop.Spec) bool { return s.Zero.Initial == 4 }},
		{"initialScale", "4", func(s *loop.Spec) bool { return s.Zero.Initial == 4 }},
		{"activation-scale", "4", func(s *loop.Spec) bool { return s.Formula.ActivationScale == 4 }},
		{"scale-down-delay", "90s", func(s *loop.Spec) bool { return s.Formula.ScaleDownDelay == 90*time.Second }},
		{"scaleDownDelay", "90s", func(s *loop.Spec) bool { return s.Formula.ScaleDownDelay == 90*time.Second }},
		{"metric", "rps", func(s *loop.Spec) bool { return s.Formula.Metric == decide.RequestsPerSecond && s.Formula.Total == 200 }},
		{"metric-aggregation-algorithm", "weighted-exponential", func(s *loop.Spec) bool { return s.Algorithm == window.WeightedExponential }},
		{"metricAggregationAlgorithm", "weightedExponential", func(s *loop.Spec) bool { return s.Algorithm == window.WeightedExponential }},
		{"target", "10", func(s *loop.Spec) bool { return s.Formula.Total == 10 && s.Formula.Target == 7 }},
		{"target-utilization-percentage", "50", func(s *loop.Spec) bool { return s.Formula.Target == 50 }},
		{"targetUtilizationPercentage", "50", func(s *loop.Spec) bool { return s.Formula.Target == 50 }},
		{"target-burst-capacity", "-1", func(s *loop.Spec) bool {
			return s.Formula.TargetBurstCapacity == -1 && !s.Scraped && s.Zero.AlwaysProxied
		}},
		{"target-burst-capacity", "0", func(s *loop.Spec) bool {
			return s.Formula.TargetBurstCapacity == 0 && s.Scraped && s.Zero.PathHold == 0
		}},
		{"targetBurstCapacity", "70", func(s *loop.Spec) bool { return s.Formula.TargetBurstCapacity == 70 }},
		{"window", "20s", func(s *loop.Spec) bool {
			return s.Formula.StableWindow == 20*time.Second && s.Zero.StableWindow == 20*time.Second && s.PanicWindow == 2*time.Second
		}},
		{"panic-window-percentage", "50", func(s *loop.Spec) bool { return s.PanicWindow == 30*time.Second }},
		{"panicWindowPercentage", "50", func(s *loop.Spec) bool { return s.PanicWindow == 30*time.Second }},
		{"panic-threshold-percentage", "150", func(s *loop.Spec) bool { return s.Formula.PanicThreshold == 1.5 }},
		{"panicThresholdPercentage", "150", func(s *loop.Spec) bool { return s.Formula.PanicThreshold == 1.5 }},
		{"scale-to-zero-pod-retention-period", "5m", func(s *loop.Spec) bool { return s.Zero.Retention == 5*time.Minute }},
		{"scaleToZeroPodRetentionPeriod", "5m", func(s *loop.Spec) bool { return s.Zero.Retention == 5*time.Minute }},
	}
	for _, c := range cases {
		t.Run(c.key+"="+c.value, func(t *testing.T) {
			got, problems := resolve(autoscaler(map[string]string{group + c.key: c.value}), settings.Default().Autoscaler, time.Minute)
			if len(problems) > 0 || !c.check(got) {
				t.Errorf("problems %v, got %+v", problems, got)
			}
		})
	}
	budget, problems := resolve(autoscaler(map[string]string{names.ScaleUpBurstAnnotation: "7", names.ScaleUpPerSecondAnnotation: "0.5"}), settings.Default().Autoscaler, time.Minute)
	if len(problems) > 0 || budget.ScaleUp != (revision.Rate{Burst: 7, PerSecond: 0.5}) {
		t.Errorf("problems %v, budget %+v", problems, budget.ScaleUp)
	}
	wrong, problems := resolve(autoscaler(map[string]string{names.ScaleUpBurstAnnotation: "0", names.ScaleUpPerSecondAnnotation: "-1"}), settings.Default().Autoscaler, time.Minute)
	if len(problems) != 2 || wrong.ScaleUp != (revision.Rate{Burst: 500, PerSecond: 50}) {
		t.Errorf("problems %v, budget %+v", problems, wrong.ScaleUp)
	}
	both, _ := resolve(autoscaler(map[string]string{group + "min-scale": "3", group + "minScale": "4"}), settings.Default().Autoscaler, time.Minute)
	if both.Zero.Min != 3 {
		t.Errorf("min-scale and minScale: %d, want the former's", both.Zero.Min)
	}
	slow, _ := resolve(autoscaler(map[string]string{names.ProgressDeadlineAnnotation: "20m"}), settings.Default().Autoscaler, time.Minute)
	if slow.Zero.ProgressDeadline != 20*time.Minute {
		t.Errorf("progress deadline %s", slow.Zero.ProgressDeadline)
	}
}

func TestAListOfMetricsIsResolved(t *testing.T) {
	const target, tbc = names.TargetAnnotation, names.TargetBurstCapacityAnnotation
	told := func(place int, name string, aim float64) decide.Other {
		return decide.Other{Name: name, Metric: decide.Told, Place: place, Target: aim}
	}
	for _, c := range []struct {
		behaviour     string
		annotations   map[string]string
		metric        decide.Metric
		total, target float64
		others        []decide.Other
	}{
		{"requests in flight count besides, by their own annotations", map[string]string{names.MetricsAnnotation: "waiting@header=5", target: "10"},
			decide.Concurrency, 10, 7, []decide.Other{told(0, "waiting", 5)}},
		{"a target in the list is aimed for as it is", map[string]string{names.MetricsAnnotation: "waiting@header=5, concurrency=50, busy@prometheus=2"},
			decide.Concurrency, 50, 50, []decide.Other{told(0, "waiting", 5), told(1, "busy", 2)}},
		{"the first of both counts of requests is the main one", map[string]string{names.MetricsAnnotation: "rps=20, concurrency=50"},
			decide.RequestsPerSecond, 20, 20, []decide.Other{{Name: "concurrency", Metric: decide.Concurrency, Target: 50}}},
		{"pods that tell are scraped always", map[string]string{names.MetricsAnnotation: "waiting@header=5 shared", tbc: "-1"},
			decide.Concurrency, 100, 70, []decide.Other{{Name: "waiting", Metric: decide.Told, Target: 5, Shared: true}}},
	} {
		got, problems := resolve(autoscaler(c.annotations), settings.Default().Autoscaler, time.Minute)
		f := got.Formula
		if len(problems) > 0 || !got.Scraped || f.Metric != c.metric || f.Total != c.total || f.Target != c.target || !reflect.DeepEqual(f.Others, c.others) {
			t.Errorf("%s: problems %v, got %+v", c.behaviour, problems, f)
		}
	}
	got, problems := resolve(autoscaler(map[string]string{names.MetricsAnnotation: "waiting=5"}), settings.Default().Autoscaler, time.Minute)
	if len(problems) != 1 || len(got.Formula.Others) > 0 {
		t.Errorf("a wrong list: problems %v, got %+v", problems, got.Formula)
	}
	got, problems = resolve(autoscaler(map[string]string{names.MetricsAnnotation: "waiting@header=5", names.AdaptiveTargetAnnotation: "auto"}), settings.Default().Autoscaler, time.Minute)
	if len(problems) != 1 || got.Adaptive {
		t.Errorf("with a learned target: problems %v, adaptive %v", problems, got.Adaptive)
	}
}

// autoscalerKeys reads the keys of config-autoscaler from the _example of the shipped ConfigMap.
func autoscalerKeys(t *testing.T) []string {
	raw, err := os.ReadFile("../../../config/core/configmaps/config-autoscaler.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	keys := map[string]string{}
	if err := errors.Join(yaml.Unmarshal(raw, &m), yaml.Unmarshal([]byte(m.Data[settings.ExampleKey]), &keys)); err != nil || len(keys) < 20 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	return slices.Sorted(maps.Keys(keys))
}

// Every key of config-autoscaler changes what a PodAutoscaler without annotations is run on; a new
// key needs a row here.
// Activators do not know that a program is busy: its pods are asked, also where activators see all
// requests.
func TestPodsThatMaySayThatTheyAreBusyAreAsked(t *testing.T) {
	annotations := map[string]string{names.TargetBurstCapacityAnnotation: "-1", names.BusyForAnnotation: "10m"}
	got, problems := resolve(autoscaler(annotations), settings.Default().Autoscaler, time.Minute)
	if len(problems) > 0 || !got.Scraped || !got.Zero.AlwaysProxied || got.BusyFor != 10*time.Minute {
		t.Errorf("problems %v, got %+v", problems, got)
	}
	annotations[names.BusyForAnnotation] = "8760h"
	if got, problems = resolve(autoscaler(annotations), settings.Default().Autoscaler, time.Minute); len(problems) != 1 || got.Scraped || got.BusyFor != 0 {
		t.Errorf("for a year: problems %v, got %+v", problems, got)
	}
}

func TestEveryKeyOfConfigAutoscalerCounts(t *testing.T) {
	type change struct {
		with  map[string]string // other keys that it needs
		value string
		check func(*loop.Spec) bool
	}
	alone := func(value string, check func(*loop.Spec) bool) change { return change{nil, value, check} }
	rows := map[string]change{
		"pod-autoscaler-class":                    alone("other.example.org", nil), // see below
		"enable-scale-to-zero":                    alone("false", func(s *loop.Spec) bool { return !s.Zero.ScaleToZero }),
		"allow-zero-initial-scale":                {map[string]string{"initial-scale": "0"}, "true", func(s *loop.Spec) bool { return s.Zero.Initial == 0 }},
		"initial-scale":                           alone("4", func(s *loop.Spec) bool { return s.Zero.Initial == 4 }),
		"min-scale":                               alone("3", func(s *loop.Spec) bool { return s.Zero.Min == 3 }),
		"max-scale":                               alone("5", func(s *loop.Spec) bool { return s.Zero.Max == 5 }),
		"max-scale-limit":                         {map[string]string{"max-scale": "3"}, "6", func(s *loop.Spec) bool { return s.Zero.Max == 6 }}, // of an annotation that wants 9
		"max-scale-up-rate":                       alone("7", func(s *loop.Spec) bool { return s.Formula.MaxScaleUpRate == 7 }),
		"max-scale-down-rate":                     alone("3", func(s *loop.Spec) bool { return s.Formula.MaxScaleDownRate == 3 }),
		"container-concurrency-target-percentage": alone("50", func(s *loop.Spec) bool { return s.Formula.Total == 100 && s.Formula.Target == 50 }),
		"container-concurrency-target-default":    alone("20", func(s *loop.Spec) bool { return s.Formula.Total == 20 && s.Formula.Target == 14 }),
		"requests-per-second-target-default":      alone("50", func(s *loop.Spec) bool { return s.Formula.Total == 50 && s.Formula.Target == 35 }),
		"target-burst-capacity": alone("-1", func(s *loop.Spec) bool {
			return s.Formula.TargetBurstCapacity == -1 && s.Zero.AlwaysProxied && !s.Scraped
		}),
		"activator-capacity": alone("30", func(s *loop.Spec) bool { return s.Formula.ActivatorCapacity == 30 }),
		"stable-window": alone("20s", func(s *loop.Spec) bool {
			return s.Formula.StableWindow == 20*time.Second && s.Zero.StableWindow == 20*time.Second && s.PanicWindow == 2*time.Second
		}),
		"panic-window-percentage":            alone("50", func(s *loop.Spec) bool { return s.PanicWindow == 30*time.Second }),
		"panic-threshold-percentage":         alone("150", func(s *loop.Spec) bool { return s.Formula.PanicThreshold == 1.5 }),
		"scale-to-zero-grace-period":         alone("45s", func(s *loop.Spec) bool { return s.Zero.Grace == 45*time.Second }),
		"scale-to-zero-pod-retention-period": alone("5m", func(s *loop.Spec) bool { return s.Zero.Retention == 5*time.Minute }),
		"scale-down-delay":                   alone("90s", func(s *loop.Spec) bool { return s.Formula.ScaleDownDelay == 90*time.Second }),
		"scale-up-burst":                     alone("7", func(s *loop.Spec) bool { return s.ScaleUp.Burst == 7 }),
		"scale-up-per-second":                alone("0.5", func(s *loop.Spec) bool { return s.ScaleUp.PerSecond == 0.5 }),
	}
	resolved := func(t *testing.T, data map[string]string) (*loop.Spec, settings.Autoscaler) {
		t.Helper()
		snapshot, err := settings.Parse(map[string]map[string]string{settings.AutoscalerName: data})
		if err != nil {
			t.Fatal(err)
		}
		pa := autoscaler(nil)
		if _, ok := data["requests-per-second-target-default"]; ok {
			pa.Annotations = map[string]string{names.MetricAnnotation: names.MetricRPS}
		}
		if _, ok := data["max-scale-limit"]; ok {
			pa.Annotations = map[string]string{names.MaxScaleAnnotation: "9"}
		}
		s, problems := resolve(pa, snapshot.Autoscaler, time.Minute)
		if _, ok := data["allow-zero-initial-scale"]; len(problems) > 0 && ok {
			t.Errorf("problems %q", problems)
		}
		return s, snapshot.Autoscaler
	}
	plain, _ := resolved(t, nil)
	for _, key := range autoscalerKeys(t) {
		if strings.HasPrefix(key, "standby") || strings.HasPrefix(key, "startup-cpu") {
			continue // read, but no pod sleeps yet; and what pods start with is no matter of the scale
		}
		t.Run(key, func(t *testing.T) {
			row, ok := rows[key]
			if !ok {
				t.Fatal("no row says what this key changes")
			}
			data := map[string]string{key: row.value}
			for k, v := range row.with {
				data[k] = v
			}
			got, a := resolved(t, data)
			if row.check == nil { // the class says whether there is anything to decide here
				if Ours(autoscaler(nil), a) || !Ours(autoscaler(nil), settings.Default().Autoscaler) {
					t.Errorf("class %q is decided here: %v", a.Class, Ours(autoscaler(nil), a))
				}
				return
			}
			if !row.check(got) {
				t.Errorf("%v: got %+v", data, got)
			}
			if row.check(plain) {
				t.Errorf("the row holds without the key, too: %+v", plain)
			}
		})
	}
}

func TestWhatMakesNoSenseIsIgnoredAndTold(t *testing.T) {
	const group = names.AutoscalingGroup + "/"
	plain, _ := resolve(autoscaler(nil), settings.Default().Autoscaler, time.Minute)
	for key, values := range map[string][]string{
		"min-scale": {"-1", "many", "1e3", "99999999999"}, "max-scale": {"-1", "x"}, "initial-scale": {"0", "-3"},
		"target": {"0", "-1", "NaN", "Inf", "x"}, "target-utilization-percentage": {"0", "101", "NaN"},
		"target-burst-capacity": {"-2", "-0.5", "NaN"}, "window": {"5s", "2h", "60", "6500ms"}, "panic-window-percentage": {"0", "101"},
		"panic-threshold-percentage": {"109", "1001"}, "scale-down-delay": {"-1s", "2h"}, "metric": {"cpu"},
		"metric-aggregation-algorithm": {"median"}, "scale-to-zero-pod-retention-period": {"-1s", "61m"}, "activation-scale": {"x", "1"},
	} {
		for _, value := range values {
			got, problems := resolve(autoscaler(map[string]string{group + key: value}), settings.Default().Autoscaler, time.Minute)
			if len(problems) != 1 || !reflect.DeepEqual(got, plain) {
				t.Errorf("%s=%s: problems %q, %+v", key, value, problems, got)
			}
		}
	}
}

func TestContradictoryBounds(t *testing.T) {
	const group = names.AutoscalingGroup + "/"
	got, problems := resolve(autoscaler(map[string]string{group + "min-scale": "9", group + "max-scale": "5"}), settings.Default().Autoscaler, time.Minute)
	if len(problems) != 1 || got.Zero.Min != 5 || got.Zero.Max != 5 {
		t.Errorf("problems %q, %+v", problems, got.Zero)
	}
	limited := settings.Default().Autoscaler
	limited.MaxScaleLimit = 4
	for annotation, want := range map[string]int32{"": 4, "3": 3, "9": 4, "0": 4} {
		annotations := map[string]string{}
		if annotation != "" {
			annotations[group+"max-scale"] = annotation
		}
		if got, _ := resolve(autoscaler(annotations), limited, time.Minute); got.Zero.Max != want {
			t.Errorf("max-scale %q under a limit of 4: %d, want %d", annotation, got.Zero.Max, want)
		}
	}
}

// What is above the maximum never was asked for: the maximum holds, and is said to.
func TestScalesAboveTheMaximumAreIgnoredAndTold(t *testing.T) {
	const group = names.AutoscalingGroup + "/"
	for _, c := range []struct {
		annotations map[string]string
		limit       int32
		problems    int
		check       func(*loop.Spec) bool
	}{
		{map[string]string{group + "initial-scale": "5", group + "max-scale": "3"}, 0, 1, func(s *loop.Spec) bool { return s.Zero.Initial == 3 }},
		{map[string]string{group + "activation-scale": "5", group + "max-scale": "3"}, 0, 1, func(s *loop.Spec) bool { return s.Formula.ActivationScale == 3 }},
		{map[string]string{group + "activation-scale": "5", group + "initial-scale": "9", group + "min-scale": "4", group + "max-scale": "3"}, 0, 3, func(s *loop.Spec) bool {
			return s.Formula.ActivationScale == 3 && s.Zero.Initial == 3 && s.Zero.Min == 3
		}},
		{map[string]string{group + "activation-scale": "5"}, 2, 1, func(s *loop.Spec) bool { return s.Formula.ActivationScale == 2 && s.Zero.Max == 2 }},
		{map[string]string{group + "activation-scale": "3", group + "initial-scale": "3", group + "max-scale": "3"}, 0, 0, func(s *loop.Spec) bool {
			return s.Formula.ActivationScale == 3 && s.Zero.Initial == 3
		}},
		{map[string]string{group + "activation-scale": "5", group + "initial-scale": "9"}, 0, 0, func(s *loop.Spec) bool {
			return s.Formula.ActivationScale == 5 && s.Zero.Initial == 9
		}},
	} {
		a := settings.Default().Autoscaler
		a.MaxScaleLimit = c.limit
		got, problems := resolve(autoscaler(c.annotations), a, time.Minute)
		if len(problems) != c.problems || !c.check(got) {
			t.Errorf("%v under a limit of %d: problems %q, %+v", c.annotations, c.limit, problems, got)
		}
		for _, p := range problems {
			if !strings.Contains(p, "above the maximum of ") {
				t.Errorf("%v: told %q", c.annotations, p)
			}
		}
	}
}

func TestATargetThatCannotBeLearnedIsTold(t *testing.T) {
	const group = names.AutoscalingGroup + "/"
	for _, c := range []struct {
		annotations map[string]string
		adaptive    bool
		told        string
	}{
		{map[string]string{}, false, ""},
		{map[string]string{names.AdaptiveTargetAnnotation: "auto"}, true, ""},
		{map[string]string{names.AdaptiveTargetAnnotation: "auto", group + "metric": "concurrency", group + "target-burst-capacity": "0"}, true, ""},
		{map[string]string{names.AdaptiveTargetAnnotation: "Auto"}, false, `the only value is "auto"`},
		{map[string]string{names.AdaptiveTargetAnnotation: "10"}, false, `the only value is "auto"`},
		{map[string]string{names.AdaptiveTargetAnnotation: "auto", group + "metric": "rps"}, false, "requests per second cannot be learned"},
		{map[string]string{names.AdaptiveTargetAnnotation: "auto", group + "target-burst-capacity": "-1"}, false, "pods are not scraped"},
	} {
		got, problems := resolve(autoscaler(c.annotations), settings.Default().Autoscaler, time.Minute)
		told := strings.Join(problems, "; ")
		if got.Adaptive != c.adaptive || (told == "") != (c.told == "") || !strings.Contains(told, c.told) {
			t.Errorf("%v: learned is %v, told %q; want %v and %q", c.annotations, got.Adaptive, told, c.adaptive, c.told)
		}
	}
}

func TestWhatIsIgnoredIsCountedOnceForEachGeneration(t *testing.T) {
	pa := autoscaler(map[string]string{names.MinScaleAnnotation: "9", names.MaxScaleAnnotation: "5", names.TargetAnnotation: "NaN"})
	var told bytes.Buffer
	s := &Source{Get: func(_, _ string) *v1alpha1.PodAutoscaler { return pa }, Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return true },
		Log: slog.New(slog.NewTextHandler(&told, nil))}
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	for range 3 {
		s.Spec(key)
	}
	if s.Ignored.Load() != 2 || strings.Count(told.String(), "annotations of a PodAutoscaler are ignored") != 1 || !strings.Contains(told.String(), "above the maximum of 5") {
		t.Errorf("%d counted, told %s", s.Ignored.Load(), &told)
	}
	pa.Generation++
	s.Spec(key)
	if s.Ignored.Load() != 4 {
		t.Errorf("%d counted after a change", s.Ignored.Load())
	}
}

func TestReachability(t *testing.T) {
	for reachability, want := range map[v1alpha1.Reachability]bool{"": true, v1alpha1.ReachabilityReachable: true, v1alpha1.ReachabilityUnreachable: false} {
		pa := autoscaler(nil)
		pa.Spec.Reachability = reachability
		if got, _ := resolve(pa, settings.Default().Autoscaler, time.Minute); got.Formula.Reachable != want || got.Zero.Unreachable == want {
			t.Errorf("%q: %+v", reachability, got)
		}
	}
}

func TestFoundReadsBackWhatWasWritten(t *testing.T) {
	pa := autoscaler(nil)
	three := int32(3)
	pa.Status.DesiredScale = &three
	pa.Status.Mode = v1alpha1.ModeProxy
	pa.Status.InitializeConditions()
	pa.Status.MarkScaleTargetInitialized()
	pa.Status.MarkInactive(zero.NoTraffic, "")
	got := found(pa)
	if got.Desired != 3 || !got.Zero.Initialized || !got.Zero.Proxied || got.Zero.Active != zero.No || got.Zero.ActiveReason != zero.NoTraffic || got.Zero.ActiveSince.IsZero() {
		t.Errorf("%+v", got)
	}
	pa.Status.MarkActive()
	if got := found(pa); got.Zero.Active != zero.Yes || got.Learned != (decide.Learned{}) {
		t.Errorf("%+v", got)
	}
	pa.Status.Learned = &v1alpha1.LearnedTarget{Time: metav1.Unix(1_700_000_000, 0), Concurrency: "9.5", Throughput: "120"}
	if got := found(pa); got.Learned != (decide.Learned{Concurrency: 9.5, Throughput: 120, At: 1_700_000_000}) {
		t.Errorf("%+v", got.Learned)
	}
	for _, text := range []string{"", "many", "0x", "1e999", "NaN", "-Inf"} {
		pa.Status.Learned.Concurrency = text
		if got := found(pa); got.Learned == (decide.Learned{}) {
			t.Errorf("%q is taken for nothing, which nobody counts", text)
		} else if _, ok := got.Learned.Adaptive(0.7, time.Unix(1_700_000_000, 0)); ok {
			t.Errorf("%q is taken for %v", text, got.Learned.Concurrency)
		}
	}
}

func TestAPodAutoscalerMadeAnewBeginsWhereItsRevisionEnded(t *testing.T) {
	pa := autoscaler(map[string]string{names.InitializedAnnotation: "true"})
	got, _ := resolve(pa, settings.Default().Autoscaler, time.Minute)
	want := &revision.State{Zero: zero.State{Initialized: true, Proxied: true, Active: zero.No, ActiveReason: zero.NoTraffic}}
	if !reflect.DeepEqual(got.Found, want) {
		t.Errorf("got %+v, want %+v", got.Found, want)
	}
	// Once it has a status, that counts.
	pa.Status.InitializeConditions()
	pa.Status.MarkActive()
	if got, _ = resolve(pa, settings.Default().Autoscaler, time.Minute); got.Found.Zero.Active != zero.Yes {
		t.Errorf("with a status: %+v", got.Found)
	}
}

func TestForeignClassesAndRevisionsOfOthersAreLeftAlone(t *testing.T) {
	pa := autoscaler(nil)
	owned := true
	s := &Source{Get: func(_, name string) *v1alpha1.PodAutoscaler {
		if name == pa.Name {
			return pa
		}
		return nil
	}, Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return owned }, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	if s.Spec(key) == nil {
		t.Fatal("our own is not decided")
	}
	if s.Spec(loop.Key{Namespace: "default", Name: "unheard-of"}) != nil {
		t.Error("something from nothing")
	}
	owned = false
	if s.Spec(key) != nil {
		t.Error("another replica's revision is decided here, too")
	}
	owned = true
	for class, want := range map[string]bool{names.ClassKPA: true, names.ClassHPA: false, "keda.example.org": false, "": true} {
		pa.Annotations = map[string]string{names.ClassAnnotation: class}
		if got := s.Spec(key) != nil; got != want {
			t.Errorf("class %q is decided: %v", class, got)
		}
	}
	pa.Annotations = nil
	now := metav1.Now()
	pa.DeletionTimestamp = &now
	if s.Spec(key) != nil {
		t.Error("a PodAutoscaler that is being deleted is decided")
	}
}

func TestHowPodsSleep(t *testing.T) {
	on := settings.Default().Autoscaler
	on.Standby = rules.StandbyAuto
	for behaviour, c := range map[string]struct {
		annotations map[string]string
		settings    settings.Autoscaler
		want        *keep.Config
		level       standby.Level
	}{
		"by default they do not": {nil, settings.Default().Autoscaler, nil, 0},
		"switched off":           {map[string]string{names.StandbyAnnotation: "off"}, on, nil, 0},
		"by the settings": {nil, on, &keep.Config{Worth: keep.DefaultWorth, ColdStart: usualColdStart, Memory: UsualMemory,
			MaxTime: 4 * time.Hour, MaxPods: -1}, standby.Compressed},
		"a number, for a time": {map[string]string{names.StandbyAnnotation: "3", names.StandbyForAnnotation: "20m", names.StandbyLevelAnnotation: "frozen"},
			settings.Default().Autoscaler, &keep.Config{Worth: keep.DefaultWorth, ColdStart: usualColdStart, Memory: UsualMemory,
				MaxTime: 20 * time.Minute, MaxPods: 3, Always: true}, standby.Frozen},
	} {
		got, problems := resolve(autoscaler(c.annotations), c.settings, time.Minute)
		switch {
		case len(problems) > 0:
			t.Errorf("%s: %q", behaviour, problems)
		case (got.Standby == nil) != (c.want == nil):
			t.Errorf("%s: %+v", behaviour, got.Standby)
		case c.want != nil && (got.Standby.Config != *c.want || got.Standby.Level != c.level || got.Standby.After != 10*time.Second):
			t.Errorf("%s: %+v, want %+v", behaviour, got.Standby, c.want)
		}
	}
}

func resolve(pa *v1alpha1.PodAutoscaler, a rules.Autoscaling, progressDeadline time.Duration) (*loop.Spec, []string) {
	return Resolve(pa, &rules.Config{Autoscaling: a, ProgressDeadline: progressDeadline})
}
