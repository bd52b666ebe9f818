package names

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/api/schedule"
)

// Bounds of the autoscaling annotations.
const (
	MinStableWindow      = 6 * time.Second
	MaxStableWindow      = time.Hour
	MaxScaleDownDelay    = time.Hour
	MaxRetention         = time.Hour
	MaxBusyFor           = 24 * time.Hour
	MinTarget            = 0.01
	MinActivationScale   = 2
	MinPanicThreshold    = 110
	MaxPanicThreshold    = 1000
	UnlimitedTargetBurst = -1
)

// Scaling is what a Revision means for its scale.
type Scaling struct {
	Class  string
	Metric string // "" if the annotations do not say
	// Aggregation is AggregationLinear or AggregationWeightedExponential, whatever the spelling; ""
	// if the annotations do not say.
	Aggregation string

	// These are nil if the annotations do not say; see Scales.
	MinScale, MaxScale            *int32
	InitialScale, ActivationScale *int32

	// Target is per pod, in the metric's unit; TargetUtilization in percent, 1 to 100. Their
	// defaults depend on the metric; they are nil if the annotations do not say.
	Target, TargetUtilization *float64
	// TargetBurstCapacity is in requests; -1 keeps activators in the path always.
	TargetBurstCapacity float64

	Window         time.Duration
	ScaleDownDelay time.Duration
	// PanicWindow is in percent of Window, 1 to 100; PanicThreshold in percent of the pods there
	// are, 110 to 1000.
	PanicWindow, PanicThreshold float64
	ScaleToZeroRetention        time.Duration
	// ProgressDeadline bounds how long pods may take to become ready.
	ProgressDeadline time.Duration

	// Metrics are all that the revision is scaled by, at most MaxMetrics. Without one of
	// SourceRequests, Metric and Target count besides.
	Metrics []Metric
	// AdaptiveTarget lets the autoscaler learn the target.
	AdaptiveTarget bool
	// ScaleUpBurst and ScaleUpPerSecond bound how many pods the service may add.
	ScaleUpBurst, ScaleUpPerSecond float64

	Standby Standby
	Startup Startup
	// BusyFor bounds for how long a program may say that it is busy although no request is open; 0
	// lets it not say that.
	BusyFor time.Duration
	// Buffer is how many more pods than are busy are kept.
	Buffer int32
	// StandbySchedule and MinScaleSchedule say how many pods are at least asleep, and at least
	// wanted, at a time.
	StandbySchedule, MinScaleSchedule schedule.Schedule
}

// ScalingOf is Of for the annotations that a PodAutoscaler has.
func ScalingOf(annotations map[string]string, c *rules.Config) (Scaling, *apis.FieldError) {
	r := &reader{annotations: annotations}
	return r.scaling(c), r.errs
}

func (r *reader) scaling(c *rules.Config) Scaling {
	annotations, a := r.annotations, &c.Autoscaling
	s := Scaling{
		Class:  cmp.Or(annotations[ClassAnnotation], a.Class),
		Metric: annotations[MetricAnnotation],

		MinScale:        r.int32(MinScaleAnnotation),
		MaxScale:        r.int32(MaxScaleAnnotation),
		InitialScale:    r.int32(InitialScaleAnnotation),
		ActivationScale: r.int32(ActivationScaleAnnotation),

		Target:              r.float(TargetAnnotation),
		TargetUtilization:   r.float(TargetUtilizationAnnotation),
		TargetBurstCapacity: r.burstCapacity(a.TargetBurstCapacity),

		Window:               ptr.Deref(r.duration(WindowAnnotation), a.StableWindow),
		ScaleDownDelay:       ptr.Deref(r.duration(ScaleDownDelayAnnotation), a.ScaleDownDelay),
		PanicWindow:          ptr.Deref(r.float(PanicWindowAnnotation), a.PanicWindowPercentage),
		PanicThreshold:       ptr.Deref(r.float(PanicThresholdAnnotation), a.PanicThresholdPercentage),
		ScaleToZeroRetention: ptr.Deref(r.duration(ScaleToZeroRetentionAnnotation), a.ScaleToZeroPodRetentionPeriod),
		ProgressDeadline:     ptr.Deref(r.duration(ProgressDeadlineAnnotation), c.ProgressDeadline),

		Metrics:          r.metrics(),
		AdaptiveTarget:   annotations[AdaptiveTargetAnnotation] == AdaptiveTarget,
		ScaleUpBurst:     ptr.Deref(r.float(ScaleUpBurstAnnotation), a.ScaleUpBurst),
		ScaleUpPerSecond: ptr.Deref(r.float(ScaleUpPerSecondAnnotation), a.ScaleUpPerSecond),

		Standby:          r.standby(a),
		Startup:          r.startup(a),
		BusyFor:          ptr.Deref(r.duration(BusyForAnnotation), 0),
		Buffer:           ptr.Deref(r.int32(ScaleBufferAnnotation), 0),
		StandbySchedule:  r.schedule(StandbyScheduleAnnotation),
		MinScaleSchedule: r.schedule(MinScaleScheduleAnnotation),
	}
	if text, ok := annotations[AdaptiveTargetAnnotation]; ok && !s.AdaptiveTarget {
		r.fail(apis.ErrInvalidValue(text, AdaptiveTargetAnnotation,
			fmt.Sprintf("the only value is %q; set a number in %s", AdaptiveTarget, TargetAnnotation)))
	}
	if text, _, ok := Lookup(annotations, MetricAggregationAnnotation); ok {
		switch text {
		case AggregationLinear:
			s.Aggregation = AggregationLinear
		case AggregationWeightedExponential, AggregationWeightedExponentialAlt:
			s.Aggregation = AggregationWeightedExponential
		}
	}
	return s
}

