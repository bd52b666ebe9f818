package exchange

import "time"

// Codes of HTTP/2 (RFC 9113 section 7) that the tables mention.
const (
	codeNone     = 0x0
	codeInternal = 0x2
	codeRefused  = 0x7
	codeCancel   = 0x8
)

// Ending is how the exchange ended.
type Ending struct {
	Cause   Cause
	Timer   Timer
	Err     error
	Code    uint32 // of HTTP/2, for Abort
	Panic   bool
	Retried bool

	upstreamEnded bool // or what it says has no meaning any more: there is nobody to part from
}

// panicked: what was asked of the Handler has no answer.
func (m *Machine) panicked(e *Event) Do {
	if m.state == Parting {
		m.state = Over
		return Drop | Finish
	}
	if m.Asking() {
		m.state, m.pending = Connecting, false
	}
	return m.end(Ending{Cause: UpstreamFailed, Err: e.Err, Panic: true, upstreamEnded: true})
}

// end is the one place where an error becomes an answer.
//
//	                               before a final head went to the client   after it
//	the client left                nothing                                  nothing
//	a timer fired                  504                                      a clean end with a trailer, or a cut: Timeouts.Action
//	the client's body is broken    400; a stream is reset                   a cut
//	the upstream canceled          the stream is reset: CANCEL              the same
//	the upstream failed            502                                      a cut
//	a panic                        500                                      a cut
//
// A cut resets a stream with the upstream's code if it gave one, and else with INTERNAL_ERROR: the
// client must not take what it has for a whole response. CANCEL is passed on because a server of
// gRPC whose timer for the client's deadline fires a moment before the client's own cancels the
// stream, and an answer of ours would hide the deadline. While the Handler has the request its
// context is canceled instead, and the first reason counts.
//
// An upstream of HTTP/1.1 that has not ended, and has the request, is parted from. So a client
// cannot free its place in a container by leaving, nor by a body that is broken.
func (m *Machine) end(how Ending) Do {
	if m.Asking() {
		if m.pending {
			return 0
		}
		how.Retried = m.ending.Retried
		m.pending, m.ending = true, how
		return Interrupt
	}
	how.Retried = m.ending.Retried
	state := m.state
	m.state, m.ending = Over, how
	m.tunneled = state == Switching || state == Tunnel
	over := Drop | Finish
	if !m.traits.Streams && !how.upstreamEnded && (waiting|begun)&(1<<state) != 0 {
		m.state, over = Parting, Part|SeeOut
	}
	answered := begun&(1<<state) != 0
	switch {
	case how.Cause == ClientGone:
		return over | Abort
	case how.Cause == BadRequest && m.traits.Streams:
		return over | Abort
	case how.Cause == UpstreamFailed && m.traits.Streams && how.Code == codeCancel:
		return over | Abort
	case !answered:
		return over | Answer
	}
	if how.Code == codeNone || how.Code == codeRefused {
		m.ending.Code = codeInternal
	}
	if how.Cause == TimedOut && m.policy.Timeouts.Action == EndResponse && state == Relaying {
		return over | EndTrailer
	}
	return over | Abort
}

// PartsWithin is how long an upstream may go on with a request that was given up: from now on for
// as long as the whole request might have taken. A tunnel has no answer that takes time.
func (m *Machine) PartsWithin() time.Duration {
	total := m.policy.Timeouts.Total
	switch {
	case m.tunneled:
		return tunnelParts
	case total > 0:
		return total
	}
	return partsWithin
}

const (
	partsWithin = 5 * time.Minute // for a request without a timer
	tunnelParts = 30 * time.Second
)
