// Package standby is the protocol by which a pod falls asleep and wakes: the messages between
// queue-proxy and the node agent, and the state machine of each side.
//
// Owns: the states of both sides. Reads: their events. Writes: nothing; Step returns what is to be
// done. Never: touches a socket, a lock, a goroutine or a clock.
//
// The rule that everything here serves: a request is forwarded only while it is certain that the
// user containers run. The pod is certain while it has sent no Freeze, when the agent has answered
// its newest order with Thawed or Failed, and when a probe that began after the end of the
// connection was answered. The last one is proof for three reasons. The agent thaws before it ends
// a connection. The kernel ends the connections of an agent that died, and the guard beside it only
// thaws. And an order that was under way expires, so it is not carried out after Risk.
//
// A program that has hooks is called before it sleeps and after it woke. It gets no request from
// the beginning of the first call to the end of the last one, and each sleep ends with a call after
// it, also one that failed to begin.
package standby

import "time"

const (
	// OrderTime is how long a Freeze is valid.
	OrderTime = 100 * time.Millisecond
	// StallTime is the longest stall of the agent that the guard tolerates. An agent that stalls
	// for longer is killed.
	StallTime = time.Second
	// WakeTime is how long a request waits for a sleeping pod before it is refused.
	WakeTime = 50 * time.Millisecond
	// SettleTime is how long after a wake for a request the pod says that it is awake.
	SettleTime = 20 * time.Millisecond
	// AgainTime is how long after a freeze that failed the pod asks for it again.
	AgainTime = time.Minute
	// HookPause is how long a pod does not sleep after one of its hooks failed.
	HookPause = time.Minute
)

// Hooks says which hooks a program has.
type Hooks struct{ Sleep, Wake bool }

// Pod is queue-proxy's side. The zero value is awake and has no agent.
type Pod struct {
	State State
	Hooks Hooks
	// Level is how deeply the autoscaler wants the pod to sleep.
	Level Level
	// Depth is how deeply it does.
	Depth Level
	// Order is the newest order to the agent.
	Order Message
	// Risk is the time until which the agent may carry out an order of a lost connection.
	Risk time.Duration
	// Reason says why the pod is not asleep as deeply as it should be.
	Reason string
	// Unwilling is until when the pod does not sleep, because Balk: a hook failed.
	Unwilling time.Duration
	Balk      string
	// BusyUntil is until when the pod does not fall asleep, because its program is busy.
	BusyUntil time.Duration

	connected bool
	answered  bool // the newest order was answered, or there was none
	wanted    bool // Lost, Leaving, Rousing: it is to be awake
	slept     bool // the program was told that it sleeps, or slept, and was not told that it woke
	listed    bool // it is announced as asleep
	asked     bool // from Dozing on: a request waits, or did
	unsaid    bool // Awake: it was not announced yet
	overdue   bool
	ending    bool
}

// Holds reports whether a request has to wait for Release.
func (p *Pod) Holds() bool { return p.State > Dozing }

// Settling reports whether the pod woke and does not say so yet.
func (p *Pod) Settling() bool { return p.unsaid }

// Refuses reports whether a request that has to wait is to be refused at once, because others have
// waited for too long already.
func (p *Pod) Refuses() bool { return p.overdue }

