package names

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/judge"
)

// Lookup returns an annotation's value and the spelling under which it stands. If several spellings
// stand on an object, the first one wins.
func Lookup(annotations map[string]string, key string) (value, spelling string, ok bool) {
	if value, ok = annotations[key]; ok {
		return value, key, true
	}
	if a := known[key]; a != nil {
		for _, older := range a.Older {
			if value, ok = annotations[older]; ok {
				return value, older, true
			}
		}
	}
	return "", key, false
}

// reader parses annotations of one object and collects what is wrong with them. A value that is
// wrong reads as unset.
type reader struct {
	annotations map[string]string
	errs        *apis.FieldError
}

func (r *reader) fail(err *apis.FieldError) { r.errs = r.errs.Also(err) }

// int32 reads a whole number within the bounds of the annotation.
func (r *reader) int32(key string) *int32 {
	text, spelling, ok := Lookup(r.annotations, key)
	lo, hi := int32(known[key].Values.min), int32(known[key].Values.max)
	if !ok {
		return nil
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.fail(apis.ErrInvalidValue(text, spelling, "must be a whole number"))
		return nil
	}
	if value < int64(lo) || value > int64(hi) {
		r.fail(apis.ErrOutOfBoundsValue(text, lo, hi, spelling))
		return nil
	}
	return new(int32(value))
}

// float reads a finite number within the bounds of the annotation.
func (r *reader) float(key string) *float64 {
	text, spelling, ok := Lookup(r.annotations, key)
	lo, hi := known[key].Values.min, known[key].Values.max
	if !ok {
		return nil
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
		r.fail(apis.ErrInvalidValue(text, spelling, "must be a number"))
		return nil
	}
	if value < lo || value > hi {
		if hi == math.MaxFloat64 {
			r.fail(apis.ErrInvalidValue(text, spelling, "must be at least "+strconv.FormatFloat(lo, 'g', -1, 64)))
		} else {
			r.fail(apis.ErrOutOfBoundsValue(text, lo, hi, spelling))
		}
		return nil
	}
	return &value
}

// noMaxTime stands for a duration without an upper bound.
const noMaxTime = time.Duration(math.MaxInt64)

// duration reads a duration within the bounds of the annotation.
func (r *reader) duration(key string) *time.Duration {
	text, spelling, ok := Lookup(r.annotations, key)
	lo, hi := known[key].Values.minTime, known[key].Values.maxTime
	if !ok {
		return nil
	}
	value, err := time.ParseDuration(text)
	switch {
	case err != nil:
		r.fail(apis.ErrInvalidValue(text, spelling, `must be a duration such as "90s" or "5m"`))
	case value < lo && hi == noMaxTime:
		r.fail(apis.ErrInvalidValue(text, spelling, "must be at least "+lo.String()))
	case value < lo || value > hi:
		r.fail(apis.ErrOutOfBoundsValue(text, lo, hi, spelling))
	case known[key].Values.whole && value%time.Second != 0:
		r.fail(apis.ErrInvalidValue(text, spelling, "must be whole seconds"))
	default:
		return &value
	}
	return nil
}

// RolloutDuration reads for how long traffic moves gradually to a new Revision; nil when the object
// does not say.
func RolloutDuration(annotations map[string]string) (*time.Duration, *apis.FieldError) {
	r := reader{annotations: annotations}
	return r.duration(RolloutDurationAnnotation), r.errs
}

// RolloutGuard reads what a new Revision must keep to while traffic moves to it; the zero Guard,
// which judges nothing, when the object does not say.
func RolloutGuard(annotations map[string]string) (judge.Guard, *apis.FieldError) {
	text, spelling, ok := Lookup(annotations, RolloutGuardAnnotation)
	if !ok {
		return judge.Guard{}, nil
	}
	guard, err := judge.Parse(text)
	if err != nil {
		return judge.Guard{}, apis.ErrInvalidValue(text, spelling, err.Error())
	}
	return guard, nil
}

// HTTPProtocol reads what plain HTTP is to do on the external hosts of an object, "enabled" or
// "redirected"; "" when the object does not say.
func HTTPProtocol(annotations map[string]string) (string, *apis.FieldError) {
	text, spelling, ok := Lookup(annotations, HTTPProtocolAnnotation)
	if !ok {
		return "", nil
	}
	switch word := strings.ToLower(text); word {
	case "enabled", "redirected":
		return word, nil
	}
	return "", apis.ErrInvalidValue(text, spelling, "must be Enabled or Redirected")
}

// TLSDisabled reads whether an object opted out of certificates for its external hosts.
func TLSDisabled(annotations map[string]string) (bool, *apis.FieldError) {
	text, spelling, ok := Lookup(annotations, DisableTLSAnnotation)
	if !ok {
		return false, nil
	}
	value, err := strconv.ParseBool(text)
	if err != nil {
		return false, apis.ErrInvalidValue(text, spelling, "must be true or false")
	}
	return value, nil
}

// maxQuantity bounds the text of a quantity. The parser expands a quantity to its last digit:
// 1e-10000000 takes seconds, and anybody who can create a Service could keep the webhook busy.
const maxQuantity = 64

var (
	hugeExponent = regexp.MustCompile(`[eE][-+]?[0-9]{3,}`)
	errTooLong   = errors.New("too long")
)

// Sidecar is what a template says about the resources of queue-proxy.
type Sidecar struct {
	Requests, Limits corev1.ResourceList
	// Percentage of the user container's resources, 0.1 to 100, nil when not set. Deprecated: the
	// explicit values win.
	Percentage *float64
}

