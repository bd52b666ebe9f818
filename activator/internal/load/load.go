// Package load is what the activator counts of one revision's requests.
//
// Owns: how many requests are here now, the time-weighted mean of that, and the counters. Reads,
// and writes: nothing else. Never: blocks a request for longer than a few additions.
package load

import (
	"sync/atomic"

	"ebb.dev/ebb/activator/bind"
	"ebb.dev/ebb/forward"
)

// Load is the load of one revision. The zero value is ready for use.
type Load struct {
	Meter Meter
	// Requests counts those that ended, by class of status (index 0: none was sent).
	Requests [6]atomic.Int64
	// Held counts requests that had to wait, Refused those that a full pod sent on, Fallbacks those
	// that went to the fallback Service.
	Held, Refused, Fallbacks atomic.Int64
	// NotCompleted counts those that ended otherwise than by a pod's whole response.
	NotCompleted [forward.BadRequest + 1]atomic.Int64
	// Answers counts those that were answered here.
	Answers [bind.Answers]atomic.Int64
}
