// Package spec resolves a PodAutoscaler and the settings into what the loop runs on.
//
// Owns: nothing. Reads: PodAutoscalers from a lister, the settings, and who owns which revision.
// Writes: nothing. Never: fails on an invalid value. It uses the default and says so, because a
// revision that is not scaled is worse than one that is scaled by defaults.
package spec

import (
	"fmt"
	"math"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/window"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/settings"
)

// maxPathHold bounds how long the activators stay in the path after they were last needed.
const maxPathHold = time.Minute

// Ours reports whether the PodAutoscaler has the class of this autoscaler.
func Ours(pa *v1alpha1.PodAutoscaler, a settings.Autoscaler) bool {
	return pa.Class(a.Class) == names.ClassKPA
}

// Resolve returns the Spec of a PodAutoscaler, and what it ignored of its annotations and why.
func Resolve(pa *v1alpha1.PodAutoscaler, c *rules.Config) (*loop.Spec, []string) {
	a := c.Autoscaling
	scaling, errs := names.ScalingOf(pa.Annotations, c)
	scales, overridden := scaling.Scales(a)
	problems := ignored(pa.Annotations, errs.Also(overridden))
	ignore := func(key, why string) {
		problems = append(problems, problem(pa.Annotations, key, why))
	}

	formula := formulaOf(pa, scaling, a, ignore)
	told := len(scaling.Told()) > 0
	formula.ActivationScale = scales.Activation
	burst := formula.TargetBurstCapacity
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
		UID: string(pa.UID), Generation: pa.Generation, Name: pa.Namespace + "/" + pa.Name, BudgetOwner: pa.Namespace + "/" + owner,
	}
	s.Rules = &revision.Rules{
		Algorithm:   algorithm(pa.Annotations, scaling, ignore),
		PanicWindow: decide.PanicWindow(formula.StableWindow, scaling.PanicWindow),
		Scraped:     burst != names.UnlimitedTargetBurst || told || scaling.BusyFor > 0,
		BusyFor:     scaling.BusyFor,
		Adaptive:    scaling.AdaptiveTarget && canLearn(formula, ignore),
		ScaleUp:     revision.Rate{Burst: scaling.ScaleUpBurst, PerSecond: scaling.ScaleUpPerSecond},
		Formula:     formula,
		Standby:     standbyOf(scaling, a), Buffer: scaling.Buffer, MinSchedule: scaling.MinScaleSchedule,
		Zero: zero.Config{
			Min: scales.Min, Max: scales.Max, Initial: scales.Initial, Unreachable: !formula.Reachable,
			ScaleToZero: a.EnableScaleToZero, AlwaysProxied: burst == names.UnlimitedTargetBurst,
			StableWindow: formula.StableWindow, Grace: a.ScaleToZeroGracePeriod,
			Retention:        scaling.ScaleToZeroRetention,
			ProgressDeadline: scaling.ProgressDeadline,
		},
	}
	if burst != 0 {
		s.Zero.PathHold = min(formula.StableWindow, maxPathHold)
	}
	return s, problems
}

// formulaOf returns the configuration of the formula without the scales.
func formulaOf(pa *v1alpha1.PodAutoscaler, s names.Scaling, a settings.Autoscaler, ignore func(key, why string)) decide.Config {
	metric := decide.Concurrency
	switch s.Metric {
	case "", names.MetricConcurrency:
	case names.MetricRPS:
		metric = decide.RequestsPerSecond
	default:
		ignore(names.MetricAnnotation, "this class knows only concurrency and rps")
	}
	concurrency := float64(max(pa.Spec.ContainerConcurrency, 0))
	metric, others := metricsOf(&s, metric)
	total, target := decide.Target(decide.TargetInput{
		Metric: metric, ContainerConcurrency: concurrency,
		Annotation:               ptr.Deref(s.Target, 0),
		UtilizationAnnotation:    ptr.Deref(s.TargetUtilization, 0) / 100,
		ConcurrencyDefault:       a.ConcurrencyTargetDefault,
		ConcurrencyUtilization:   a.ConcurrencyTargetUtilization,
		RequestsPerSecondDefault: a.RequestsPerSecondTarget,
	})
	return decide.Config{
		Total: total, Target: target, Metric: metric, Others: others, ContainerConcurrency: concurrency,
		TargetBurstCapacity: s.TargetBurstCapacity,
		ActivatorCapacity:   a.ActivatorCapacity,
		MaxScaleUpRate:      a.MaxScaleUpRate, MaxScaleDownRate: a.MaxScaleDownRate,
		PanicThreshold: s.PanicThreshold / 100,
		StableWindow:   s.Window,
		ScaleDownDelay: s.ScaleDownDelay,
		Reachable:      pa.Spec.Reachability != v1alpha1.ReachabilityUnreachable,
	}
}

