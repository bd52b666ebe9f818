// Package exchange decides what happens to one HTTP request on its way from a client to an upstream
// and back. HTTP/1.1 and HTTP/2 share it: the shells in package forward tell it what happened and
// do what it says.
//
// Owns: the state of the request, its three deadlines, the rule of retrying, and which answer an
// error becomes. Reads: its Events. Writes: nothing; Step returns what is to be done. Never:
// touches a socket, a lock, a goroutine or a clock (time is a field of the Event), or allocates,
// except for the error of a timer that fired.
//
// The way of a request, with the events that lead from state to state:
//
//	New         Begin -> Admitting
//	Admitting   Decided -> Connecting, or Over (a reply)
//	Connecting  Connected -> Deferred (its body waits for 100 Continue), or Sent
//	            DialFailed -> Redirecting, or Over (502)
//	Redirecting Decided -> Connecting, or Over (a reply)
//	Deferred    Interim 100, Tick after DeferBody -> Sent
//	Deferred, Sent
//	            Interim -> the same; Head -> Reviewing, or Relaying; Switched -> Sent; SwitchPassed -> Switching
//	            Lost -> Connecting (see mayRetry), or Over (502)
//	Reviewing   Decided -> Relaying, Connecting, or Over (a reply)
//	Relaying    Ended -> Over (Completed)
//	Switching   FirstByte -> Tunnel; Ended -> Over (Completed)
//	Tunnel      Ended -> Over (Completed)
//	Parting     UpstreamEnded -> Over
//
// From every state but New, Parting and Over, Tick (a timer), ClientLeft, BadBody, Failed and
// Panicked lead to Over, by the table above end. While the Handler has the request (Admitting,
// Redirecting, Reviewing) they are kept until it has decided. Over is final. An event that its
// state does not expect does nothing: over HTTP/2 frames of a stream that was given up still
// arrive.
//
// Parting comes before Over if the exchange ends while an HTTP/1.1 upstream works on the request:
// the client left, a timer fired. The upstream goes on working, whoever waits for it, so the
// request is not over for the Handler until the upstream has ended. Over HTTP/2 the stream is
// reset, and the protocol does not tell when the program behind it has stopped.
package exchange

import (
	"errors"
	"time"
)

var errInterims = errors.New("the upstream sent too many interim responses")

// State is where the request is.
type State uint8

// The states; the package comment has the transitions.
const (
	New         State = iota
	Admitting         // the Handler has it: Admit
	Connecting        // it waits for a connection to the upstream
	Redirecting       // the Handler has it: OnDialError
	Deferred          // the head was sent, the body waits for 100 Continue
	Sent              // head and body go to the upstream; no response yet
	Reviewing         // the Handler has it: OnResponse
	Relaying          // the response goes to the client
	Switching         // 101 went to the client; the upstream has sent nothing since
	Tunnel            // bytes go both ways
	Parting           // the client has its end, the upstream does not have its own yet
	Over
)

var stateNames = [...]string{"new", "admitting", "connecting", "redirecting", "deferred", "sent", "reviewing", "relaying", "switching", "tunnel", "parting", "over"}

func (s State) String() string { return stateNames[s] }

// Traits are what is known of a request from the beginning.
type Traits struct {
	Started    time.Time
	Streams    bool // over HTTP/2: one stream can be reset while its connection goes on
	KeepsBody  bool // the shell keeps what it sends of the body, until it calls ForgetBody
	Idempotent bool // RFC 9110 section 9.2.2: it may be sent a second time
	Expects    bool // the client waits for 100 Continue
	// Redirects and Reviews: the Handler is asked after a failed dial, and before a response is
	// passed on.
	Redirects, Reviews bool
}

// Policy is what the Handler sets while it admits a request.
type Policy struct {
	Timeouts Timeouts
	// DeferBody: send the head first, and the body when the upstream wants it, or after so long.
	DeferBody   time.Duration
	ContinueNow bool // answer "Expect: 100-continue" here
}

// Machine is one request on its way. The zero value is New; it belongs to one goroutine, or to the
// holder of a lock.
type Machine struct {
	traits    Traits
	policy    Policy
	state     State
	ending    Ending // while pending or Over
	pending   bool   // the exchange ends once the Handler has decided
	reused    bool
	kept      bool // the body was kept back and has not been sent
	forgotten bool // bytes of the body left that the shell no longer has
	continued bool // 100 Continue was said here
	tunneled  bool // it was a tunnel when it ended
	heard     bool // the upstream has sent a response head, if only an interim one
	workedOn  bool // it was sent again although an upstream may have worked on it
	interims  uint16
	retries   uint8
	deferred  time.Time // since when the body waits
	lastWrite time.Time
}

