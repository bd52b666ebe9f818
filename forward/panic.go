package forward

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// A bug that one request meets must not take every other request of the process with it. Each
// goroutine that this package starts therefore ends in one of the functions below; what it was
// serving ends, the rest goes on. A panic with a lock held leaves its connection stuck, but only
// that.

// errPanicked is the end of an exchange in which something panicked; its client gets 500.
var errPanicked = errors.New("internal error")

// Panics counts panics that were caught.
func (s *Server) Panics() int64 { return s.panics.Load() }

// caught deals with what recover returned. Where nobody is to be told, the panic goes on.
func (s *Server) caught(value any) {
	if s == nil || s.OnPanic == nil {
		panic(value)
	}
	s.panics.Add(1)
	s.OnPanic(value, debug.Stack())
}

// catch is to be deferred.
func (s *Server) catch() {
	if v := recover(); v != nil {
		s.caught(v)
	}
}

// done tells the Handler.
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
	defer s.catch()
	return s.FailureReply(err)
}

// abandon ends the exchange that a panic broke off, on a connection about which nothing is certain
// any more.
func (c *conn) abandon(value any) {
	defer c.srv.catch()
	e := exchange.Event{Kind: exchange.Panicked, Err: fmt.Errorf("%w: %v", errPanicked, value)}
	if do := c.machine.Step(&e); do.Has(exchange.Finish) {
		c.clean, c.lingering = false, true
		c.finish(do)
		c.linger()
	}
}

// guard is deferred by what runs beside a connection's reader: the reader notices the close and
// ends the connection.
func (c *h2conn) guard() {
	if v := recover(); v != nil {
		c.srv.caught(v)
		c.nc.Close()
	}
}

// readerGuard is deferred by the reader. Where the reading was handed on, that is left to whom it
// was handed to.
func (c *h2conn) readerGuard(handed *bool) {
	if v := recover(); v != nil {
		c.srv.caught(v)
		c.nc.Close()
		if !*handed {
			defer c.guard()
			c.end(fmt.Errorf("%w: %v", errPanicked, v))
		}
	}
}
