package names

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/api/schedule"
	"ebb.dev/ebb/standby"
)

// auto leaves a value to the autoscaler.
const auto = "auto"

// Standby is what a Revision means for its pods that are not needed.
type Standby struct {
	Mode    rules.StandbyMode
	MaxPods int32 // of StandbyCount
	// Level is the deepest level at which a pod may sleep.
	Level standby.Level
	// MaxTime is how long a pod sleeps at most. asked is the annotation, nil without one.
	MaxTime time.Duration
	asked   *time.Duration
	// SleepHook and WakeHook are called before a pod sleeps and after it woke, nil for none.
	SleepHook, WakeHook *standby.Hook
}

func (s Standby) validate(limits rules.Autoscaling) *apis.FieldError {
	if limit := limits.StandbyMax; limit > 0 && s.asked != nil && *s.asked > limit {
		err := apis.ErrOutOfBoundsValue(*s.asked, time.Second, limit, StandbyForAnnotation)
		err.Details = "standby-max in ConfigMap config-autoscaler says so"
		return err
	}
	return nil
}

func (r *reader) standby(a *rules.Autoscaling) Standby {
	s := Standby{Mode: a.Standby, Level: standby.Compressed}
	switch text, given := r.annotations[StandbyAnnotation]; {
	case !given:
	case text == string(rules.StandbyOff), text == string(rules.StandbyAuto):
		s.Mode = rules.StandbyMode(text)
	default:
		most, err := strconv.ParseInt(text, 10, 32)
		if err != nil || most < 0 {
			r.fail(apis.ErrInvalidValue(text, StandbyAnnotation,
				fmt.Sprintf("must be off, auto, or how many pods may sleep, 0 to %d", math.MaxInt32)))
			break
		}
		s.Mode, s.MaxPods = rules.StandbyCount, int32(most)
	}
	if text, given := r.annotations[StandbyLevelAnnotation]; given {
		level, err := standby.ParseLevel(text)
		if err != nil {
			r.fail(apis.ErrInvalidValue(text, StandbyLevelAnnotation, err.Error()))
		} else {
			s.Level = level
		}
	}
	if r.annotations[StandbyForAnnotation] != auto {
		s.asked = r.duration(StandbyForAnnotation)
	}
	s.SleepHook, s.WakeHook = r.hook(StandbySleepHookAnnotation), r.hook(StandbyWakeHookAnnotation)
	s.MaxTime = min(ptr.Deref(s.asked, a.StandbyMax), a.StandbyMax)
	return s
}

// hook returns nil for a hook that is not given, or that is none.
func (r *reader) hook(key string) *standby.Hook {
	text, given := r.annotations[key]
	if !given {
		return nil
	}
	h, err := standby.ParseHook(text)
	if port := int32(h.Port); err == nil && (port == standby.Port || slices.Contains(SidecarPorts, port)) {
		err = fmt.Errorf("port %d is queue-proxy's", port)
	}
	if err != nil {
		r.fail(apis.ErrInvalidValue(shortened(text), key, err.Error()))
		return nil
	}
	return &h
}

func (r *reader) schedule(key string) schedule.Schedule {
	text, given := r.annotations[key]
	if !given {
		return schedule.Schedule{}
	}
	s, err := schedule.Parse(text)
	if err != nil {
		r.fail(apis.ErrInvalidValue(text, key, err.Error()))
	}
	return s
}

// LiveAnnotations are read on Services and Configurations, too: a value there counts for all their
// Revisions, and a change of it makes no new one.
var LiveAnnotations = []string{StandbyScheduleAnnotation, MinScaleScheduleAnnotation}

// ValidateLive says what is wrong with the LiveAnnotations.
func ValidateLive(annotations map[string]string) *apis.FieldError {
	r := &reader{annotations: annotations}
	for _, key := range LiveAnnotations {
		r.schedule(key)
	}
	return r.errs
}
