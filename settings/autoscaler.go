package settings

import (
	"math"
	"time"
)

// Autoscaler is config-autoscaler.
type Autoscaler struct {
	Class                         string  // pod-autoscaler-class
	EnableScaleToZero             bool    // false: at least one pod
	AllowZeroInitialScale         bool    // permits initial-scale 0
	InitialScale                  int32   // pods before a revision counts as initialized
	MinScale                      int32   // pods
	MaxScale                      int32   // pods; 0 = unlimited
	MaxScaleLimit                 int32   // pods; 0 = no limit on max-scale
	MaxScaleUpRate                float64 // at most ready*rate pods per decision
	MaxScaleDownRate              float64 // at least ready/rate pods per decision
	ConcurrencyTargetUtilization  float64 // fraction (0,1]
	ConcurrencyTargetDefault      float64 // concurrent requests per pod
	RequestsPerSecondTarget       float64 // requests per second per pod
	TargetBurstCapacity           float64 // requests; -1 = activator always in the path
	ActivatorCapacity             float64 // concurrent requests per activator
	StableWindow                  time.Duration
	PanicWindowPercentage         float64 // percent of StableWindow
	PanicThresholdPercentage      float64 // percent of ready capacity
	ScaleToZeroGracePeriod        time.Duration
	ScaleToZeroPodRetentionPeriod time.Duration
	ScaleDownDelay                time.Duration
	ScaleUpBurst                  float64 // pods that one service may add at once
	ScaleUpPerSecond              float64 // and for each second that passes
}

func readAutoscaler(r *reader) Autoscaler {
	moreThanOne := func(f float64) bool { return f > 1 }
	percent := func(f float64) bool { return f > 0 && f <= 100 }
	a := Autoscaler{
		Class:                 r.nonEmpty("pod-autoscaler-class", "kpa.autoscaling.knative.dev"),
		EnableScaleToZero:     r.boolean("enable-scale-to-zero", true),
		AllowZeroInitialScale: r.boolean("allow-zero-initial-scale", false),
		InitialScale:          int32(r.integer("initial-scale", 1, 0, math.MaxInt32)),
		MinScale:              int32(r.integer("min-scale", 0, 0, math.MaxInt32)),
		MaxScale:              int32(r.integer("max-scale", 0, 0, math.MaxInt32)),
		MaxScaleLimit:         int32(r.integer("max-scale-limit", 0, 0, math.MaxInt32)),
		MaxScaleUpRate:        r.number("max-scale-up-rate", 1000, moreThanOne, "more than 1"),
		MaxScaleDownRate:      r.number("max-scale-down-rate", 2, moreThanOne, "more than 1"),
		ConcurrencyTargetUtilization: r.number("container-concurrency-target-percentage", 70, percent,
			"more than 0, at most 100"),
		ConcurrencyTargetDefault: r.number("container-concurrency-target-default", 100,
			func(f float64) bool { return f > 0 }, "more than 0"),
		RequestsPerSecondTarget: r.number("requests-per-second-target-default", 200,
			func(f float64) bool { return f >= 0.01 }, "at least 0.01"),
		TargetBurstCapacity: r.number("target-burst-capacity", 211,
			func(f float64) bool { return f >= 0 || f == -1 }, "-1, or at least 0"),
		ActivatorCapacity: r.number("activator-capacity", 100,
			func(f float64) bool { return f >= 1 }, "at least 1"),
		StableWindow: r.duration("stable-window", time.Minute, 6*time.Second, time.Hour, true),
		PanicWindowPercentage: r.number("panic-window-percentage", 10,
			func(f float64) bool { return f >= 1 && f <= 100 }, "1 to 100"),
		PanicThresholdPercentage: r.number("panic-threshold-percentage", 200,
			func(f float64) bool { return true }, ""),
		ScaleToZeroGracePeriod: r.duration("scale-to-zero-grace-period", 30*time.Second, time.Nanosecond, forever, false),
		ScaleToZeroPodRetentionPeriod: r.duration("scale-to-zero-pod-retention-period", 0, 0, forever,
			false),
		ScaleDownDelay:   r.duration("scale-down-delay", 0, 0, forever, true),
		ScaleUpBurst:     r.number("scale-up-burst", 500, func(f float64) bool { return f >= 1 }, "at least 1"),
		ScaleUpPerSecond: r.number("scale-up-per-second", 50, func(f float64) bool { return f > 0 }, "more than 0"),
	}
	// 0.7 and 70 mean the same: values up to 1 are fractions.
	if a.ConcurrencyTargetUtilization > 1 {
		a.ConcurrencyTargetUtilization /= 100
	}
	if a.InitialScale == 0 && !a.AllowZeroInitialScale {
		r.fault("initial-scale", "0", "0 needs allow-zero-initial-scale: \"true\"")
	}
	if l := a.MaxScaleLimit; l > 0 && (a.MaxScale < 1 || a.MaxScale > l) {
		r.fault("max-scale", "", "%d is out of bounds, expected 1 to %d because max-scale-limit is %d", a.MaxScale, l, l)
	}
	if t := a.ConcurrencyTargetDefault * a.ConcurrencyTargetUtilization; t < 0.01 {
		r.fault("container-concurrency-target-default", "",
			"%v times the utilization %v is %v, expected at least 0.01 requests per pod",
			a.ConcurrencyTargetDefault, a.ConcurrencyTargetUtilization, t)
	}
	return a
}