// sidecar reads the resources of queue-proxy. Warnings are among the errors, at their own level.
func (r *reader) sidecar() Sidecar {
	s := Sidecar{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	r.quantity(SidecarCPURequestAnnotation, s.Requests, corev1.ResourceCPU)
	r.quantity(SidecarCPULimitAnnotation, s.Limits, corev1.ResourceCPU)
	r.quantity(SidecarMemoryRequestAnnotation, s.Requests, corev1.ResourceMemory)
	r.quantity(SidecarMemoryLimitAnnotation, s.Limits, corev1.ResourceMemory)
	r.quantity(SidecarStorageRequestAnnotation, s.Requests, corev1.ResourceEphemeralStorage)
	r.quantity(SidecarStorageLimitAnnotation, s.Limits, corev1.ResourceEphemeralStorage)
	s.Percentage = r.float(SidecarResourcePercentAnnotation)
	if _, spelling, ok := Lookup(r.annotations, SidecarResourcePercentAnnotation); ok {
		r.fail((&apis.FieldError{
			Message: "Queue proxy resource-percentage annotation is deprecated. Please use the available annotations " +
				"to explicitly set resource values per service",
			Paths: []string{spelling},
		}).At(apis.WarningLevel))
	}
	return s
}

// quantity reads a resource quantity into a list.
func (r *reader) quantity(key string, into corev1.ResourceList, name corev1.ResourceName) {
	text, ok := r.annotations[key]
	if !ok {
		return
	}
	var quantity resource.Quantity
	err := errTooLong
	if len(text) <= maxQuantity && !hugeExponent.MatchString(text) {
		quantity, err = resource.ParseQuantity(text)
	}
	switch {
	case err != nil:
		r.fail(apis.ErrInvalidValue(text, key, `must be a quantity such as "100m" or "64Mi"`))
	case quantity.Sign() < 0:
		r.fail(apis.ErrInvalidValue(text, key, "must not be negative"))
	default:
		into[name] = quantity
	}
}

// Overrule is a person's word about a Revision. The zero Overrule is none.
type Overrule struct {
	Revision string
	// Back sends it back; otherwise it is promoted, whatever its judge says or said.
	Back bool
}

// String is the annotation's value.
func (o Overrule) String() string {
	if o.Back {
		return "back " + o.Revision
	}
	return "promote " + o.Revision
}

// RolloutOverrule reads a person's word about a Revision.
func RolloutOverrule(annotations map[string]string) (o Overrule, fault *apis.FieldError) {
	text, spelling, ok := Lookup(annotations, RolloutOverruleAnnotation)
	if !ok {
		return o, nil
	}
	words := strings.Fields(text)
	if len(words) == 2 && (words[0] == "promote" || words[0] == "back") {
		return Overrule{Revision: words[1], Back: words[0] == "back"}, nil
	}
	return o, apis.ErrInvalidValue(text, spelling, `must be "promote" or "back", and the name of a Revision`)
}

// RolloutStep is a share of the requests, in percent, how long a new Revision has it, and how many
// requests it must answer there; 0 if the object does not say.
type RolloutStep struct {
	Percent  int64
	For      time.Duration
	Requests uint64
}

const (
	maxRolloutSteps  = 20
	maxStepsRequests = 1_000_000
)

// RolloutSteps reads the shares of a new Revision on the way; none when the object does not say.
func RolloutSteps(annotations map[string]string) (steps []RolloutStep, fault *apis.FieldError) {
	text, spelling, ok := Lookup(annotations, RolloutStepsAnnotation)
	if !ok {
		return nil, nil
	}
	refuse := func(step string) ([]RolloutStep, *apis.FieldError) {
		return nil, apis.ErrInvalidValue(text, spelling, fmt.Sprintf("%q: must be ascending percentages from 0%% to 99%%, at most %d, each with a time, a number of requests, both or neither, such as \"1%% 30s, 10%% 5m requests>1000, 50%%\"", step, maxRolloutSteps))
	}
	counted := false
	for step := range strings.SplitSeq(text, ",") {
		words := strings.Fields(step)
		if len(words) == 0 || len(words) > 3 || len(steps) == maxRolloutSteps {
			return refuse(step)
		}
		number, isPercent := strings.CutSuffix(words[0], "%")
		percent, err := strconv.ParseInt(number, 10, 64)
		if err != nil || !isPercent || percent < 0 || percent > 99 || len(steps) > 0 && percent <= steps[len(steps)-1].Percent {
			return refuse(step)
		}
		one := RolloutStep{Percent: percent}
		words = words[1:]
		if len(words) > 0 {
			if least, ok := strings.CutPrefix(words[len(words)-1], "requests>"); ok {
				one.Requests, err = strconv.ParseUint(least, 10, 64)
				if err != nil || one.Requests < 1 || one.Requests > maxStepsRequests {
					return refuse(step)
				}
				counted, words = true, words[:len(words)-1]
			}
		}
		if len(words) > 1 {
			return refuse(step)
		}
		if len(words) == 1 {
			if one.For, err = time.ParseDuration(words[0]); err != nil || one.For < time.Second {
				return refuse(step)
			}
		}
		steps = append(steps, one)
	}
	guard, badGuard := RolloutGuard(annotations)
	switch preview := steps[0].Percent == 0; {
	case preview && len(steps) == 1:
		return nil, apis.ErrInvalidValue(text, spelling, "0% is for a tag to be judged before the first requests of others: add a step, such as 0% 10m, 1%")
	case badGuard != nil:
	case counted && !guard.On():
		return nil, apis.ErrInvalidValue(text, spelling, "requests> is counted by the judge of a rollout: set "+RolloutGuardAnnotation)
	case preview && guard.Errors == 0:
		return nil, apis.ErrInvalidValue(text, spelling, "0% is judged by errors: set "+RolloutGuardAnnotation+" with errors<")
	}
	return steps, nil
}