func (r *reader) burstCapacity(otherwise float64) float64 {
	burst := ptr.Deref(r.float(TargetBurstCapacityAnnotation), otherwise)
	if text, spelling, ok := Lookup(r.annotations, TargetBurstCapacityAnnotation); ok && burst < 0 && burst != UnlimitedTargetBurst {
		r.fail(apis.ErrInvalidValue(text, spelling, "must be -1 (activators stay in the path) or at least 0"))
		return otherwise
	}
	return burst
}

// Scales are the bounds of a revision's scale. Max 0 means no maximum.
type Scales struct{ Min, Max, Initial, Activation int32 }

// Scales applies the settings to the annotations: the settings give what is not annotated, and the
// maximum caps the other scales. The errors name the annotations that this overrides.
func (s Scaling) Scales(a rules.Autoscaling) (Scales, *apis.FieldError) {
	var errs *apis.FieldError
	r := Scales{Min: ptr.Deref(s.MinScale, a.MinScale), Max: ptr.Deref(s.MaxScale, a.MaxScale),
		Initial: ptr.Deref(s.InitialScale, a.InitialScale), Activation: ptr.Deref(s.ActivationScale, 0)}
	if limit := a.MaxScaleLimit; limit > 0 && (r.Max == 0 || r.Max > limit) {
		r.Max = limit
	}
	if r.Initial == 0 && !a.AllowZeroInitialScale {
		errs = errs.Also(apis.ErrInvalidValue(0, InitialScaleAnnotation, "allow-zero-initial-scale is not set"))
		r.Initial = max(a.InitialScale, 1)
	}
	for _, scale := range []struct {
		key   string
		value *int32
	}{{MinScaleAnnotation, &r.Min}, {InitialScaleAnnotation, &r.Initial}, {ActivationScaleAnnotation, &r.Activation}} {
		if r.Max > 0 && *scale.value > r.Max {
			errs = errs.Also(apis.ErrInvalidValue(*scale.value, scale.key, fmt.Sprintf("above the maximum of %d, which is used", r.Max)))
			*scale.value = r.Max
		}
	}
	return r, errs
}

// ValidateScaling says what is wrong with the annotations that a PodAutoscaler has.
func ValidateScaling(annotations map[string]string, c *rules.Config) *apis.FieldError {
	s, errs := ScalingOf(annotations, c)
	return errs.Also(s.validate(annotations, c.Autoscaling))
}

// validate says which annotations contradict each other, or the settings.
func (s Scaling) validate(annotations map[string]string, limits rules.Autoscaling) *apis.FieldError {
	return validateClass(s, annotations, limits).Also(validateScales(s, annotations, limits), validateMetrics(s, annotations, limits), s.Standby.validate(limits), s.Startup.validate(limits), s.validateBusy())
}

func (s Scaling) validateBusy() *apis.FieldError {
	if s.BusyFor == 0 || s.Class == ClassKPA || s.Class == "" {
		return nil
	}
	return &apis.FieldError{Message: "cannot be combined", Paths: []string{BusyForAnnotation, ClassAnnotation},
		Details: fmt.Sprintf("only the class %s keeps pods whose program says that it is busy", ClassKPA)}
}

