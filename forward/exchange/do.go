package exchange

import "ebb.dev/ebb/internal/machine"

// Do is what is to be done, in the order of the constants.
type Do uint32

// What Step may ask for.
const (
	Interrupt   Do = 1 << iota // cancel the context of the Handler that has the request
	Drop                       // give the upstream's connection or stream up
	Part                       // tell the upstream that nobody waits for it, by closing the writing side
	Rewind                     // make the request as it was before it was sent
	SayContinue                // send the client 100 Continue
	Ask                        // ask the Handler; State says which question
	Connect                    // get a connection; a new one when NeedsFresh
	SendHead                   // send the request's head, and what of the body goes with it
	SendBody                   // send the rest of the body
	PassInterim                // pass the interim head
	PassHead                   // pass the final head, then the body
	PassSwitch                 // see that the body is sent whole, pass the 101, then bytes both ways
	Answer                     // answer as Ending says
	EndTrailer                 // end the response with a trailer that names the timer; where that cannot be, Abort
	Abort                      // reset the stream with Ending.Code, or cut the connection
	SeeOut                     // read until the upstream has answered or closed, at most for PartsWithin
	Finish                     // tell the Handler how it ended
)

var doNames = [...]string{"interrupt", "drop", "part", "rewind", "say-continue", "ask", "connect", "send-head", "send-body", "pass-interim", "pass-head",
	"pass-switch", "answer", "end-trailer", "abort", "see-out", "finish"}

// Has reports whether one of these is to be done.
func (d Do) Has(what Do) bool { return d&what != 0 }

func (d Do) String() string { return machine.Words(d, doNames[:]) }
