// Package resting says what to do next with a target that is to rest, or that is to have its own
// HTTPRoutes, so that no request is without a way in between (docs/decisions/0020).
//
// Owns: the states between both and the steps. Reads: what is there, what is wanted, what gateways
// and activators were seen to do. Writes: nothing. Never: remembers anything; all state is in the
// objects, so a controller that begins in the middle goes on, and one that is to turn round turns.
//
// A target is here the hosts of one visibility of a Route or of one of its tags.
package resting

import "ebb.dev/ebb/internal/machine"

// Want is what a target is to be.
type Want uint8

// The wants.
const (
	// Rest has no HTTPRoute: activators choose for its hosts.
	Rest Want = iota
	// Busy has its HTTPRoutes. Activators know its plan, too, so that the way back is short.
	Busy
	// Apart has its HTTPRoutes, and activators know nothing of it: a policy may be attached to
	// them.
	Apart
)

var wantNames = [...]string{"rest", "busy", "apart"}

func (w Want) String() string { return wantNames[w] }

// Rules is the set of what the HTTPRoutes of a target are. There are several if one has no room for
// all rules, and writes reach them one by one.
type Rules uint8

// What an HTTPRoute may be.
const (
	Missing Rules = 1 << iota
	Old           // it has spare rules alone, and not those of the plan
	Spare         // it has the plan's rules as spare ones: only probes match them
	Full          // it has rules that requests match
)

var rulesNames = [...]string{"missing", "old", "spare", "full"}

func (r Rules) String() string { return machine.Words(uint16(r), rulesNames[:]) }

// Bridge is what there is of a target's bridge.
type Bridge uint8

// What a bridge may be.
const (
	NoBridge Bridge = iota
	Serving         // it leads the target's hosts to activators
	// Moved is a bridge that has a host of its own in place of the target's. Nobody but a probe
	// asks for that: a gateway pod that answers has seen the target's hosts go.
	Moved
)

var bridgeNames = [...]string{"no-bridge", "bridge", "moved"}

func (b Bridge) String() string { return bridgeNames[b] }

// Question is what each gateway pod is asked about the hosts of a target.
type Question uint8

// The questions.
const (
	Nothing       Question = iota
	BridgeAnswers          // does the bridge as it is now serve?
	SparesAnswer           // does the bridge as it is now serve, and do you reach what each spare rule names?
	BridgeGone             // do you serve the own host of the bridge?
	PlanAnswers            // do the rules of the HTTPRoutes count?
)

var questionNames = [...]string{"nothing", "bridge-answers", "spares-answer", "bridge-gone", "plan-answers"}

func (q Question) String() string { return questionNames[q] }

// Seen is what is known of a target. The API server says what is there, not a cache: some steps
// take away what an older state still needs.
type Seen struct {
	Want   Want
	Bridge Bridge
	// Fresh says that the bridge was written after the HTTPRoutes. Its hash tells it from what it
	// was before, so who follows it has seen the HTTPRoutes as they are, and none before.
	Fresh bool
	Rules Rules
	// Told says that the plan in the Route's status has the target, Followed that each activator
	// was seen to follow that plan since it was written.
	Told, Followed bool
	// Common says that each gateway pod was seen to have the common HTTPRoute.
	Common bool
	// Needs says that each Service which the plan's rules name is there, has endpoints and the mark
	// that this Route needs it; Marks, that some Service has the mark.
	Needs, Marks bool
	// Answered is the question that each gateway pod has answered with yes. It is Nothing after
	// each write that Next asked for.
	Answered Question
}

// State is where a target is between resting and own.
type State uint8

// The states, in the order of the way from rest to own.
const (
	New      State = iota // neither gateways nor activators know it
	Resting               // activators choose
	Bridged               // its hosts lead to activators by a bridge
	Prepared              // beside that, the HTTPRoutes have spare rules
	Both                  // beside the bridge, there are rules
	Parting               // there are rules, and the bridge has moved
	Own                   // there are rules
	Broken                // spare rules, and no bridge: somebody has deleted it
)

var stateNames = [...]string{"new", "resting", "bridged", "prepared", "both", "parting", "own", "broken"}

func (s State) String() string { return stateNames[s] }

// State returns the state.
func (s *Seen) State() State {
	full := s.Rules&Full != 0
	switch {
	case s.Bridge == Serving && full:
		return Both
	case s.Bridge == Serving && s.Rules == Missing:
		return Bridged
	case s.Bridge == Serving:
		return Prepared
	case s.Bridge == Moved:
		return Parting
	case full:
		return Own
	case s.Rules != Missing:
		return Broken
	case s.Told:
		return Resting
	}
	return New
}

// Do is one thing to do.
type Do uint8

