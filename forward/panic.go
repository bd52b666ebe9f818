package forward

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"ebb.dev/ebb/forward/exchange"
)

// A bug that one request triggers must not end all other requests of the process. So each goroutine
// that this package starts defers one of the functions below. They end what the goroutine was
// serving; everything else continues. A panic with a lock held leaves its connection stuck, but no
// other.

// errPanicked is the end of an exchange in which something panicked. The client gets 500.
var errPanicked = errors.New("internal error")

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

// abandon ends an exchange after a panic. Nothing is certain about its connection any more.
func (c *conn) abandon(value any) {
	defer c.srv.catch()
	e := exchange.Event{Kind: exchange.Panicked, Err: fmt.Errorf("%w: %v", errPanicked, value)}
	if do := c.machine.Step(&e); do.Has(exchange.Finish) {
		c.clean, c.lingering = false, true
		c.finish(do)
		c.linger()
	}
}

// guard is deferred by goroutines that run beside a connection's reader. The reader notices the
// close and ends the connection.
func (c *h2conn) guard() {
	if v := recover(); v != nil {
		c.srv.caught(v)
		c.nc.Close()
	}
}

// readerGuard is deferred by the reader. If the reading was handed to another goroutine, that one
// ends the connection.
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
