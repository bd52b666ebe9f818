// Package serve runs the activator's request servers and ends them without losing a request.
//
// Owns: the listeners and the state draining. Reads: when the last request came. Writes: nothing. Never: refuses a request that still arrives
// while it drains.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/internal/forward"
)

const (
	// DrainLeast is how long the activator keeps accepting after SIGTERM in any case: the time in which Kubernetes and
	// the gateways take it out of their endpoints. DrainQuiet is how long no request must have come after that,
	// DrainMost when it stops waiting for quiet (contract section 6.1: 45 s, there without looking).
	DrainLeast = 10 * time.Second
	DrainQuiet = 5 * time.Second
	DrainMost  = 45 * time.Second
	// finish bounds the wait for requests in flight and held ones after that; the Deployment's grace period is 600 s.
	finish = 540 * time.Second
)

// Server is a part of the process.
type Server struct {
	Forward   *forward.Server
	Listeners []net.Listener
	// LastRequest is when the newest request came.
	LastRequest func() time.Time
	Log         *slog.Logger
	// Least, Quiet and Most are DrainLeast, DrainQuiet and DrainMost unless a test is in a hurry.
	Least, Quiet, Most time.Duration

	draining atomic.Bool
}

// Draining says whether the process was told to end.
func (s *Server) Draining() bool { return s.draining.Load() }

// Run serves until ctx is done, then drains: readiness fails, responses say "Connection: close", and
// requests are still served until none has come for a while; then the listeners close and what
// is in flight or held finishes.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, len(s.Listeners))
	for _, l := range s.Listeners {
		go func() { failed <- s.Forward.Serve(l) }()
	}
	select {
	case err := <-failed:
		s.Forward.Close()
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.draining.Store(true)
	setDefault(&s.Least, DrainLeast)
	setDefault(&s.Quiet, DrainQuiet)
	setDefault(&s.Most, DrainMost)
	s.Forward.SetDraining(true)
	began := time.Now()
	s.waitForQuiet(began)
	s.Log.Info("no request came for a while; finishing what is here", "drained_seconds", time.Since(began).Seconds())
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), finish)
	defer cancel()
	err := s.Forward.Shutdown(grace)
	for range s.Listeners {
		if e := <-failed; !errors.Is(e, forward.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (s *Server) waitForQuiet(began time.Time) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		since := now.Sub(began)
		if since >= s.Most || since >= s.Least && now.Sub(s.LastRequest()) >= s.Quiet {
			return
		}
	}
}

func setDefault(field *time.Duration, value time.Duration) {
	if *field == 0 {
		*field = value
	}
}