// Step takes an event and returns what is to be done. An event that is not in the table does
// nothing.
//
//	state     event                  next      and
//	Awake     Sleep                  Resting   SayGone
//	          Settled                Awake     SayAwake, if that is owed
//	Resting   Wake, Busy             Awake     SayAwake
//	          Idle, with a hook      Leaving   CallSleep
//	          Idle                   Freezing  Send Freeze; if it cannot freeze: Dozing, SayAsleep
//	Leaving   Request, Wake, End     Leaving   Arm, once
//	          Called                 Freezing  as by Idle; if somebody wants the pod: as by Thawed
//	          Balked                           as by Thawed; unwilling
//	Dozing    Request, Wake          Awake     SayAwake; with a hook: Rousing, Arm, CallWake
//	          Sleep, Connected,
//	          Again                  Freezing  Send Freeze; if it cannot freeze: stays
//	Freezing  Request, Wake, End     Thawing   Send Thaw, Arm
//	          Froze                  Asleep    SayAsleep
//	          Failed                 Dozing    SayAsleep, Retry; cannot freeze until one of those
//	          Disconnected           Lost      Probe
//	Asleep    Request, Wake, End     Thawing   Send Thaw, Arm
//	          Sleep, deeper          Freezing  Send Freeze
//	          Disconnected           Lost      Probe
//	Thawing   Thawed                 Awake     Release, SayAwake; with a hook: Rousing, CallWake
//	          Overdue                Thawing   Refuse
//	          Disconnected           Lost      Probe
//	Lost      Request, Wake, End     Lost      Arm, once
//	          Overdue                Lost      Refuse
//	          Answered, Connected              as by Thawed; if nobody wants the pod: as by Idle
//	Rousing   Request, Wake, End     Rousing   Arm, once
//	          Called, Balked         Awake     Release, SayAwake; by Balked unwilling
//
// A pod can freeze if Level is not warm and an agent is connected. A hook before sleep is called
// once in a sleep. A pod that is unwilling does not sleep for HookPause, and one whose program is
// busy does not fall asleep until it no longer is. Only a response says Busy, and none comes from
// Dozing on.
// A pod that is announced as asleep and wakes for a request does Settle in place of SayAwake, and
// owes that: all that is written because of the word comes after the answer. Meanwhile requests
// come as the first one did. One whose announcement was withdrawn says so at once: requests may
// wait for it elsewhere.
// Nothing is in flight in the states from Dozing on. End leads from Resting and Dozing as Wake
// does. After End, Sleep does nothing and nothing is announced.
func (p *Pod) Step(e Event) Do {
	do := p.step(e)
	if p.ending {
		do &^= SayAwake | SayAsleep | SayGone
	}
	if do.Has(SayAwake | SayAsleep | SayGone) {
		p.listed = do.Has(SayAsleep)
	}
	return do
}

func (p *Pod) step(e Event) Do {
	switch e.Kind {
	case Sleep:
		if p.ending || e.At < max(p.Unwilling, p.BusyUntil) {
			return 0
		}
		p.Level, p.Reason = e.Level, ""
		switch p.State {
		case Awake:
			p.State, p.unsaid = Resting, false
			return SayGone
		case Dozing:
			return p.rest(e.At)
		case Asleep:
			if e.Level > p.Order.Level {
				return p.rest(e.At)
			}
		}
		return 0
	case Connected:
		p.connected, p.Reason = true, ""
		switch p.State {
		case Lost:
			return p.found(e.At)
		case Dozing:
			return p.rest(e.At)
		}
		return 0
	case Disconnected:
		return p.disconnected()
	case Received:
		return p.received(e.Message)
	case Idle:
		if p.State == Resting {
			return p.leave(e.At)
		}
		return 0
	case Called, Balked:
		return p.called(e)
	case Busy:
		p.BusyUntil = e.At + e.For
		if p.State == Resting && e.For > 0 {
			return p.rouse(Wake)
		}
		return 0
	case Settled:
		if p.State == Awake && p.unsaid {
			p.unsaid = false
			return SayAwake
		}
		return 0
	case Again:
		if p.State == Dozing && p.Reason != "" {
			p.Reason = ""
			return p.rest(e.At)
		}
		return 0
	case Answered:
		if p.State == Lost {
			return p.found(e.At)
		}
		return 0
	case Overdue:
		if p.State == Thawing || p.State == Lost {
			p.overdue = true
			return Refuse
		}
		return 0
	case End:
		p.ending = true
	}
	return p.rouse(e.Kind)
}

