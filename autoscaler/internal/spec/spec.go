// Package spec resolves a PodAutoscaler and the settings into what the loop runs on.
//
// Owns: nothing. Reads: PodAutoscalers from a lister, the settings, and who owns which revision.
// Writes: nothing. Never: fails on a value that makes no sense; it takes the default and says so,
// because a revision that is not scaled is worse than one scaled by defaults.
package spec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/settings"
)

// AdaptiveTargetAnnotation, with the value "auto", lets the target be learned.
const AdaptiveTargetAnnotation = "autoscaling.ebb.dev/target"

// ScaleUpBurstAnnotation and ScaleUpPerSecondAnnotation bound how many pods the service may add,
// instead of the keys of the same names in config-autoscaler.
const (
	ScaleUpBurstAnnotation     = "autoscaling.ebb.dev/scale-up-burst"
	ScaleUpPerSecondAnnotation = "autoscaling.ebb.dev/scale-up-per-second"
)

// AdaptiveTarget is the value of AdaptiveTargetAnnotation that switches learning on.
const AdaptiveTarget = "auto"

// longestPathHold bounds how long the activators stay in the path after they were last needed.
const longestPathHold = time.Minute

// Ours reports whether the PodAutoscaler is of the class that this process decides.
func Ours(pa *v1alpha1.PodAutoscaler, a settings.Autoscaler) bool {
	return pa.Class(a.Class) == names.ClassKPA
}

