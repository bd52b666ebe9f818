// Package bind decides how a request gets a pod in the activator: whether it waits and for how
// long, where it goes when a pod does not take it, and with which answer it ends if no pod answers
// it. Package chain tells it what happened and does what it says; the simulator runs the same code.
//
// Owns: the state of the request, the ends of its wait, and the table of answers. Reads: its
// Events. Writes: nothing; Step returns what is to be done. Never: touches a queue, a lock, a
// goroutine or a clock (time is a field of the Event), or allocates.
//
// The way of a request, with the events that lead from state to state:
//
//	New          Begin -> Trying; Unwanted, Full, Stopped -> Answered
//	Trying       Slot -> Bound; NoSlot -> Waiting
//	Waiting      Slot -> Bound; Tick -> Waiting, FallingBack or Answered; CannotStart -> FallingBack or Answered;
//	             Full, Deleted, Stopped -> Answered
//	FallingBack  FellBack -> Trying; NoFallback -> Answered
//	Bound        Responded -> Bound; Refused, Misdirected -> Trying, or Bound if the request cannot be sent again;
//	             DialFailed -> Trying or Answered
//
// Done leads from every state to Over, which is final. An event that its state does not expect does
// nothing. The request has a slot at a pod exactly while it is Bound.
package bind

import (
	"time"

	"ebb.dev/ebb/internal/machine"
)

// maxUntrusted is how many pods a request is tried at whose certificates are not believed.
const maxUntrusted = 3

// State is where the request is.
type State uint8

// The states; the package comment has the transitions.
const (
	New         State = iota
	Trying            // it takes a slot if one is free
	Waiting           // it is in the queue of its revision
	FallingBack       // it leaves its revision for that of the fallback Service
	Bound             // it has a slot at a pod
	Answered          // it has an answer that is no pod's
	Over
)

var stateNames = [...]string{"new", "trying", "waiting", "falling-back", "bound", "answered", "over"}

func (s State) String() string { return stateNames[s] }

// Kind is what happened.
type Kind uint8

// The kinds of events.
const (
	Begin       Kind = iota // the request is for a pod: At
	Unwanted                // the request wakes no pod, and none is awake
	Slot                    // it has a slot
	NoSlot                  // no slot is free: Cold, Patience
	Full                    // there is no room for it: Own
	CannotStart             // the revision cannot start: Cold
	Deleted                 // the revision was deleted: Err
	Stopped                 // nobody wants the request any more, or this process ends
	Tick                    // time passed: At
	FellBack                // it belongs to the revision of the fallback Service now: At
	NoFallback              // the fallback Service has no pod
	Responded               // its pod has answered
	Refused                 // its pod has answered that it does not take the request: Final
	Misdirected             // what answered is no pod of the revision, or has no container that listens, and did not take the request: Final
	DialFailed              // no connection to its pod could be made: Untrusted, Err
	Done                    // the request is over
)

var kindNames = [...]string{"begin", "unwanted", "slot", "no-slot", "full", "cannot-start", "deleted", "stopped", "tick", "fell-back", "no-fallback",
	"responded", "refused", "misdirected", "dial-failed", "done"}

func (k Kind) String() string { return kindNames[k] }

// expected has the states in which an event means something: the table in the package comment.
var expected = [...]uint8{
	Begin:       1 << New,
	Unwanted:    1 << New,
	Slot:        1<<Trying | 1<<Waiting,
	NoSlot:      1 << Trying,
	Full:        1<<New | 1<<Waiting,
	CannotStart: 1 << Waiting,
	Deleted:     1 << Waiting,
	Stopped:     1<<New | 1<<Waiting,
	Tick:        1 << Waiting,
	FellBack:    1 << FallingBack,
	NoFallback:  1 << FallingBack,
	Responded:   1 << Bound,
	Refused:     1 << Bound,
	Misdirected: 1 << Bound,
	DialFailed:  1 << Bound,
	Done:        1<<Over - 1,
}

// Patience is how long a request may wait, from its arrival or since it fell back, and what comes
// then. The zero value waits without end.
type Patience struct {
	// Pages and FallsBack say that, while the revision has no pod, the request gets the waiting
	// page after PageAfter, and goes to the fallback Service after FallbackAfter.
	Pages, FallsBack         bool
	PageAfter, FallbackAfter time.Duration
	// MaxWait is how long it may wait in any case; 0 is no bound.
	MaxWait time.Duration
}

// Event is something that happened.
type Event struct {
	Kind      Kind
	Cold      bool // the revision had no pod when the request began to wait, or has none if it did not yet
	Own       bool // the revision set the bound itself
	Untrusted bool // because of the pod's certificate
	Final     bool // the request cannot be sent again
	Patience  Patience
	At        time.Time
	Err       error
}

// Do is what is to be done, in the order of the constants.
type Do uint16

// What Step may ask for.
const (
	SlotAnswered Do = 1 << iota // say that the pod has answered
	SlotRefused                 // give the slot back: the pod has none
	SlotFailed                  // give the slot back: the pod is not there
	SlotDone                    // give the slot back
	Report                      // report the load of the revision at once
	Try                         // take a slot if one is free: Slot or NoSlot. A request that waited goes back to its place: NoSlot
	Wait                        // wait for a slot, until Deadline
	FallBack                    // make the request one of the fallback Service: FellBack or NoFallback
	Send                        // send the request to the pod of its slot
	Reply                       // reply as Answer says
)