// metricsOf returns the metric that the list names first of concurrency and requests per second, or
// otherwise the given one, and the rest of the list. The target of that metric goes to s.
func metricsOf(s *names.Scaling, first decide.Metric) (decide.Metric, []decide.Other) {
	var others []decide.Other
	named, place := false, 0
	for _, m := range s.Metrics {
		o := decide.Other{Name: m.Name, Metric: decide.Told, Place: place, Target: m.Target, Shared: m.Shared}
		switch {
		case m.Told():
			place++
		case m.Name == names.MetricRPS:
			o.Metric = decide.RequestsPerSecond
		default:
			o.Metric = decide.Concurrency
		}
		if m.Told() || named {
			others = append(others, o)
			continue
		}
		// A target in the list is what is aimed for, not a capacity.
		named, first = true, o.Metric
		s.Target, s.TargetUtilization = &m.Target, new(100.0)
	}
	return first, others
}

// Defaults for pods without measurements: the time of a cold start, and memory in MiB.
const (
	usualColdStart = time.Second
	UsualMemory    = 64
)

// standbyOf returns how pods sleep, nil if they do not.
func standbyOf(s names.Scaling, a settings.Autoscaler) *revision.Standby {
	asked := s.Standby
	if asked.Mode == rules.StandbyOff {
		return nil
	}
	out := &revision.Standby{
		Config: keep.Config{Worth: keep.DefaultWorth, ColdStart: usualColdStart, Memory: UsualMemory, MaxTime: asked.MaxTime, MaxPods: -1},
		After:  a.StandbyAfter, Level: asked.Level, Schedule: s.StandbySchedule,
	}
	if asked.Mode == rules.StandbyCount {
		out.MaxPods, out.Always = asked.MaxPods, true
	}
	return out
}

func algorithm(annotations map[string]string, s names.Scaling, ignore func(key, why string)) window.Algorithm {
	if s.Aggregation == names.AggregationWeightedExponential {
		return window.WeightedExponential
	}
	if text, key, _ := names.Lookup(annotations, names.MetricAggregationAnnotation); text != "" && s.Aggregation == "" {
		ignore(key, "not an algorithm")
	}
	return window.Linear
}

// canLearn reports whether the target can be learned with this formula.
func canLearn(c decide.Config, ignore func(key, why string)) bool {
	switch {
	case c.Metric != decide.Concurrency:
		ignore(names.AdaptiveTargetAnnotation, "a target in requests per second cannot be learned")
	case c.TargetBurstCapacity == names.UnlimitedTargetBurst:
		ignore(names.AdaptiveTargetAnnotation, "with a target-burst-capacity of -1 pods are not scraped, so nothing can be learned")
	case len(c.Others) > 0:
		ignore(names.AdaptiveTargetAnnotation, "a target is learned for concurrency alone")
	default:
		return true
	}
	return false
}

// ignored describes the annotations that a parser rejected.
func ignored(annotations map[string]string, errs *apis.FieldError) []string {
	var problems []string
	for _, err := range errs.WrappedErrors() {
		why := err.Message
		if err.Details != "" {
			why = err.Details
		}
		for _, key := range err.Paths {
			problems = append(problems, problem(annotations, key, why))
		}
	}
	return problems
}

func problem(annotations map[string]string, key, why string) string {
	text, spelling, _ := names.Lookup(annotations, key)
	return fmt.Sprintf("annotation %s=%q is ignored: %s", spelling, text, why)
}

// found reads the state that an earlier process wrote. A PodAutoscaler that was created again, for
// a revision that had its initial pods before, starts at zero behind the activators.
func found(pa *v1alpha1.PodAutoscaler) *revision.State {
	status := &pa.Status
	if pa.Annotations[names.InitializedAnnotation] == "true" && len(status.Conditions) == 0 {
		return &revision.State{Zero: zero.State{Initialized: true, Proxied: true, Active: zero.No, ActiveReason: zero.NoTraffic}}
	}
	f := &revision.State{Desired: zero.Unknown}
	if status.DesiredScale != nil {
		f.Desired = *status.DesiredScale
	}
	f.Asleep = ptr.Deref(status.AsleepReplicas, 0)
	f.Keep.Gaps, _ = keep.ParseText(status.IdleTimes) // without them, the policy begins anew
	if l := status.Learned; l != nil {
		// The revision rejects NaN.
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