// rouse answers Request, Wake and End.
func (p *Pod) rouse(kind Kind) Do {
	p.asked = p.asked || kind == Request && p.State >= Dozing
	switch p.State {
	case Resting:
		if kind == Request {
			return 0 // sent before everybody knew; the pod goes on resting
		}
		p.State = Awake
		return SayAwake
	case Dozing:
		do := p.arise()
		if p.State == Rousing {
			p.wanted = true
			return do | Arm
		}
		return do &^ Release
	case Freezing, Asleep:
		p.State = Thawing
		p.order(Message{Verb: Thaw})
		return Send | Arm
	case Lost, Leaving, Rousing:
		if !p.wanted {
			p.wanted = true
			return Arm
		}
	}
	return 0
}

// leave begins a sleep.
func (p *Pod) leave(now time.Duration) Do {
	told := p.slept
	p.slept = true
	if p.Hooks.Sleep && !told {
		p.State = Leaving
		return CallSleep
	}
	return p.rest(now)
}

// called takes the end of a hook.
func (p *Pod) called(e Event) Do {
	if e.Kind == Balked && (p.State == Leaving || p.State == Rousing) {
		p.Unwilling, p.Balk = e.At+HookPause, e.Message.Text
	}
	switch {
	case p.State == Leaving && (e.Kind == Balked || p.wanted || p.ending):
		return p.arise()
	case p.State == Leaving:
		return p.rest(e.At)
	case p.State == Rousing:
		return p.rise()
	}
	return 0
}

// arise is called when it is certain that the containers run, and the pod is to be awake.
func (p *Pod) arise() Do {
	if p.Hooks.Wake && p.slept {
		// Those that come now wait for the hook, which its bound ends.
		p.State, p.overdue = Rousing, false
		return CallWake
	}
	return p.rise()
}

func (p *Pod) rise() Do {
	p.unsaid = p.asked && p.listed
	p.State, p.wanted, p.overdue, p.slept, p.asked = Awake, false, false, false, false
	if p.unsaid {
		return Release | Settle
	}
	return Release | SayAwake
}

// rest lets an idle pod sleep as deeply as it can.
func (p *Pod) rest(now time.Duration) Do {
	if p.Level > Warm && p.connected && p.Reason == "" {
		p.State = Freezing
		p.order(Message{Verb: Freeze, Level: p.Level, Expires: now + OrderTime})
		p.Risk = now + OrderTime + StallTime
		return Send
	}
	if p.State == Dozing {
		return 0
	}
	p.State, p.Depth = Dozing, Warm
	return SayAsleep
}

func (p *Pod) order(m Message) {
	m.Number = p.Order.Number + 1
	p.Order, p.answered = m, false
}

func (p *Pod) received(m Message) Do {
	if m.Number != p.Order.Number || p.answered {
		// The answer to the Freeze before a Thaw ends the risk that it comes late.
		if p.State == Thawing && m.Number+1 == p.Order.Number && (m.Verb == Froze || m.Verb == Failed) {
			p.Risk = 0
		}
		return 0
	}
	switch {
	case p.State == Freezing && m.Verb == Froze:
		p.answered, p.State, p.Risk, p.Depth = true, Asleep, 0, m.Level
		return SayAsleep
	case p.State == Freezing && m.Verb == Failed:
		p.answered, p.State, p.Risk, p.Reason, p.Depth = true, Dozing, 0, m.Text, Warm
		return SayAsleep | Retry
	case p.State == Thawing && m.Verb == Thawed:
		p.answered, p.Risk, p.wanted = true, 0, true
		return p.arise()
	}
	return 0
}

func (p *Pod) disconnected() Do {
	p.connected = false
	if p.State < Freezing || p.State > Thawing {
		return 0
	}
	p.wanted = p.State == Thawing
	p.State, p.answered = Lost, true
	return Probe
}

// found is called when it is certain that the containers run.
func (p *Pod) found(now time.Duration) Do {
	p.overdue, p.Risk = false, 0
	if p.wanted || p.ending {
		return p.arise()
	}
	p.State = Resting
	return p.leave(now)
}
