package forward

import (
	"errors"
	"runtime/debug"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// A bug that one request triggers must not end all other requests of the process. So each goroutine
// that this package starts recovers: see catch, conn.abandon and h2conn.guard. They end what the
// goroutine was serving; everything else continues. A panic with a lock held leaves its connection
// stuck, but no other.

// errPanicked is the end of an exchange in which something panicked. The client gets 500.
var errPanicked = errors.New("internal error")

// IsOurs reports whether an exchange failed for a reason of this process, which has no memory for
// it or has a bug. The upstream is not to blame then.
func IsOurs(err error) bool {
	_, full := errors.AsType[fullError](err)
	return full || errors.Is(err, errPanicked)
}

// Panics counts the panics that were caught.
func (s *Server) Panics() int64 { return s.panics.Load() }

// caught handles what recover returned. Without Server.OnPanic the panic continues.
func (s *Server) caught(value any) {
	if s == nil || s.OnPanic == nil {
		panic(value)
	}
	s.panics.Add(1)
	s.OnPanic(value, debug.Stack())
}

// catch is for defer.
func (s *Server) catch() {
	if v := recover(); v != nil {
		s.caught(v)
	}
}

// done calls the Handler's Done.
func (s *Server) done(r *Request, res *Result) {
	defer s.catch()
	s.Handler.Done(r, res)
}

func (s *Server) timeoutReply(e *exchange.Ending) (reply Reply) {
	reply.Status = 500 // where what follows panics
	defer s.catch()
	after := time.Duration(0)
	if fired, ok := errors.AsType[*TimerError](e.Err); ok {
		after = fired.After
	}
	return s.TimeoutReply(e.Timer, after)
}

func (s *Server) failureReply(err error) (reply Reply) {
	reply.Status = 500
	if errors.Is(err, errPanicked) {
		reply.Body = err.Error()
		return reply
	}
	if full, ok := errors.AsType[fullError](err); ok {
		return Reply{Status: 503, Body: full.Error(), Header: []Header{{Name: "Retry-After", Value: "1"}}}
	}
	defer s.catch()
	return s.FailureReply(err)
}