// Resolve returns the Spec of a PodAutoscaler, and what about it made no sense.
func Resolve(pa *v1alpha1.PodAutoscaler, a settings.Autoscaler, progressDeadline time.Duration) (*loop.Spec, []string) {
	r := &reader{annotations: pa.Annotations}
	unreachable := pa.Spec.Reachability == v1alpha1.ReachabilityUnreachable

	metric := decide.Concurrency
	switch name := r.text(names.MetricAnnotation); name {
	case "", names.MetricConcurrency:
	case names.MetricRPS:
		metric = decide.RequestsPerSecond
	default:
		r.problem(names.MetricAnnotation, name, "not a metric of this class")
	}
	algorithm := window.Linear
	switch name := r.text(names.MetricAggregationAnnotation, "metricAggregationAlgorithm"); name {
	case "", names.AggregationLinear:
	case names.AggregationWeightedExponential, names.AggregationWeightedExponentialAlt:
		algorithm = window.WeightedExponential
	default:
		r.problem(names.MetricAggregationAnnotation, name, "not an algorithm")
	}

	concurrency := float64(max(pa.Spec.ContainerConcurrency, 0))
	total, target := decide.Target(decide.TargetInput{
		Metric: metric, ContainerConcurrency: concurrency,
		Annotation:               r.number(0, 0.01, math.MaxInt32, names.TargetAnnotation),
		UtilizationAnnotation:    r.number(0, 1, 100, names.TargetUtilizationAnnotation, "targetUtilizationPercentage") / 100,
		ConcurrencyDefault:       a.ConcurrencyTargetDefault,
		ConcurrencyUtilization:   a.ConcurrencyTargetUtilization,
		RequestsPerSecondDefault: a.RequestsPerSecondTarget,
	})
	stable := r.duration(a.StableWindow, 6*time.Second, time.Hour, names.WindowAnnotation)
	burst := r.number(a.TargetBurstCapacity, -1, math.MaxInt32, names.TargetBurstCapacityAnnotation, "targetBurstCapacity")
	if burst < 0 && burst != -1 {
		r.problem(names.TargetBurstCapacityAnnotation, fmt.Sprint(burst), "neither -1 nor at least 0")
		burst = a.TargetBurstCapacity
	}
	low := r.whole(a.MinScale, names.MinScaleAnnotation, "minScale")
	high := r.whole(a.MaxScale, names.MaxScaleAnnotation, "maxScale")
	if limit := a.MaxScaleLimit; limit > 0 && (high == 0 || high > limit) {
		high = limit
	}
	if high > 0 && low > high {
		r.problem(names.MinScaleAnnotation, strconv.Itoa(int(low)), fmt.Sprintf("above the maximum of %d, which holds", high))
		low = high
	}
	initial := r.whole(a.InitialScale, names.InitialScaleAnnotation, "initialScale")
	if initial == 0 && !a.AllowZeroInitialScale {
		r.problem(names.InitialScaleAnnotation, "0", "not allowed by allow-zero-initial-scale")
		initial = 1
	}
	activation := r.whole(0, names.ActivationScaleAnnotation)
	for _, c := range []struct {
		key   string
		value *int32
	}{{names.InitialScaleAnnotation, &initial}, {names.ActivationScaleAnnotation, &activation}} {
		if high > 0 && *c.value > high {
			r.problem(c.key, strconv.Itoa(int(*c.value)), fmt.Sprintf("above the maximum of %d, which holds", high))
			*c.value = high
		}
	}
	pathHold := min(stable, longestPathHold)
	if burst == 0 {
		pathHold = 0
	}

	owner := pa.Labels[names.ServiceLabel]
	if owner == "" {
		owner = pa.Name
	}
	s := &loop.Spec{
		Target:  loop.Target{APIVersion: pa.Spec.ScaleTargetRef.APIVersion, Kind: pa.Spec.ScaleTargetRef.Kind, Name: pa.Spec.ScaleTargetRef.Name},
		Service: pa.Labels[names.ServiceLabel], Configuration: pa.Labels[names.ConfigurationLabel],
		H2C:   pa.Spec.ProtocolType == v1alpha1.ProtocolH2C,
		Found: found(pa),
	}
	s.Config = revision.Config{
		UID: string(pa.UID), Generation: pa.Generation, BudgetOwner: pa.Namespace + "/" + owner,
		Algorithm: algorithm,
		PanicWindow: decide.PanicWindow(stable, r.number(a.PanicWindowPercentage, 1, 100,
			names.PanicWindowAnnotation, "panicWindowPercentage")),
		Scraped:  burst != -1,
		Adaptive: r.adaptive(metric, burst),
		ScaleUp: revision.Rate{Burst: r.number(a.ScaleUpBurst, 1, math.MaxInt32, ScaleUpBurstAnnotation),
			PerSecond: r.number(a.ScaleUpPerSecond, 0.01, math.MaxInt32, ScaleUpPerSecondAnnotation)},
		Formula: decide.Config{
			Total: total, Target: target, Metric: metric, ContainerConcurrency: concurrency,
			TargetBurstCapacity: burst, ActivatorCapacity: a.ActivatorCapacity,
			MaxScaleUpRate: a.MaxScaleUpRate, MaxScaleDownRate: a.MaxScaleDownRate,
			ActivationScale: activation,
			PanicThreshold: r.number(a.PanicThresholdPercentage, 110, 1000,
				names.PanicThresholdAnnotation, "panicThresholdPercentage") / 100,
			StableWindow:   stable,
			ScaleDownDelay: r.duration(a.ScaleDownDelay, 0, time.Hour, names.ScaleDownDelayAnnotation, "scaleDownDelay"),
			Reachable:      !unreachable,
		},
		Zero: zero.Config{
			Min: low, Max: high, Initial: initial, Unreachable: unreachable,
			ScaleToZero: a.EnableScaleToZero, AlwaysProxied: burst == -1,
			StableWindow: stable, Grace: a.ScaleToZeroGracePeriod,
			Retention: r.duration(a.ScaleToZeroPodRetentionPeriod, 0, time.Hour,
				names.ScaleToZeroRetentionAnnotation, "scaleToZeroPodRetentionPeriod"),
			ProgressDeadline: r.duration(progressDeadline, 0, math.MaxInt64, names.ProgressDeadlineAnnotation),
			PathHold:         pathHold,
		},
	}
	return s, r.problems
}

