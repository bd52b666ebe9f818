package revision

import (
	"fmt"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/keep"
	"ebb.dev/ebb/autoscaler/zero"
)

// Explanation is a decision and the step that follows from it.
type Explanation struct {
	Decision decide.Decision
	Step     zero.Step
	// With standby, Awake is how many of the pods are to be awake, and Keep says how many others
	// stay asleep and why. Without it, Keep is nil.
	Awake int32
	Keep  *keep.Decision
	// Busy is how many pods are kept because their programs say that they are busy.
	Busy int32
	// Extra is how many pods more there are to be for Lost ones, as Counts has them.
	Extra, Lost int32
}

// Rule is the rule that determined the outcome.
func (e Explanation) Rule() string {
	if e.Step.Rule != "" {
		return e.Step.Rule
	}
	return e.Decision.Rule.String()
}

// Reason is the sentence that goes with Rule.
func (e Explanation) Reason() string {
	reason := e.Decision.Reason()
	if e.Step.Reason != "" {
		reason = e.Step.Reason + " (" + reason + ")"
	}
	if e.Keep != nil {
		reason += "; asleep: " + e.Keep.Reason
	}
	switch {
	case e.Extra > 0 && e.Lost > 0:
		reason += fmt.Sprintf("; %d more, because %d are on nodes that do not answer", e.Extra, e.Lost)
	case e.Extra > 0:
		reason += fmt.Sprintf("; %d more for now, because so many were on nodes that did not answer", e.Extra)
	}
	return reason
}

// Outcome is what to do after a decision.
type Outcome struct {
	Explanation
	// Changed says that there is something to write: a scale, a status, or a scale to verify.
	Changed bool
	// Held says that the status is not worth a write yet.
	Held bool
	// Scale is true if Replicas must be written. From is the scale that was ordered before, -1 if
	// unknown.
	Scale          bool
	Replicas, From int32
	PodOrders      PodOrders
	// IdleTimes are for the status, if it changed. See keep.History.Text.
	IdleTimes string
	// Verify asks to read the scale first, because the number of pods does not match what was
	// ordered.
	Verify bool
	// Urgent marks a scale-up from zero ready pods: requests may be waiting.
	Urgent bool
	Status Status
	Counts Counts
	// Probe asks for a probe of the public Service. Its answer goes to Probed, along with Epoch.
	Probe bool
	Epoch int
}