// Init makes m the machine of a new request.
func (m *Machine) Init(t Traits) { *m = Machine{traits: t} }

// State is where the request is.
func (m *Machine) State() State { return m.state }

// Ending is how the exchange ended; valid once it is over.
func (m *Machine) Ending() *Ending { return &m.ending }

// Live reports whether the exchange has begun and is not over.
func (m *Machine) Live() bool { return anywhere&(1<<m.state) != 0 }

// Asking reports whether the Handler has the request.
func (m *Machine) Asking() bool { return asking&(1<<m.state) != 0 }

// Begun reports whether a final response head went to the client.
func (m *Machine) Begun() bool { return begun&(1<<m.state) != 0 }

// Pending is why the exchange ends as soon as the Handler has decided, nil when it goes on.
func (m *Machine) Pending() error {
	if m.pending {
		return m.ending.Err
	}
	return nil
}

// BodyKept reports whether the body was deferred and never sent.
func (m *Machine) BodyKept() bool { return m.kept }

// Continued reports whether 100 Continue was said here.
func (m *Machine) Continued() bool { return m.continued }

// NeedsFresh reports whether Connect must not take a connection that carried a request before.
func (m *Machine) NeedsFresh() bool { return m.retries > 0 }

// Replayable reports whether the request can be sent again as it was.
func (m *Machine) Replayable() bool { return !m.forgotten }

// ForgetBody is called by a shell that keeps the body, when it no longer does.
func (m *Machine) ForgetBody() { m.forgotten = true }

// WorkedOn reports whether an upstream may have worked on the request before it was sent again.
func (m *Machine) WorkedOn() bool { return m.workedOn }

// Configure sets what the Handler wants; it counts from the next Step on.
func (m *Machine) Configure(p Policy) { m.policy = p }

// Wrote notes that bytes of the response went to the client.
func (m *Machine) Wrote(now time.Time) { m.lastWrite = now }

// Timed reports whether the time of the last write matters to anybody.
func (m *Machine) Timed() bool { return m.policy.Timeouts.Idle > 0 }

// Timer is the timer that fires next, NoTimer when none does.
func (m *Machine) Timer() (end time.Time, timer Timer) {
	if m.state >= Parting {
		return end, NoTimer // the answer that says that a timer fired has its own time
	}
	return m.policy.Timeouts.next(m.traits.Started, m.lastWrite, begun&^(1<<Switching)&(1<<m.state) != 0)
}

// Expired is the timer that has fired.
func (m *Machine) Expired(now time.Time) (Timer, bool) {
	end, timer := m.Timer()
	return timer, timer != NoTimer && !now.Before(end)
}

// TickAt is when the next Tick is due; zero when none is.
func (m *Machine) TickAt() time.Time {
	if m.pending || !m.Live() {
		return time.Time{}
	}
	at, timer := m.Timer()
	if timer == NoTimer {
		at = time.Time{}
	}
	if m.state == Deferred {
		if e := m.deferred.Add(m.policy.DeferBody); at.IsZero() || e.Before(at) {
			at = e
		}
	}
	return at
}

// Step takes an event in and returns what is to be done.
func (m *Machine) Step(e *Event) Do {
	if expected[e.Kind]&(1<<m.state) == 0 {
		return 0
	}
	switch e.Kind {
	case Begin:
		m.state = Admitting
		return Ask
	case Decided:
		return m.decided(e)
	case Connected:
		return m.connected(e)
	case DialFailed:
		return m.dialFailed(e)
	case Interim:
		return m.interim(e)
	case Head:
		return m.head(e)
	case Switched:
		m.state = Sent // until the body, which goes first, is at the upstream
		return m.sendBody() | PassSwitch
	case SwitchPassed:
		m.state = Switching
	case FirstByte:
		m.state = Tunnel
	case Ended:
		m.state, m.ending.Cause = Over, Completed
		return Drop | Finish
	case Lost:
		return m.lost(e)
	case Tick:
		return m.tick(e)
	case UpstreamEnded:
		m.state = Over
		return Drop | Finish
	case ClientLeft:
		return m.end(Ending{Cause: ClientGone, Err: ErrClientGone, Code: codeCancel})
	case BadBody:
		return m.end(Ending{Cause: BadRequest, Err: e.Err, Code: e.Code})
	case Failed:
		return m.end(Ending{Cause: UpstreamFailed, Err: e.Err, upstreamEnded: !e.Ours})
	case Panicked:
		return m.panicked(e)
	}
	return 0
}