var doNames = [...]string{"slot-answered", "slot-refused", "slot-failed", "slot-done", "report", "try", "wait", "fall-back", "send", "reply"}

// Has reports whether one of these is to be done.
func (d Do) Has(what Do) bool { return d&what != 0 }

func (d Do) String() string { return machine.Words(d, doNames[:]) }

// ending is what comes when a wait is over.
type ending uint8

const (
	never ending = iota
	page
	fallback
	rejection
)

// Machine is one request on its way to a pod. The zero value is New; it belongs to one goroutine at
// a time.
type Machine struct {
	state     State
	answer    Answer
	untrusted uint8 // how often a certificate was not believed
	met       bool  // a pod of the revision has answered, if only to refuse
	astray    bool  // the request was misdirected, and cannot be sent again
	fellBack  bool
	then      ending // the wait ends with this, so long after since
	fallsBack bool   // Patience.FallsBack of the last wait
	after     time.Duration
	since     time.Time
	err       error
}

// State is where the request is.
func (m *Machine) State() State { return m.state }

// Answer is the answer that is no pod's, NoAnswer if there is none.
func (m *Machine) Answer() Answer { return m.answer }

// Err is why the revision is not known, or its pods are not believed.
func (m *Machine) Err() error { return m.err }

// Deadline is when a wait is over and a Tick due; zero is never.
func (m *Machine) Deadline() time.Time {
	if m.then == never {
		return time.Time{}
	}
	return m.since.Add(m.after)
}

// Step takes an event in and returns what is to be done.
func (m *Machine) Step(e *Event) Do {
	if expected[e.Kind]&(1<<m.state) == 0 {
		return 0
	}
	switch e.Kind {
	case Begin:
		m.since = e.At
		return m.try()
	case Unwanted:
		return m.end(AnswerNotWoken, nil)
	case Slot:
		m.state = Bound
		return Send
	case NoSlot:
		m.state = Waiting
		m.bear(&e.Patience, e.Cold)
		return Wait
	case Full:
		if e.Own {
			return m.end(AnswerMaxWaiting, nil)
		}
		return m.end(AnswerBudget, nil)
	case CannotStart:
		return m.cannotStart(e.Cold)
	case Deleted:
		return m.end(AnswerDeleted, e.Err)
	case Stopped:
		return m.end(AnswerStopped, nil)
	case Tick:
		return m.tick(e.At)
	case FellBack:
		m.fellBack, m.since = true, e.At
		return m.try()
	case NoFallback:
		return m.end(AnswerNoFallback, nil)
	case Responded:
		m.met = true
		return SlotAnswered
	case Refused:
		m.met = true
		if e.Final {
			return SlotAnswered
		}
		return SlotAnswered | SlotRefused | m.try()
	case Misdirected:
		if m.astray = e.Final; m.astray {
			return 0
		}
		return SlotFailed | m.try()
	case DialFailed:
		return m.dialFailed(e)
	case Done:
		bound := m.state == Bound
		m.state = Over
		switch {
		case bound && m.astray:
			return SlotFailed // so that the next request goes elsewhere
		case bound:
			return SlotDone
		}
	}
	return 0
}

// cannotStart reports the load of a revision that cannot start: it may have been mended, and demand
// is what makes somebody try.
func (m *Machine) cannotStart(cold bool) Do {
	if m.mayFallBack(cold) && m.fallsBack {
		return Report | m.fallBack()
	}
	return Report | m.end(AnswerCannotStart, nil)
}

func (m *Machine) dialFailed(e *Event) Do {
	if e.Untrusted {
		// Waiting does not mend a certificate; another pod may have a good one.
		if m.untrusted++; m.untrusted > maxUntrusted {
			return SlotFailed | m.end(AnswerUntrusted, e.Err)
		}
	}
	return SlotFailed | m.try()
}

func (m *Machine) try() Do {
	m.state = Trying
	return Try
}

func (m *Machine) end(a Answer, err error) Do {
	m.state, m.answer, m.err = Answered, a, err
	return Reply
}

// fallBack goes one step: a request that fell back once has no fallback, so there is no loop.
func (m *Machine) fallBack() Do {
	m.state = FallingBack
	return FallBack
}

// mayFallBack reports whether the request has seen no pod, and has not fallen back.
func (m *Machine) mayFallBack(cold bool) bool { return cold && !m.met && !m.fellBack }

// bear sets how long the request waits. Of two ends that are due at once the page comes first, and
// the rejection last.
func (m *Machine) bear(p *Patience, cold bool) {
	m.then, m.after, m.fallsBack = never, 0, p.FallsBack
	sooner := func(is bool, after time.Duration, then ending) {
		if is && (m.then == never || after < m.after) {
			m.then, m.after = then, after
		}
	}
	first := m.mayFallBack(cold)
	sooner(first && p.Pages, p.PageAfter, page)
	sooner(first && p.FallsBack, p.FallbackAfter, fallback)
	sooner(p.MaxWait > 0, p.MaxWait, rejection)
}

func (m *Machine) tick(now time.Time) Do {
	switch {
	case m.then == never || now.Before(m.Deadline()):
		return Wait
	case m.then == page:
		return m.end(AnswerPage, nil)
	case m.then == fallback:
		return m.fallBack()
	}
	return m.end(AnswerMaxWait, nil)
}
