package exchange

import "time"

// Kind is what happened.
type Kind uint8

// The kinds of events.
const (
	Begin         Kind = iota // the request's head is here
	Decided                   // the Handler returned: Choice, BodyFollows
	Connected                 // there is a connection: Reused, BodyFollows
	DialFailed                // there is none: Err
	Interim                   // a response head below 200: Status
	Head                      // the final response head
	Switched                  // 101, and both sides agree on the protocol
	SwitchPassed              // the whole request is at the upstream, and 101 goes to the client
	FirstByte                 // the upstream sent the first byte of the new protocol
	Ended                     // the last byte of the response went to the client, or the tunnel ended
	Lost                      // the upstream's connection or stream ended too soon: Err, Loss, Code
	Failed                    // the upstream broke the rules: Err
	BadBody                   // the client's body is not what it announced: Err, Code
	ClientLeft                // the client closed its connection or reset the stream
	Tick                      // time passed
	Panicked                  // something of ours panicked: Err
	UpstreamEnded             // the upstream of a request that was given up has answered or closed
)

var kindNames = [...]string{"begin", "decided", "connected", "dial-failed", "interim", "head", "switched", "switch-passed", "first-byte", "ended", "lost", "failed",
	"bad-body", "client-left", "tick", "panicked", "upstream-ended"}

func (k Kind) String() string { return kindNames[k] }

// expected has the states in which an event means something: the first column of the table in the
// package comment.
var expected = [...]uint16{
	Begin:         1 << New,
	Decided:       asking,
	Connected:     1 << Connecting,
	DialFailed:    1 << Connecting,
	Interim:       waiting,
	Head:          waiting,
	Switched:      waiting,
	SwitchPassed:  1 << Sent,
	FirstByte:     1 << Switching,
	Ended:         1<<Relaying | 1<<Switching | 1<<Tunnel,
	Lost:          waiting | 1<<Reviewing | begun,
	Failed:        anywhere,
	BadBody:       anywhere,
	ClientLeft:    anywhere,
	Tick:          anywhere,
	Panicked:      anywhere | 1<<Parting,
	UpstreamEnded: 1 << Parting,
}

const (
	asking   = 1<<Admitting | 1<<Redirecting | 1<<Reviewing
	waiting  = 1<<Deferred | 1<<Sent
	begun    = 1<<Relaying | 1<<Switching | 1<<Tunnel // a final response head went to the client
	anywhere = asking | 1<<Connecting | waiting | begun
)

// Choice is what the Handler decided.
type Choice uint8

// The choices.
const (
	Forward Choice = iota // to an upstream; of a response that was reviewed: drop it and send the request to another
	Reply                 // answer the request; of a response that was reviewed: instead of it
	Pass                  // pass the response that was reviewed
)

// Loss is how an upstream's connection or stream ended before its time.
type Loss uint8

// The losses.
const (
	Broken Loss = iota // nothing is known about what the upstream did with the request
	Unused             // the connection ended without a byte of a response, or had late bytes of an earlier one
	Unseen             // it is certain that the upstream did nothing with the request
)

// Event is something that happened.
type Event struct {
	Kind        Kind
	Choice      Choice
	Loss        Loss
	Reused      bool // the connection carried a request before
	BodyFollows bool // more of the body is to come than what goes with the head
	Ours        bool // of Failed: the reason is ours, and the upstream works on
	Status      int
	Code        uint32 // of HTTP/2: why the stream is reset
	At          time.Time
	Err         error
}
