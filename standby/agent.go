package standby

import "time"

// Work is what the agent does to the containers of a pod.
type Work uint8

// The kinds of work. Each ends with Done; one that fails to thaw is to be repeated.
const (
	Nothing Work = iota
	FreezeAll
	ThawAll
	Compress // move the memory of the frozen containers to swap
)

var workNames = [...]string{"nothing", "freeze", "thaw", "compress"}

func (w Work) String() string { return workNames[w] }

// Agent is the node agent's side of one connection. The zero value is a connection that has begun,
// and the containers run: the agent thaws everything when it starts, and before it ends a
// connection.
//
// It carries out one order at a time. A newer order replaces one that has not begun; the answer to
// the newer one tells the pod all it needs.
type Agent struct {
	// Swap says that the node has a place for compressed memory. Without it a pod is only frozen.
	Swap bool
	// Frozen says that the containers are frozen, or may be.
	Frozen bool

	running Message // the order under way
	busy    Work
	next    Message // the order that comes next
	waiting bool
	last    uint64
	closed  bool
	failure string // of the freeze that is being undone
}

// Receive takes a message of the pod. It reports false when the pod breaks the protocol: then the
// connection is to be closed.
func (a *Agent) Receive(m Message, now time.Duration) (work Work, answer *Message, ok bool) {
	if m.Verb != Freeze && m.Verb != Thaw || m.Number <= a.last {
		return Nothing, nil, false
	}
	// Both sides have one clock, so an order that is valid for longer was not made by queue-proxy.
	m.Expires = min(m.Expires, now+OrderTime)
	a.last, a.next, a.waiting = m.Number, m, true
	if a.busy != Nothing {
		return Nothing, nil, true
	}
	work, answer = a.begin(now)
	return work, answer, true
}

// begin begins the next order.
func (a *Agent) begin(now time.Duration) (Work, *Message) {
	if a.closed {
		a.waiting = false
		if a.Frozen {
			a.busy, a.running = ThawAll, Message{}
		}
		return a.busy, nil
	}
	if !a.waiting {
		return Nothing, nil
	}
	m := a.next
	a.waiting = false
	// The answer Failed says that the containers run. If they are frozen already, the order can
	// only ask for more of it.
	if m.Verb == Freeze && now > m.Expires && !a.Frozen {
		return Nothing, &Message{Verb: Failed, Number: m.Number, Text: "the order expired before the agent saw it"}
	}
	a.running, a.busy = m, ThawAll
	if m.Verb == Freeze {
		a.Frozen, a.busy = true, FreezeAll
	}
	return a.busy, nil
}

// Done ends the work under way. failure is empty if it succeeded.
func (a *Agent) Done(failure string, now time.Duration) (work Work, answer *Message) {
	done := a.busy
	a.busy = Nothing
	switch {
	case done == FreezeAll && failure != "":
		a.failure, a.busy = failure, ThawAll
		return ThawAll, nil
	case done == FreezeAll:
		answer = &Message{Verb: Froze, Number: a.running.Number, Level: Frozen}
		if a.running.Level == Compressed && a.Swap {
			answer.Level = Compressed
			if !a.waiting && !a.closed {
				a.busy = Compress
				return Compress, answer
			}
		}
	case done == ThawAll && failure != "":
		a.busy = ThawAll
		return ThawAll, nil
	case done == Compress:
		// What was not moved stays in memory. The containers are frozen either way.
	case done == ThawAll:
		a.Frozen = false
		if a.running.Verb == Freeze {
			answer = &Message{Verb: Failed, Number: a.running.Number, Text: a.failure}
		} else {
			answer = &Message{Verb: Thawed, Number: a.running.Number}
		}
		a.failure = ""
	}
	if a.closed {
		answer = nil
	}
	work, refusal := a.begin(now)
	if refusal != nil {
		answer = refusal
	}
	return work, answer
}

// Hurry reports whether the work under way is to be interrupted, because something else waits for
// its end. Call it after Receive and Close. Compress takes long, and a freeze may have to wait for
// its turn, or for a task that does not freeze. One that is interrupted has failed.
func (a *Agent) Hurry() bool {
	return (a.busy == Compress || a.busy == FreezeAll) && (a.waiting || a.closed)
}

// Close is called when the connection has ended, or is to be ended. The agent is rid of the pod
// once Gone.
func (a *Agent) Close(now time.Duration) Work {
	a.closed = true
	if a.busy != Nothing {
		return Nothing
	}
	work, _ := a.begin(now)
	return work
}

// Gone reports whether the connection is closed and the containers run.
func (a *Agent) Gone() bool { return a.closed && a.busy == Nothing && !a.Frozen }
