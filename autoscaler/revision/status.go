package revision

import (
	"time"
	"unique"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/zero"
)

// Status is what the PodAutoscaler's status should say. It is comparable.
type Status struct {
	Generation   int64
	Active       zero.Condition
	ActiveReason string
	Initialized  bool
	Populated    bool
	// Actual counts the ready pods. Asleep ones are not ready.
	Desired, Actual, Asleep int32
	// Deep, Alone, Unfrozen and FreezeFailure say how those asleep sleep, as Counts has it.
	Deep            [Levels]int32
	Alone, Unfrozen int32
	FreezeFailure   string
	Startup         Startup
	Proxied         bool
	Activators      int32
	// Learned is the result of the last finished lesson, empty before there was one.
	Learned decide.Learned
}

// lastStatus is the last status that was returned as a change. Most revisions at zero have the
// same.
type lastStatus struct {
	sent     unique.Handle[Status]
	everSent bool
}

func (r *Revision) status(step zero.Step) Status {
	s := Status{Generation: r.config.Generation, Active: r.zero.Active, ActiveReason: r.zero.ActiveReason,
		Initialized: r.zero.Initialized, Populated: r.counts.Ready > 0, Desired: step.Want, Actual: r.counts.Ready, Asleep: r.counts.Asleep, Deep: r.counts.Deep, Alone: r.counts.Alone,
		Unfrozen: r.counts.Unfrozen, FreezeFailure: r.counts.FreezeFailure, Startup: r.counts.Startup,
		Proxied: r.zero.Proxied, Activators: decide.Activators(r.config.Formula, r.counts.Ready), Learned: r.learned}
	if s.Desired == zero.Unknown {
		// Keep the last known value.
		s.Desired = r.found
		if r.everSent {
			s.Desired = r.sent.Value().Desired
		}
	}
	return s
}

// turnWithin is how long a revision may take to leave zero or to reach it before its status tells
// of it. Most take less, and then one write tells all.
const turnWithin = 2 * time.Second

// turns reports whether a revision that was said to be at zero waits for its pods, or one that was
// said to be active for its last pod to go, not for long. Requests must pass the activators before
// that pod goes: if they do not yet, the status has to say so at once.
func (r *Revision) turns(s Status, now time.Time) bool {
	end := r.zero.ActiveSince.Add(turnWithin)
	if !r.everSent || !now.Before(end) {
		return false
	}
	switch sent := r.sent.Value(); {
	case sent.Active == zero.No && s.Active == zero.Undecided:
		return true
	case sent.Active == zero.Yes && s.Active == zero.No && sent.Proxied && s.Actual > 0:
		r.lookAgain(end)
		return true
	}
	return false
}
