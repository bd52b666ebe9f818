// Package serve runs the activator's request servers and ends them without losing a request.
//
// Owns: the listeners and the state leaving. Reads: when the last request came. Writes: nothing.
// Never: refuses a request that still arrives while it drains.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/forward"
)

const (
	// DrainLeast is how long the activator keeps accepting after SIGTERM in any case: ReadyFor,
	// plus the time for readiness to propagate through kubelet, EndpointSlices and gateways.
	// DrainQuiet is how long no request must have come after that. DrainMax is when it stops
	// waiting for quiet. Requests that still come show that somebody has not heard yet, and each
	// would be lost: where the control plane itself had too little CPU, it took a minute (contract
	// section 6.1: 45 s, without looking).
	DrainLeast = ReadyFor + 10*time.Second
	DrainQuiet = 5 * time.Second
	DrainMax   = 5 * time.Minute
	// ReadyFor is how long it calls itself ready after SIGTERM. Kubernetes takes a deleted pod out
	// of the ready endpoints whatever the pod says; what it says decides whether it counts as still
	// serving, for when no other activator is there: another one may be deleted while this one
	// leaves, and then requests may come back after a while of quiet. So it must not end as long as
	// it can be counted on. A replacement was seen to need more than ten seconds on a machine with
	// sixty runnable tasks; until then pods would be reached directly, which hold less. A container
	// that is restarted in its pod has no other way than this to be taken out, and then needs the
	// rest of DrainMax for it.
	ReadyFor = 30 * time.Second
	// finish is when requests in flight and held ones are cut; the Deployment's grace period is 600
	// s.
	finish = 585 * time.Second
)

// Server is a part of the process.
type Server struct {
	Forward   *forward.Server
	Listeners []net.Listener
	// Known is closed when the cluster's revisions are known. Until then connections wait in the
	// listeners' queues: a process that was restarted in its pod still gets requests, of which it
	// would say that there is no such revision. nil is at once.
	Known <-chan struct{}
	// TLSAddress is listened on over TLS once TLSKnown is closed; nil is never.
	TLSAddress string
	TLSKnown   <-chan struct{}
	// LastRequest is when the newest request came.
	LastRequest func() time.Time
	Log         *slog.Logger
	// Least, Quiet and Max are DrainLeast, DrainQuiet and DrainMax unless a test is in a hurry.
	Least, Quiet, Max time.Duration
	// Departure is told of SIGTERM.
	Departure *Departure
}

// Departure says whether the process is about to end. The zero value is good.
type Departure struct {
	began atomic.Int64 // unix nanoseconds of SIGTERM
}

// Leaving says whether the process was told to end so long ago that nobody should count on it any
// more.
func (d *Departure) Leaving() bool {
	began := d.began.Load()
	return began != 0 && time.Since(time.Unix(0, began)) >= ReadyFor
}

// Run serves until ctx is done, then drains: responses say "Connection: close", after a while
// readiness fails, and requests are still served until none has come for a while; then the
// listeners close and what is in flight or held finishes.
func (s *Server) Run(ctx context.Context) error {
	if s.Known != nil {
		select {
		case <-s.Known:
		case <-ctx.Done():
			for _, l := range s.Listeners {
				l.Close()
			}
			return nil
		}
	}
	failed := make(chan error, len(s.Listeners)+1)
	servers := 0
	for _, l := range s.Listeners {
		servers++
		go func() { failed <- s.Forward.Serve(l) }()
	}
	if s.TLSKnown != nil {
		servers++
		go func() { failed <- s.serveTLS(ctx) }()
	}
	select {
	case err := <-failed:
		if ctx.Err() == nil {
			s.Forward.Close()
			return fmt.Errorf("serve: %w", err)
		}
		servers-- // it waited for a certificate that is not needed any more
	case <-ctx.Done():
	}
	setDefault(&s.Least, DrainLeast)
	setDefault(&s.Quiet, DrainQuiet)
	setDefault(&s.Max, DrainMax)
	s.Forward.SetDraining(true)
	began := time.Now()
	s.Departure.began.Store(began.UnixNano())
	s.waitForQuiet(began)
	s.Log.Info("no new requests for a while; finishing those in progress", "drained_seconds", time.Since(began).Seconds())
	grace, cancel := context.WithDeadline(context.WithoutCancel(ctx), began.Add(finish))
	defer cancel()
	err := s.Forward.Shutdown(grace)
	for range servers {
		if e := <-failed; !errors.Is(e, forward.ErrServerClosed) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// serveTLS listens as soon as there is a certificate, so that who finds the port open finds it
// working.
func (s *Server) serveTLS(ctx context.Context) error {
	select {
	case <-s.TLSKnown:
	case <-ctx.Done():
		return forward.ErrServerClosed
	}
	l, err := net.Listen("tcp", s.TLSAddress)
	if err != nil {
		return fmt.Errorf("listen for requests over TLS: %w", err)
	}
	return s.Forward.ServeTLS(l)
}

func (s *Server) waitForQuiet(began time.Time) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		since := now.Sub(began)
		if since >= s.Max || since >= s.Least && now.Sub(s.LastRequest()) >= s.Quiet {
			return
		}
	}
}

func setDefault(field *time.Duration, value time.Duration) {
	if *field == 0 {
		*field = value
	}
}
