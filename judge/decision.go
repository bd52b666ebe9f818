package judge

import (
	"fmt"
	"math"
	"time"

	"ebb.dev/ebb/wire"
)

// Verdict is what is to be done with a rollout.
type Verdict uint8

// The verdicts.
const (
	GoOn   Verdict = iota // the next step may come when it is due
	Wait                  // the split stands still
	GoBack                // all requests go to the old revision, for good
)

func (v Verdict) String() string { return [...]string{"go on", "wait", "go back"}[v] }

// The rules of a decision. The rule of a quantile is its name, such as p99.
const (
	RuleOff       = "off"       // the guard judges nothing
	RuleFine      = "fine"      // nothing speaks against the revision
	RuleErrors    = "errors"    // it fails more
	RuleStarts    = "starts"    // its pods do not start
	RuleRequests  = "requests"  // it has not answered enough of them for the last step
	RuleStep      = "step"      // it has not answered enough of them for the next step
	RuleSilent    = "silent"    // nobody tells how it does
	RuleSuspicion = "suspicion" // something speaks against it, too little to convict
	RulePreview   = "preview"   // it fails more than its bound before it has a share
	// RuleUncompared: it fails more than its bound, and there is too little of the old one to tell
	// whether that fails as much.
	RuleUncompared = "uncompared"
	// RuleSender: it fails more, and may do so for one sender only.
	RuleSender = "sender"
	// RuleUnanswered: it answers nothing, and neither its clients nor a timeout have given up.
	RuleUnanswered = "unanswered"
)

// Decision is a verdict and what it was made of. Reason says it in words.
type Decision struct {
	Verdict Verdict `json:"verdict"`
	Rule    string  `json:"rule"`
	// Of is the rule of the heaviest charge, if the verdict is about one, and Evidence its weight,
	// at least 1.
	Of       string  `json:"of,omitempty"`
	Evidence float64 `json:"evidence,omitempty"`
	Old      Tally   `json:"old,omitzero"`
	New      Tally   `json:"new,omitzero"`
	Times    Times   `json:"times,omitzero"` // if Of is a quantile
	// For is how long it has been silent, or a pod has been starting; Bound is that of the guard.
	For   time.Duration `json:"for,omitempty"`
	Bound time.Duration `json:"bound,omitempty"`
	// Partly says that other pods of the new revision are ready.
	Partly bool `json:"partly,omitempty"`
	// Requests is how many the new revision needs for the last or the next step, of which it has
	// Answered, or how many the old one has answered since the new one last did.
	Requests uint64 `json:"requests,omitempty"`
	Answered uint64 `json:"answered,omitempty"`
	// Alone is how many have one drawer of the failed requests to the new revision since nothing
	// spoke against it last, which are Lately, if that is the reason.
	Alone  uint64 `json:"alone,omitempty"`
	Lately uint64 `json:"lately,omitempty"`
	// Preview says that New are requests by a tag.
	Preview bool `json:"preview,omitempty"`
}

// Suspects reports whether something speaks against the new revision while the rollout waits, for
// whatever reason.
func (d *Decision) Suspects() bool {
	return d.Verdict == Wait && (d.Evidence >= suspicion || d.Rule == RuleUncompared || d.Rule == RuleUnanswered)
}

// maxRate is the share of its requests that the new revision fails at most. In 95 % of all rollouts
// this is true all the time, if requests fail independently of one another.
func (d *Decision) maxRate() float64 { return maxRateOf(d.New.Requests, d.New.Errors) }

// Reason explains the decision in one sentence.
func (d *Decision) Reason() string {
	switch {
	case d.Rule == RuleOff:
		return "the rollout is not guarded"
	case d.Rule == RuleStarts && d.Verdict == GoBack:
		return fmt.Sprintf("a pod of the new revision has been starting for %s, longer than %s", d.For.Round(time.Second), d.Bound)
	case d.Rule == RuleStarts && d.Partly:
		return fmt.Sprintf("a pod of the new revision has been starting for %s, longer than %s, and others are ready", d.For.Round(time.Second), d.Bound)
	case d.Rule == RuleStarts:
		return fmt.Sprintf("pods of both revisions have been starting for longer than %s", d.Bound)
	case d.Rule == RuleSilent:
		return fmt.Sprintf("no figures of the revisions came for %s", d.For.Round(time.Second))
	case d.Rule == RuleRequests:
		return fmt.Sprintf("the new revision has answered %d of the %d requests that it needs to get all", d.Answered, d.Requests)
	case d.Rule == RuleStep && d.Preview:
		return fmt.Sprintf("the new revision has answered %d of the %d requests by its tag that it needs to get others", d.Answered, d.Requests)
	case d.Rule == RuleStep:
		return fmt.Sprintf("the new revision has answered %d of the %d requests that it needs at this step", d.Answered, d.Requests)
	case d.Rule == RuleUnanswered:
		return fmt.Sprintf("the new revision has answered nothing while the old one answered %d requests", d.Requests)
	case d.Rule == RulePreview:
		return d.charge() + ", more than it may, so it gets no others"
	case d.Rule == RuleFine:
		return fmt.Sprintf("%s; it fails at most %.3g %%", d.charge(), 100*d.maxRate())
	case d.Rule == RuleSender:
		return fmt.Sprintf("%s; %d of the last %d came from one of %d groups of clients, so it may be one client's doing",
			d.charge(), d.Alone, d.Lately, wire.SenderDrawers)
	case d.Rule == RuleUncompared:
		return d.charge() + ", which is too little to compare with"
	case d.Rule == RuleSuspicion:
		return fmt.Sprintf("%s, which may be chance in one of %.0f rollouts", d.charge(), math.Floor(d.Evidence))
	}
	return fmt.Sprintf("%s, which is chance in fewer than one of %.0f rollouts", d.charge(), math.Floor(d.Evidence))
}

// charge is what speaks against the new revision.
func (d *Decision) charge() string {
	if t := d.Times; t != (Times{}) {
		return fmt.Sprintf("%d of %d requests to the new revision took longer than %s, %d of %d to the old one longer than %s",
			t.New, t.OfNew, end(t.NewBucket), t.Old, t.OfOld, end(t.OldBucket))
	}
	if d.Preview {
		return fmt.Sprintf("%d of %d requests by the tag of the new revision failed", d.New.Errors, d.New.Requests)
	}
	return fmt.Sprintf("%d of %d requests to the new revision failed, %d of %d to the old one", d.New.Errors, d.New.Requests, d.Old.Errors, d.Old.Requests)
}
