package names

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
)

func TestChildNamesFitAndStayApart(t *testing.T) {
	long := strings.Repeat("a", 60)
	for _, test := range []struct{ got, want string }{
		{GeneratedRevision("hello", 1), "hello-00001"},
		{GeneratedRevision("hello", 123456), "hello-123456"},
		{Deployment("hello-00001"), "hello-00001-deployment"},
		{PrivateService("hello-00001"), "hello-00001-private"},
		{PublicService("hello-00001"), "hello-00001"},
		{PodAutoscaler("hello-00001"), "hello-00001"},
		{RouteCertificate("uid", "", false), "route-uid"},
		{RouteCertificate("uid", "", true), "route-uid-local"},
		{RouteCertificate(types.UID("uid"), "blue", false), "route-uid-69140905"},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
	one, other := Deployment(long), Deployment(long+"b")
	if len(one) > 63 || len(other) > 63 || one == other || !strings.HasSuffix(one, "-deployment") {
		t.Errorf("got %s and %s", one, other)
	}
}

func TestScalingAnnotations(t *testing.T) {
	key := func(suffix string) string { return AutoscalingGroup + "/" + suffix }
	limits := rules.Autoscaling{Class: ClassKPA}
	for _, test := range []struct {
		name        string
		annotations map[string]string
		limits      rules.Autoscaling
		want        string // part of the error; empty means none
	}{
		{"nothing", nil, limits, ""},
		{"kebab wins over camel", map[string]string{key("min-scale"): "1", key("minScale"): "junk"}, limits, ""},
		{"camel alone counts", map[string]string{key("minScale"): "junk"}, limits, "invalid value: junk: " + key("minScale")},
		{"a negative scale", map[string]string{key("min-scale"): "-1"}, limits, "expected 0 <= -1 <= 2147483647: " + key("min-scale")},
		{"a scale beyond 32 bits", map[string]string{key("max-scale"): "2147483648"}, limits, "expected 0 <= 2147483648"},
		{"max 0 is unlimited", map[string]string{key("min-scale"): "5", key("max-scale"): "0"}, limits, ""},
		{"max below min", map[string]string{key("min-scale"): "5", key("max-scale"): "4"}, limits, "max-scale=4 is less than min-scale=5"},
		{"min above the configured max", map[string]string{key("min-scale"): "5"}, rules.Autoscaling{MaxScale: 3}, "max-scale=3 is less than min-scale=5"},
		{"unlimited under a limit", map[string]string{key("max-scale"): "0"}, rules.Autoscaling{MaxScaleLimit: 9}, "max-scale=0 (unlimited)"},
		{"max at the limit", map[string]string{key("max-scale"): "9"}, rules.Autoscaling{MaxScaleLimit: 9}, ""},
		{"max over the limit", map[string]string{key("max-scale"): "10"}, rules.Autoscaling{MaxScaleLimit: 9}, "expected 1 <= 10 <= 9"},
		{"initial 0", map[string]string{key("initial-scale"): "0"}, limits, "allow-zero-initial-scale"},
		{"initial 0 allowed", map[string]string{key("initial-scale"): "0"}, rules.Autoscaling{AllowZeroInitialScale: true}, ""},
		{"activation 1", map[string]string{key("activation-scale"): "1"}, limits, "expected 2 <= 1"},
		{"activation above max", map[string]string{key("activation-scale"): "5", key("max-scale"): "4"}, limits, "activation-scale=5 is greater than max-scale=4"},
		{"activation below min", map[string]string{key("activation-scale"): "2", key("min-scale"): "3"}, limits, "activation-scale=2 is less than min-scale=3"},
		{"window at its bounds", map[string]string{key("window"): "6s"}, limits, ""},
		{"window too short", map[string]string{key("window"): "5s"}, limits, "expected 6s <= 5s <= 1h0m0s"},
		{"window with a fraction", map[string]string{key("window"): "6500ms"}, limits, "must be whole seconds"},
		{"retention with a fraction", map[string]string{key("scale-to-zero-pod-retention-period"): "1500ms"}, limits, ""},
		{"delay too long", map[string]string{key("scale-down-delay"): "61m"}, limits, "expected 0s <= 61m <= 1h0m0s"},
		{"burst -1", map[string]string{key("target-burst-capacity"): "-1"}, limits, ""},
		{"burst -0.5", map[string]string{key("target-burst-capacity"): "-0.5"}, limits, "must be -1"},
		{"target too small", map[string]string{key("target"): "0.009"}, limits, "must be at least 0.01"},
		{"target not a number", map[string]string{key("target"): "NaN"}, limits, "must be a number"},
		{"utilization 0", map[string]string{key("target-utilization-percentage"): "0"}, limits, "expected 1 <= 0 <= 100"},
		{"panic window 101", map[string]string{key("panic-window-percentage"): "101"}, limits, "expected 1 <= 101 <= 100"},
		{"cpu without the HPA class", map[string]string{key("metric"): "cpu"}, limits, "invalid value: cpu"},
		{"cpu with the HPA class", map[string]string{key("metric"): "cpu", key("class"): ClassHPA}, limits, ""},
		{"cpu with the HPA class by default", map[string]string{key("metric"): "cpu"}, rules.Autoscaling{Class: ClassHPA}, ""},
		{"an own metric with the HPA class", map[string]string{key("metric"): "queue", key("class"): ClassHPA}, limits, ""},
		{"anything with a foreign class", map[string]string{key("metric"): "x", key("class"): "keda.example.com"}, limits, ""},
		{"an unknown class of knative.dev", map[string]string{key("class"): "x.autoscaling.knative.dev"}, limits, "invalid value: x.autoscaling.knative.dev"},
		{"an unknown aggregation", map[string]string{key("metric-aggregation-algorithm"): "x", key("class"): ClassKPA}, limits, "invalid value: x"},
		{"a number as the learned target", map[string]string{AdaptiveTargetAnnotation: "10"}, limits, `the only value is "auto"`},
		{"a burst of no pod", map[string]string{ScaleUpBurstAnnotation: "0"}, limits, "must be at least 1"},
		{"a burst of 7 pods", map[string]string{ScaleUpBurstAnnotation: "7", ScaleUpPerSecondAnnotation: "0.5"}, limits, ""},
		{"an activation scale of 1", map[string]string{key("activation-scale"): "1"}, limits, "expected 2 <= 1"},
		{"standby", map[string]string{StandbyAnnotation: "auto", StandbyLevelAnnotation: "frozen", StandbyForAnnotation: "90m", ScaleBufferAnnotation: "2"}, limits, ""},
		{"standby of a number of pods", map[string]string{StandbyAnnotation: "0", StandbyForAnnotation: "auto"}, limits, ""},
		{"standby of another word", map[string]string{StandbyAnnotation: "on"}, limits, "invalid value: on: " + StandbyAnnotation},
		{"standby of fewer than no pods", map[string]string{StandbyAnnotation: "-1"}, limits, "invalid value: -1: " + StandbyAnnotation},
		{"an unknown level", map[string]string{StandbyLevelAnnotation: "checkpointed"}, limits, `"checkpointed" is not one of warm, frozen, compressed`},
		{"hooks", map[string]string{StandbySleepHookAnnotation: "POST :8000/sleep?level=1 5s", StandbyWakeHookAnnotation: "/wake"}, limits, ""},
		{"a hook that is no path", map[string]string{StandbySleepHookAnnotation: "http://elsewhere/"}, limits, StandbySleepHookAnnotation},
		{"a hook at queue-proxy", map[string]string{StandbyWakeHookAnnotation: ":8012/wake"}, limits, "port 8012 is queue-proxy's"},
		{"a hook at the node agent's port", map[string]string{StandbyWakeHookAnnotation: ":8023/wake"}, limits, "port 8023 is queue-proxy's"},
		{"a hook for ever", map[string]string{StandbyWakeHookAnnotation: "/wake 24h"}, limits, "is not a duration from 1ms to 1m0s"},
		{"busy for up to a day", map[string]string{BusyForAnnotation: "24h"}, limits, ""},
		{"busy for a year", map[string]string{BusyForAnnotation: "8760h"}, limits, "expected 1s <= 8760h <= 24h0m0s: " + BusyForAnnotation},
		{"busy for no time", map[string]string{BusyForAnnotation: "0s"}, limits, "expected 1s <= 0s <= 24h0m0s: " + BusyForAnnotation},
		{"busy for a while", map[string]string{BusyForAnnotation: "a while"}, limits, `must be a duration such as "90s"`},
		{"busy, and scaled by others", map[string]string{BusyForAnnotation: "1m", key("class"): ClassHPA, key("metric"): "cpu"}, limits, "only the class " + ClassKPA + " keeps pods"},
		{"busy, and scaled by others by default", map[string]string{BusyForAnnotation: "1m"}, rules.Autoscaling{Class: ClassHPA}, "only the class " + ClassKPA},
		{"no time asleep", map[string]string{StandbyForAnnotation: "0s"}, limits, "must be at least 1s"},
		{"asleep for longer than is allowed", map[string]string{StandbyForAnnotation: "5h"}, rules.Autoscaling{StandbyMax: 4 * time.Hour}, "expected 1s <= 5h0m0s <= 4h0m0s: " + StandbyForAnnotation},
		{"a negative buffer", map[string]string{ScaleBufferAnnotation: "-1"}, limits, "expected 0 <= -1"},
		{"schedules", map[string]string{StandbyScheduleAnnotation: "0 8 * * * for 1h = 2", MinScaleScheduleAnnotation: "TZ=Asia/Tokyo 0 8 * * * for 1h = 2"}, limits, ""},
		{"a schedule without a count", map[string]string{StandbyScheduleAnnotation: "0 8 * * *"}, limits, "0 8 * * *: " + StandbyScheduleAnnotation},
		{"a schedule on Mars", map[string]string{MinScaleScheduleAnnotation: "TZ=Mars/Base 0 8 * * * for 1h = 2"}, limits, "not an IANA time zone"},
		{"a deadline with a fraction", map[string]string{ProgressDeadlineAnnotation: "1500ms"}, limits, "must be whole seconds"},
		{"an unknown aggregation without a class", map[string]string{key("metric-aggregation-algorithm"): "x"}, limits, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := ValidateScaling(test.annotations, &rules.Config{Autoscaling: test.limits})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestParsedScalingIsTyped(t *testing.T) {
	s, err := ScalingOf(map[string]string{
		MinScaleAnnotation: "2", AutoscalingGroup + "/targetBurstCapacity": "-1", WindowAnnotation: "90s",
		MetricAggregationAnnotation: "weightedExponential", MaxScaleAnnotation: "junk",
	}, &rules.Config{})
	if err == nil || s.MaxScale != nil {
		t.Errorf("junk reads as %v, %v", s.MaxScale, err)
	}
	if *s.MinScale != 2 || s.TargetBurstCapacity != -1 || s.Window.Seconds() != 90 || s.Aggregation != AggregationWeightedExponential {
		t.Errorf("got %+v", s)
	}
}

func TestStandby(t *testing.T) {
	a := rules.Autoscaling{Standby: rules.StandbyAuto, StandbyMax: time.Hour}
	for _, test := range []struct {
		why         string
		annotations map[string]string
		want        string
	}{
		{"the setting", nil, "auto 0 compressed 1h0m0s"},
		{"off", map[string]string{StandbyAnnotation: "off"}, "off 0 compressed 1h0m0s"},
		{"a count", map[string]string{StandbyAnnotation: "3", StandbyLevelAnnotation: "warm"}, "count 3 warm 1h0m0s"},
		{"the operator bounds the time", map[string]string{StandbyForAnnotation: "5h"}, "auto 0 compressed 1h0m0s"},
		{"a shorter time", map[string]string{StandbyForAnnotation: "5m"}, "auto 0 compressed 5m0s"},
		{"time by the policy", map[string]string{StandbyForAnnotation: "auto"}, "auto 0 compressed 1h0m0s"},
		{"junk counts as absent", map[string]string{StandbyAnnotation: "x", StandbyLevelAnnotation: "x", StandbyForAnnotation: "x"}, "auto 0 compressed 1h0m0s"},
	} {
		parsed, _ := ScalingOf(test.annotations, &rules.Config{Autoscaling: a})
		s := parsed.Standby
		got := fmt.Sprint(s.Mode, " ", s.MaxPods, " ", s.Level, " ", s.MaxTime)
		if got != test.want {
			t.Errorf("%s: got %s, want %s", test.why, got, test.want)
		}
	}
}

// A Service may have what is read there, and nothing else about autoscaling.
func TestLiveAnnotations(t *testing.T) {
	for _, test := range []struct {
		key, value string
		effect     []string
		want       string
	}{
		{StandbyScheduleAnnotation, "0 8 * * * for 1h = 2", LiveAnnotations, ""},
		{StandbyScheduleAnnotation, "0 8 * * * for 1h = 2", nil, "invalid key name"},
		{MinScaleScheduleAnnotation, "always", LiveAnnotations, "invalid value: always: " + MinScaleScheduleAnnotation},
		{StandbyAnnotation, "auto", LiveAnnotations, "spec.template.metadata.annotations"},
		{MinScaleAnnotation, "1", LiveAnnotations, "spec.template.metadata.annotations"},
		{"autoscaling.example.com/standby", "auto", nil, ""},
	} {
		annotations := map[string]string{test.key: test.value}
		err := ValidateNoScaling(annotations, test.effect).Also(ValidateLive(annotations))
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s=%s: got %v, want %q", test.key, test.value, err, test.want)
		}
	}
}

// What would take the parser of quantities seconds, or longer than anybody waits, is refused at a
// glance.
func TestQuantitiesThatTakeForeverAreRefused(t *testing.T) {
	for _, text := range []string{"1e-999999999", "1E-2000000000", "0." + strings.Repeat("0", 1000) + "1"} {
		sidecar, err := read(map[string]string{SidecarCPULimitAnnotation: text}, (*reader).sidecar)
		if err == nil || len(sidecar.Limits) > 0 {
			t.Errorf("%.20s was accepted as %v", text, sidecar.Limits)
		}
	}
	if sidecar, err := read(map[string]string{SidecarCPULimitAnnotation: "1e3"}, (*reader).sidecar); err != nil || sidecar.Limits.Cpu().Value() != 1000 {
		t.Errorf("1e3 was read as %v (%v)", sidecar.Limits, err)
	}
}

// Whatever stands in an annotation, parsing ends, and what it accepts is within the bounds.
func FuzzAnnotations(f *testing.F) {
	for _, seed := range []string{"", "1", "-1", "1e400", "NaN", "6s", "9999999h", "0x10", "1_000", "∞", "100m", "-64Mi", "streaming", "WEB_CONCURRENCY", "PORT", "linear", "rps", "cpu", "Redirected", "true", "x.knative.dev"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		annotations := map[string]string{
			MinScaleAnnotation: value, MaxScaleAnnotation: value, InitialScaleAnnotation: value, ActivationScaleAnnotation: value,
			TargetAnnotation: value, TargetUtilizationAnnotation: value, TargetBurstCapacityAnnotation: value, WindowAnnotation: value,
			ScaleDownDelayAnnotation: value, PanicWindowAnnotation: value, PanicThresholdAnnotation: value, ScaleToZeroRetentionAnnotation: value,
			RolloutDurationAnnotation: value, ProgressDeadlineAnnotation: value,
			SidecarCPURequestAnnotation: value, SidecarCPULimitAnnotation: value, SidecarMemoryRequestAnnotation: value,
			SidecarMemoryLimitAnnotation: value, SidecarStorageRequestAnnotation: value, SidecarStorageLimitAnnotation: value,
			SidecarResourcePercentAnnotation: value, ClassAnnotation: value, MetricAnnotation: value, MetricAggregationAnnotation: value,
			AdaptiveTargetAnnotation: value, ScaleUpBurstAnnotation: value, ScaleUpPerSecondAnnotation: value,
			HTTPProtocolAnnotation: value, DisableTLSAnnotation: value, ResponseTimeoutActionAnnotation: value,
			ShimAnnotation: value, ConcurrencyVariableAnnotation: value, RecordsAnnotation: value,
			WaitingPageAnnotation: value, WaitingPageFromAnnotation: value, WaitingPageAfterAnnotation: value,
		}
		legal := rules.Config{Autoscaling: rules.Autoscaling{ScaleUpBurst: 1, ScaleUpPerSecond: 1, StableWindow: MinStableWindow}}
		s, _ := ScalingOf(annotations, &legal)
		if !(s.ScaleUpBurst >= 1) || !(s.ScaleUpPerSecond > 0) ||
			s.AdaptiveTarget != (value == AdaptiveTarget) {
			t.Errorf("%q was accepted as %+v", value, s)
		}
		if s.MinScale != nil && *s.MinScale < 0 || s.ActivationScale != nil && *s.ActivationScale < 2 ||
			s.Window < MinStableWindow || s.Window > MaxStableWindow ||
			s.Target != nil && !(*s.Target >= MinTarget) || s.TargetUtilization != nil && !(*s.TargetUtilization >= 1 && *s.TargetUtilization <= 100) ||
			!(s.TargetBurstCapacity == -1 || s.TargetBurstCapacity >= 0) {
			t.Errorf("%q was accepted as %+v", value, s)
		}
		mode, wrongMode := read(annotations, (*reader).shim)
		variable, wrongVariable := read(annotations, (*reader).concurrencyVariable)
		if wrongMode == nil && !slices.Contains(ShimModes, mode) || wrongVariable == nil && variable != value {
			t.Errorf("%q was accepted as %q, %q", value, mode, variable)
		}
		if d, _ := RolloutDuration(annotations); d != nil && *d < 0 {
			t.Errorf("%q was accepted as %v", value, *d)
		}
		sidecar, _ := read(annotations, (*reader).sidecar)
		for _, list := range []corev1.ResourceList{sidecar.Requests, sidecar.Limits} {
			for name, q := range list {
				if q.Sign() < 0 {
					t.Errorf("%q was accepted as %s of %v", value, name, q)
				}
			}
		}
		if a := s.Aggregation; a != "" && a != AggregationLinear && a != AggregationWeightedExponential {
			t.Errorf("%q was read as the aggregation %q", value, a)
		}
		if protocol, err := HTTPProtocol(annotations); protocol != "enabled" && protocol != "redirected" && err == nil {
			t.Errorf("%q was accepted as the protocol %q", value, protocol)
		}
		if disabled, err := TLSDisabled(annotations); disabled && err != nil {
			t.Errorf("%q is refused and counts all the same", value)
		}
		// Of the class that is Ebb's own, whatever reads as no metric or no aggregation is refused.
		metric := map[string]string{ClassAnnotation: ClassKPA, MetricAnnotation: value}
		if err := ValidateScaling(metric, &rules.Config{}); (err == nil) != (value == MetricConcurrency || value == MetricRPS) {
			t.Errorf("the metric %q: %v", value, err)
		}
		aggregation := map[string]string{ClassAnnotation: ClassKPA, MetricAggregationAnnotation: value}
		if err := ValidateScaling(aggregation, &rules.Config{}); (err == nil) != (s.Aggregation != "") {
			t.Errorf("the aggregation %q: %v", value, err)
		}
		for _, problem := range []*apis.FieldError{ValidateTemplateAnnotations(annotations, &rules.Config{}), ValidateNoScaling(annotations, LiveAnnotations)} {
			_ = problem.Error() // whatever is wrong can be said
		}
	})
}

// read reads a part of annotations, and returns what is wrong with it.
func read[T any](annotations map[string]string, part func(*reader) T) (T, *apis.FieldError) {
	r := &reader{annotations: annotations}
	return part(r), r.errs
}
