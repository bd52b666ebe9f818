package standby

import (
	"time"

	"ebb.dev/ebb/internal/machine"
)

// State is the state of a pod.
type State uint8

// The states. Their transitions are the table above Step.
const (
	Awake    State = iota
	Resting        // told to sleep, not yet idle
	Dozing         // idle, and the containers run
	Leaving        // the hook before sleep is called
	Freezing       // the agent was asked to freeze
	Asleep         // frozen
	Thawing        // the agent was asked to thaw
	Lost           // the connection ended while the containers may have been frozen
	Rousing        // the containers run, and the hook after the wake is called
)

var stateNames = [...]string{"awake", "resting", "dozing", "leaving", "freezing", "asleep", "thawing", "lost", "rousing"}

func (s State) String() string { return stateNames[s] }

// Kind is what happened.
type Kind uint8

// The kinds of events.
const (
	Sleep        Kind = iota // the autoscaler wants the pod to sleep: Level
	Wake                     // the autoscaler wants it awake
	Request                  // a request came that is no probe
	Idle                     // nothing was in flight for the quiet time, and the gate is shut
	Connected                // an agent of this Version said Hello
	Disconnected             // its connection ended
	Received                 // the agent's Message
	Answered                 // the user container answered a probe that began after Risk
	Overdue                  // WakeTime has passed since Arm
	Called                   // the hook that was to be called has ended well
	Balked                   // it has failed: Message.Text says how
	Busy                     // the program says that it is busy For so long, 0 for no longer
	Settled                  // SettleTime has passed since Settle
	Again                    // AgainTime has passed since Retry
	End                      // the pod is going away
)

var kindNames = [...]string{"sleep", "wake", "request", "idle", "connected", "disconnected", "received", "answered", "overdue", "called", "balked", "busy", "settled", "again", "end"}

func (k Kind) String() string { return kindNames[k] }

// Event is something that happened to a pod.
type Event struct {
	Kind    Kind
	Level   Level
	Message Message
	For     time.Duration
	At      time.Duration // since boot
}

// Do is what is to be done, in the order of the constants.
type Do uint16

// What Step may ask for.
const (
	Send      Do = 1 << iota // send Order to the agent
	Release                  // forward the requests that wait
	Refuse                   // refuse the requests that wait, so that another pod takes them
	Arm                      // say Overdue after WakeTime
	Probe                    // probe the user container from Risk on, until it answers
	SayAwake                 // announce the pod as awake
	SayAsleep                // announce the pod as asleep
	SayGone                  // withdraw the announcement
	CallSleep                // call the hook before sleep, and say Called or Balked
	CallWake                 // call the hook after a wake, and say so too
	Settle                   // say Settled after SettleTime
	Retry                    // say Again after AgainTime
)

var doNames = [...]string{"send", "release", "refuse", "arm", "probe", "say-awake", "say-asleep", "say-gone", "call-sleep", "call-wake", "settle", "retry"}

// Has reports whether one of these is to be done.
func (d Do) Has(what Do) bool { return d&what != 0 }

func (d Do) String() string { return machine.Words(d, doNames[:]) }