// decided carries out what the Handler said, unless the exchange had to end meanwhile.
func (m *Machine) decided(e *Event) Do {
	reviewed := m.state == Reviewing
	if reviewed && (e.Choice == Pass || m.forgotten) {
		m.state = Sent // the answer to whatever ends it now is the one from there
	} else {
		m.state = Connecting
	}
	switch do := m.due(e.At); {
	case do != 0:
		return do
	case reviewed && m.state == Sent && e.Err != nil:
		return m.end(Ending{Cause: UpstreamFailed, Err: e.Err}) // the response was dropped while the Handler waited
	case reviewed && m.state == Sent:
		return m.pass()
	}
	var do Do
	if reviewed {
		do, m.kept, m.heard = Drop|Rewind, false, false
	}
	if e.Choice == Reply {
		m.state, m.ending.Cause = Over, Replied
		return do | Answer | Finish
	}
	return do | Connect
}

// due ends the exchange if something came up while the Handler had it, or a timer has fired.
func (m *Machine) due(now time.Time) Do {
	if m.pending {
		m.pending = false
		return m.end(m.ending)
	}
	if timer, ok := m.Expired(now); ok {
		return m.timeout(timer)
	}
	return 0
}

func (m *Machine) timeout(timer Timer) Do {
	if m.pending {
		return 0
	}
	return m.end(Ending{Cause: TimedOut, Timer: timer, Err: &TimerError{timer, m.policy.Timeouts.Of(timer)}})
}

func (m *Machine) dialFailed(e *Event) Do {
	if do := m.due(e.At); do != 0 {
		return do
	}
	if m.traits.Redirects {
		m.state = Redirecting
		return Ask
	}
	return m.end(Ending{Cause: UpstreamFailed, Err: e.Err})
}

func (m *Machine) connected(e *Event) Do {
	m.reused = e.Reused
	do := SendHead
	if m.policy.ContinueNow && m.traits.Expects && e.BodyFollows && !m.continued {
		m.continued = true
		do |= SayContinue // not before: without a connection the client may take its request elsewhere
	}
	if m.policy.DeferBody > 0 && e.BodyFollows {
		m.state, m.kept, m.deferred = Deferred, true, e.At
		return do
	}
	m.state = Sent
	if !e.BodyFollows {
		return do
	}
	m.forgotten = m.forgotten || !m.traits.KeepsBody
	return do | SendBody
}

// sendBody releases a body that was kept.
func (m *Machine) sendBody() Do {
	if !m.kept {
		return 0
	}
	m.kept = false
	m.forgotten = m.forgotten || !m.traits.KeepsBody
	return SendBody
}

// maxInterims bounds the response heads below 200 of one request: each one renews the idle timer.
const maxInterims = 1000

func (m *Machine) interim(e *Event) Do {
	m.heard = true
	if m.interims++; m.interims > maxInterims {
		return m.end(Ending{Cause: UpstreamFailed, Err: errInterims, upstreamEnded: true})
	}
	if e.Status != 100 || m.state != Deferred {
		return PassInterim
	}
	m.state = Sent
	if m.traits.Expects {
		return m.sendBody() | PassInterim
	}
	return m.sendBody() // it answers our question, not the client's
}

// head is the final response's head. A timer that has fired by now still wins: the answer is 504 as
// long as nothing was passed on.
func (m *Machine) head(e *Event) Do {
	if do := m.due(e.At); do != 0 {
		return do
	}
	if m.traits.Reviews {
		m.state = Reviewing
		return Ask
	}
	return m.pass()
}

// pass passes the response. A stream's body that still waits may be wanted nevertheless; a
// connection's stays where it is.
func (m *Machine) pass() Do {
	m.state = Relaying
	if m.traits.Streams {
		return m.sendBody() | PassHead
	}
	return PassHead
}

func (m *Machine) tick(e *Event) Do {
	if timer, ok := m.Expired(e.At); ok {
		return m.timeout(timer)
	}
	if m.state == Deferred && !e.At.Before(m.deferred.Add(m.policy.DeferBody)) {
		m.state = Sent
		return m.sendBody()
	}
	return 0
}
