// Package v1alpha1 is what the API view.ebb.dev tells of Services: their load, the decisions about
// their scale and the reasons, their newest cold starts and refused requests. See docs/api.md.
//
// Owns: the JSON types. Reads and writes: nothing. Never: is stored; the autoscaler answers from
// memory.
package v1alpha1

import "k8s.io/apimachinery/pkg/runtime/schema"

// The kinds and the resource of this API.
const (
	Group    = "view.ebb.dev"
	Version  = "v1alpha1"
	Resource = "services"
	Kind     = "ServiceView"
	ListKind = "ServiceViewList"
)

// QueryJudge is the parameter, "true", with which a judge of rollouts asks for a single view each
// second: the autoscaler then counts for it, and leaves out the past. See Judged.
const QueryJudge = "judge"

// GroupVersion is the group and version as objects name it.
var GroupVersion = schema.GroupVersion{Group: Group, Version: Version}

// The bounds of what is told.
const (
	// StepSeconds is the time between two points of a Series.
	StepSeconds = 5
	// MaxPoints is the length of a Series in a single view, ten minutes.
	MaxPoints = 120
	// MaxListPoints is the length of a Series in a list, five minutes.
	MaxListPoints = 60
	// MaxHistory is how many runs of decisions of a revision are told.
	MaxHistory = 100
	// MaxColdStarts, MaxRefusals and MaxCalls are how many of each are told of a Service.
	MaxColdStarts = 20
	MaxRefusals   = 20
	MaxCalls      = 20
	// MaxSeconds is for how many seconds is told how requests ended, while a judge asks.
	MaxSeconds = 30
	// MaxItems is the length of a list if the caller names no lower limit.
	MaxItems = 5000
)