// What Next may ask for. Each may be several writes. Who writes rules begins with the HTTPRoute
// whose rules count first, and who takes them back with the last: the last HTTPRoute takes what
// those before it do not.
const (
	Wait         Do = iota // for an answer, or for ever
	Need                   // make the Services that the plan's rules name, mark them as needed, and wait for their endpoints
	Release                // take the marks away: what nobody needs may go
	Tell                   // write the target into the plan in the Route's status
	Untell                 // take it out of there
	WriteBridge            // make the bridge, or give it a new hash
	WriteSpares            // make each HTTPRoute without rules one with those of the plan as spare ones
	WriteRules             // give each HTTPRoute its rules, with spare ones for what it had
	Withdraw               // make the rules of each HTTPRoute spare ones, whatever plan they are of
	DeleteRoutes           // delete the HTTPRoutes
	MoveBridge             // give the bridge a host of its own in place of the target's
	DeleteBridge           // delete the bridge
)

var doNames = [...]string{"wait", "need", "release", "tell", "untell", "write-bridge", "write-spares", "write-rules", "withdraw", "delete-routes", "move-bridge", "delete-bridge"}

func (d Do) String() string { return doNames[d] }

// Step is what to do, and what to ask meanwhile.
type Step struct {
	Do  Do
	Ask Question
}

// Next returns the next step of a target.
//
//	state     to own                          to rest
//	New       WriteRules                      Tell
//	Resting   WriteBridge                     Release
//	Bridged   BridgeAnswers: WriteSpares      Common: DeleteBridge
//	Prepared  SparesAnswer: WriteRules        BridgeAnswers: DeleteRoutes
//	Both      MoveBridge                      Followed and Common: Withdraw
//	Parting   BridgeGone: DeleteBridge        BridgeGone: DeleteBridge
//	Own       PlanAnswers: Untell if Apart    Followed and Common: WriteBridge
//	Broken    WriteBridge                     WriteBridge
//
// What stands before a colon has to be so first. If activators get requests and were not told, they
// are told before anything else. Before BridgeAnswers or SparesAnswer is asked, the bridge is made
// fresh. On the way to own, Need comes before any other write.
//
// It is safe for these reasons. Gateways see all HTTPRoutes in the order of the writes. The bridge
// is there before the first HTTPRoute and goes after the last, so a host that has any has the
// bridge or rules. Rules get requests when each gateway pod has reached what they name, since they
// were there last. They lose their names when each pod was seen to use the bridge that was written
// after them. Activators forget a target when no pod leads there: each was seen to be past the
// bridge. And a Service has a mark before an HTTPRoute names it until none does and each pod was
// seen to use the bridge; who deletes Services deletes none that has one.
func Next(s Seen) Step {
	state := s.State()
	if !s.Told && (state != New && state != Own || state == Own && s.Want != Apart || state == New && s.Want == Rest) {
		return Step{Do: Tell}
	}
	switch {
	case state == Broken:
		return Step{Do: WriteBridge}
	case state == Parting && s.Rules&Full == 0: // somebody has deleted them
		return Step{Do: DeleteBridge}
	case state == Parting:
		return s.once(BridgeGone, DeleteBridge)
	case s.Want == Rest:
		return s.rest(state)
	case !s.Needs:
		return Step{Do: Need}
	}
	return s.own(state)
}

// once returns a step that may be taken when each gateway pod has answered a question.
func (s *Seen) once(q Question, do Do) Step {
	if (q == BridgeAnswers || q == SparesAnswer) && !s.Fresh {
		return Step{Do: WriteBridge}
	}
	if s.Answered == q {
		return Step{Do: do}
	}
	return Step{Ask: q}
}

func (s *Seen) own(state State) Step {
	switch state {
	case New:
		return Step{Do: WriteRules}
	case Resting:
		return Step{Do: WriteBridge}
	case Bridged:
		return s.once(BridgeAnswers, WriteSpares)
	case Prepared:
		switch {
		case s.Rules&Old != 0: // requests may still need what it names
			return s.once(BridgeAnswers, WriteSpares)
		case s.Rules&Missing != 0:
			return Step{Do: WriteSpares}
		}
		return s.once(SparesAnswer, WriteRules)
	case Both:
		switch {
		case s.Rules == Full:
			return Step{Do: MoveBridge}
		case s.Rules&(Missing|Old) != 0:
			return Step{Do: Withdraw}
		}
		return s.once(SparesAnswer, WriteRules)
	}
	switch {
	case s.Rules != Full: // its plan has more rules than before
		return Step{Do: WriteRules}
	case s.Want == Apart && s.Told:
		return s.once(PlanAnswers, Untell)
	}
	return Step{}
}

func (s *Seen) rest(state State) Step {
	switch state {
	case Resting:
		if s.Marks {
			return Step{Do: Release}
		}
	case Bridged:
		if s.Common {
			return Step{Do: DeleteBridge}
		}
	case Prepared:
		return s.once(BridgeAnswers, DeleteRoutes)
	case Both:
		if s.Followed && s.Common {
			return Step{Do: Withdraw}
		}
	case Own:
		if s.Followed && s.Common {
			return Step{Do: WriteBridge}
		}
	}
	return Step{}
}