func validateClass(s Scaling, annotations map[string]string, limits rules.Autoscaling) (errs *apis.FieldError) {
	class, hasClass := annotations[ClassAnnotation]
	if strings.HasSuffix(class, ".knative.dev") && class != ClassKPA && class != ClassHPA {
		errs = errs.Also(apis.ErrInvalidValue(class, ClassAnnotation,
			fmt.Sprintf("must be %s, %s, or a class outside knative.dev", ClassKPA, ClassHPA)))
	}
	if text, spelling, ok := Lookup(annotations, MetricAggregationAnnotation); ok && class == ClassKPA && s.Aggregation == "" {
		errs = errs.Also(apis.ErrInvalidValue(text, spelling,
			fmt.Sprintf("must be %s or %s", AggregationLinear, AggregationWeightedExponential)))
	}
	metric, ok := annotations[MetricAnnotation]
	if !ok {
		return errs
	}
	if !hasClass {
		class = limits.Class
	}
	switch {
	case class == ClassKPA || class == "":
		if metric != MetricConcurrency && metric != MetricRPS {
			errs = errs.Also(apis.ErrInvalidValue(metric, MetricAnnotation,
				fmt.Sprintf("class %s knows %s and %s; for others set %s to %s", ClassKPA, MetricConcurrency, MetricRPS,
					ClassAnnotation, ClassHPA)))
		}
	case class == ClassHPA && metric == "":
		errs = errs.Also(apis.ErrInvalidValue(metric, MetricAnnotation, "must not be empty"))
	}
	return errs
}

// validateScales checks what the scales say about each other.
func validateScales(s Scaling, annotations map[string]string, limits rules.Autoscaling) (errs *apis.FieldError) {
	least, most := ptr.Deref(s.MinScale, limits.MinScale), ptr.Deref(s.MaxScale, limits.MaxScale)
	spelling := func(key string) string { _, spelling, _ := Lookup(annotations, key); return spelling }

	if limit := limits.MaxScaleLimit; limit > 0 && s.MaxScale != nil {
		switch {
		case most == 0:
			errs = errs.Also(&apis.FieldError{
				Message: "max-scale=0 (unlimited), must be less than " + fmt.Sprint(limit),
				Paths:   []string{spelling(MaxScaleAnnotation)},
				Details: "max-scale-limit in ConfigMap config-autoscaler says so",
			})
		case most > limit:
			errs = errs.Also(apis.ErrOutOfBoundsValue(most, 1, limit, spelling(MaxScaleAnnotation)))
		}
	}
	// Only a manifest that sets one of the two can be blamed for their order.
	if (s.MinScale != nil || s.MaxScale != nil) && most != 0 && most < least {
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("max-scale=%d is less than min-scale=%d", most, least),
			Paths:   []string{spelling(MaxScaleAnnotation), spelling(MinScaleAnnotation)},
		})
	}
	if s.InitialScale != nil && *s.InitialScale == 0 && !limits.AllowZeroInitialScale {
		errs = errs.Also(apis.ErrInvalidValue(0, spelling(InitialScaleAnnotation),
			`set allow-zero-initial-scale to "true" in ConfigMap config-autoscaler to allow it`))
	}
	if s.ActivationScale != nil {
		switch v := *s.ActivationScale; {
		case v < least:
			errs = errs.Also(&apis.FieldError{
				Message: fmt.Sprintf("activation-scale=%d is less than min-scale=%d", v, least),
				Paths:   []string{ActivationScaleAnnotation, spelling(MinScaleAnnotation)},
			})
		case most != 0 && v > most:
			errs = errs.Also(&apis.FieldError{
				Message: fmt.Sprintf("activation-scale=%d is greater than max-scale=%d", v, most),
				Paths:   []string{ActivationScaleAnnotation, spelling(MaxScaleAnnotation)},
			})
		}
	}
	return errs
}

// IsAutoscaling reports whether an annotation is about autoscaling.
func IsAutoscaling(key string) bool {
	group, _, slash := strings.Cut(key, "/")
	return slash && (group == AutoscalingGroup || group == EbbAutoscalingGroup)
}

// ValidateNoScaling refuses annotations of a template on objects where they have no effect: those
// about autoscaling, and those of Cold, on Services, Configurations and Routes. Those in effect are
// read there nevertheless.
func ValidateNoScaling(annotations map[string]string, effect []string) (errs *apis.FieldError) {
	for key := range annotations {
		if IsAutoscaling(key) && !slices.Contains(effect, key) {
			errs = errs.Also(apis.ErrInvalidKeyName(key, apis.CurrentField,
				`autoscaling annotations must be put under "spec.template.metadata.annotations" to work`))
		}
		if IsCold(key) {
			errs = errs.Also(apis.ErrInvalidKeyName(key, apis.CurrentField,
				`the annotation must be put under "spec.template.metadata.annotations" to work`))
		}
	}
	return errs
}
