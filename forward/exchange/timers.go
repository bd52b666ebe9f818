package exchange

import (
	"errors"
	"fmt"
	"time"
)

// Timeouts of one request; zero means none. All of them start when the request's head is complete.
type Timeouts struct {
	ResponseStart time.Duration // until the first byte of the response
	Idle          time.Duration // since the last byte written to the client
	Total         time.Duration // for the whole exchange
	// Action says how a response that has begun ends when a timer fires.
	Action Action
}

// Action is what a timer does to a response that has begun.
type Action uint8

// The actions.
const (
	// EndResponse ends the response cleanly where its framing allows that, with a trailer that
	// names the timer.
	EndResponse Action = iota
	// CutResponse breaks the response off, so that no client takes it for a whole one.
	CutResponse
)

// Timer names one of the three timers.
type Timer uint8

// The timers, in the order in which a tie is resolved.
const (
	NoTimer Timer = iota
	TotalTimer
	ResponseStartTimer
	IdleTimer
)

// String is the name of the Revision field that sets the timer.
func (t Timer) String() string {
	switch t {
	case TotalTimer:
		return "timeoutSeconds"
	case ResponseStartTimer:
		return "responseStartTimeoutSeconds"
	case IdleTimer:
		return "idleTimeoutSeconds"
	}
	return "none"
}

// Of is the setting of one timer.
func (t *Timeouts) Of(timer Timer) time.Duration {
	switch timer {
	case TotalTimer:
		return t.Total
	case ResponseStartTimer:
		return t.ResponseStart
	case IdleTimer:
		return t.Idle
	}
	return 0
}

// next is the timer that fires first. started: the response has begun.
func (t *Timeouts) next(began, lastWrite time.Time, started bool) (end time.Time, timer Timer) {
	if t.Total > 0 {
		end, timer = began.Add(t.Total), TotalTimer
	}
	if t.ResponseStart > 0 && !started {
		if e := began.Add(t.ResponseStart); timer == NoTimer || e.Before(end) {
			end, timer = e, ResponseStartTimer
		}
	}
	if t.Idle > 0 {
		if lastWrite.IsZero() {
			lastWrite = began
		}
		if e := lastWrite.Add(t.Idle); timer == NoTimer || e.Before(end) {
			end, timer = e, IdleTimer
		}
	}
	return end, timer
}

// TimerError says which timer ended a request.
type TimerError struct {
	Timer Timer
	After time.Duration // the timer's setting
}

func (e *TimerError) Error() string {
	return fmt.Sprintf("request ended by %s after %s", e.Timer, e.After)
}

// ErrClientGone is the error of an exchange whose client closed its connection or reset its stream.
var ErrClientGone = errors.New("the client closed its connection")

// Cause says in one word how an exchange ended.
type Cause uint8

// The causes.
const (
	Completed      Cause = iota // the upstream's response was passed on whole
	Replied                     // answered by the Handler
	ClientGone                  // the client left first
	TimedOut                    // a timer fired
	UpstreamFailed              // no or a broken response from the upstream
	BadRequest                  // the body's framing was broken
)

func (c Cause) String() string {
	return [...]string{"completed", "replied", "client-gone", "timed-out", "upstream-failed", "bad-request"}[c]
}
