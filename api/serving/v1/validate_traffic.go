package v1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	"ebb.dev/ebb/api/names"
)

// maxSharing is the most backends that one rule of an HTTPRoute can name.
const maxSharing = 16

// Where a traffic block stands decides whether it may name Configurations.
type trafficPlace bool

const (
	inService trafficPlace = true
	inRoute   trafficPlace = false
)

// validateSteps checks the steps of rollouts. If they begin with a preview, each target that
// follows the latest Revision needs a tag that leads there, and that has no percent: it would get
// it at once.
func validateSteps(annotations map[string]string, targets []TrafficTarget) *apis.FieldError {
	steps, fault := names.RolloutSteps(annotations)
	if len(steps) == 0 || steps[0].Percent > 0 {
		return fault
	}
	for i := range targets {
		latest := &targets[i]
		if latest.Tag != "" || latest.RevisionName != "" || ptr.Deref(latest.Percent, 0) == 0 || slices.ContainsFunc(targets, func(t TrafficTarget) bool {
			return t.Tag != "" && t.RevisionName == "" && t.ConfigurationName == latest.ConfigurationName && ptr.Deref(t.Percent, 0) == 0
		}) {
			continue
		}
		text, spelling, _ := names.Lookup(annotations, names.RolloutStepsAnnotation)
		return apis.ErrInvalidValue(text, spelling, "0% is for the requests of a tag: add a target to spec.traffic that follows the latest Revision, with a tag and without a percent")
	}
	return nil
}

// warnUnjudged says that a guard has nothing to judge. With a split between named Revisions nobody
// but its author knows which of them is the new one.
func warnUnjudged(annotations map[string]string, targets []TrafficTarget) *apis.FieldError {
	guard, fault := names.RolloutGuard(annotations)
	if fault != nil || !guard.On() || len(targets) == 0 || slices.ContainsFunc(targets, func(t TrafficTarget) bool {
		return t.RevisionName == "" && t.Tag == "" && ptr.Deref(t.Percent, 0) > 0
	}) {
		return nil
	}
	_, spelling, _ := names.Lookup(annotations, names.RolloutGuardAnnotation)
	return (&apis.FieldError{
		Message: "nothing is judged: only a target of spec.traffic without a tag that follows the latest Revision gets its requests in steps",
		Paths:   []string{spelling},
	}).At(apis.WarningLevel)
}

func validateTraffic(targets []TrafficTarget, place trafficPlace) (errs *apis.FieldError) {
	if len(targets) == 0 {
		return nil
	}
	sum := int64(0)
	sharing := map[string]bool{}
	first := map[string]int{}
	for i := range targets {
		target := &targets[i]
		errs = errs.Also(target.validate(place).ViaFieldIndex("traffic", i))
		if target.Percent != nil {
			// Out of range is told already; clamping keeps the sum from overflowing.
			sum += min(max(*target.Percent, -1000), 1000)
			if *target.Percent > 0 {
				sharing[target.RevisionName+"/"+target.ConfigurationName] = true
			}
		}
		if target.Tag == "" {
			continue
		}
		if j, ok := first[target.Tag]; ok {
			errs = errs.Also(&apis.FieldError{
				Message: fmt.Sprintf("Multiple definitions for %q", target.Tag),
				Paths:   []string{fmt.Sprintf("traffic[%d].tag", j), fmt.Sprintf("traffic[%d].tag", i)},
			})
			continue
		}
		first[target.Tag] = i
	}
	if sum != 100 {
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("Traffic targets sum to %d, want 100", sum),
			Paths:   []string{"traffic"},
		})
	}
	if len(sharing) > maxSharing {
		errs = errs.Also(&apis.FieldError{
			Message: fmt.Sprintf("Traffic is split among %d revisions, at most %d can share it", len(sharing), maxSharing),
			Paths:   []string{"traffic"},
			Details: "a rule of the Gateway API names no more; give the others a tag and no percent, then each has a host of its own",
		})
	}
	return errs
}

func (t *TrafficTarget) validate(place trafficPlace) (errs *apis.FieldError) {
	if t.Percent != nil && (*t.Percent < 0 || *t.Percent > 100) {
		errs = errs.Also(apis.ErrOutOfBoundsValue(*t.Percent, 0, 100, "percent"))
	}
	if t.Tag != "" {
		errs = errs.Also(validateLabel(t.Tag, "tag"))
	}
	switch {
	case place == inService && t.ConfigurationName != "":
		errs = errs.Also(apis.ErrDisallowedFields("configurationName"))
	case t.RevisionName != "" && t.ConfigurationName != "":
		errs = errs.Also(apis.ErrMultipleOneOf("revisionName", "configurationName"))
	case place == inRoute && t.RevisionName == "" && t.ConfigurationName == "":
		errs = errs.Also(apis.ErrMissingOneOf("revisionName", "configurationName"))
	}
	for _, reference := range []struct{ field, name string }{
		{"revisionName", t.RevisionName}, {"configurationName", t.ConfigurationName},
	} {
		if reference.name == "" {
			continue
		}
		if problems := validation.IsDNS1123Subdomain(reference.name); len(problems) > 0 {
			errs = errs.Also(apis.ErrInvalidValue(reference.name, reference.field, fmt.Sprint(problems)))
		}
	}
	if t.LatestRevision != nil && *t.LatestRevision != (t.RevisionName == "") {
		errs = errs.Also(apis.ErrInvalidValue(*t.LatestRevision, "latestRevision", "must be true exactly when revisionName is empty"))
	}
	if t.URL != nil {
		errs = errs.Also(apis.ErrDisallowedFields("url"))
	}
	return errs
}