// found reads back what was written by an earlier process. A PodAutoscaler that was made anew for a
// revision that had its pods once begins where that one ended: at zero, behind the activators.
func found(pa *v1alpha1.PodAutoscaler) *revision.State {
	status := &pa.Status
	if pa.Annotations[names.InitializedAnnotation] == "true" && len(status.Conditions) == 0 {
		return &revision.State{Zero: zero.State{Initialized: true, Proxied: true, Active: zero.No, ActiveReason: zero.NoTraffic}}
	}
	f := &revision.State{Desired: zero.Unknown}
	if status.DesiredScale != nil {
		f.Desired = *status.DesiredScale
	}
	if l := status.Learned; l != nil {
		// What is no number is no lesson, and for whoever decides to refuse.
		figure := func(text string) float64 {
			if f, err := strconv.ParseFloat(text, 64); err == nil {
				return f
			}
			return math.NaN()
		}
		f.Learned = decide.Learned{Concurrency: figure(l.Concurrency), Throughput: figure(l.Throughput), At: l.Time.Unix()}
	}
	f.Zero.Initialized = status.IsScaleTargetInitialized()
	f.Zero.Proxied = status.Mode == v1alpha1.ModeProxy
	if c := status.GetCondition(v1alpha1.PodAutoscalerConditionActive); c != nil {
		f.Zero.ActiveSince, f.Zero.ActiveReason = c.LastTransitionTime.Inner.Time, c.Reason
		switch c.Status {
		case corev1.ConditionTrue:
			f.Zero.Active = zero.Yes
		case corev1.ConditionFalse:
			f.Zero.Active = zero.No
		}
	}
	return f
}

// reader reads annotations and notes those that make no sense.
type reader struct {
	annotations map[string]string
	problems    []string
}

func (r *reader) problem(key, value, why string) {
	r.problems = append(r.problems, fmt.Sprintf("annotation %s=%q is ignored: %s", key, value, why))
}

// text returns the value of the first key that is set; alternates belong to the group of the first
// key.
func (r *reader) text(key string, alternates ...string) string {
	if value, ok := r.annotations[key]; ok {
		return value
	}
	group, _, _ := strings.Cut(key, "/")
	for _, one := range alternates {
		if value, ok := r.annotations[group+"/"+one]; ok {
			return value
		}
	}
	return ""
}

// adaptive reports whether the target is to be learned, and notes why it is not although it was
// asked for.
func (r *reader) adaptive(metric decide.Metric, burst float64) bool {
	value := r.text(AdaptiveTargetAnnotation)
	why := ""
	switch {
	case value == "":
		return false
	case value != AdaptiveTarget:
		why = fmt.Sprintf("the only value is %q, a number belongs into %s", AdaptiveTarget, names.TargetAnnotation)
	case metric != decide.Concurrency:
		why = "a target of requests per second cannot be learned"
	case burst == -1:
		why = "with a target-burst-capacity of -1 pods are not scraped, so nothing can be learned"
	default:
		return true
	}
	r.problem(AdaptiveTargetAnnotation, value, why)
	return false
}

func (r *reader) number(otherwise, low, high float64, key string, alternates ...string) float64 {
	text := r.text(key, alternates...)
	if text == "" {
		return otherwise
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= low && f <= high) {
		r.problem(key, text, fmt.Sprintf("not a number from %v to %v", low, high))
		return otherwise
	}
	return f
}

func (r *reader) whole(otherwise int32, key string, alternates ...string) int32 {
	text := r.text(key, alternates...)
	if text == "" {
		return otherwise
	}
	i, err := strconv.ParseInt(text, 10, 32)
	if err != nil || i < 0 {
		r.problem(key, text, "not a whole number of at least 0")
		return otherwise
	}
	return int32(i)
}

func (r *reader) duration(otherwise, low, high time.Duration, key string, alternates ...string) time.Duration {
	text := r.text(key, alternates...)
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < low || d > high {
		r.problem(key, text, fmt.Sprintf("not a duration from %s to %s", low, high))
		return otherwise
	}
	return d
}
