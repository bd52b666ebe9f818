// Package run starts the parts of a process and stops them in the opposite order. Many of them work
// each period: Every.
//
// Owns: the goroutines of the parts. Never: restarts one: a part that ends early ends the process,
// and Kubernetes restarts it as a whole.
package run

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// Part is one thing that a process runs until it is told to stop.
type Part struct {
	Name string
	// Run works until ctx is done and returns after it has let go of everything. An error, or an
	// end before ctx is done, stops the process.
	Run func(ctx context.Context) error
}

// Every calls do each period until ctx is done or do fails. What a call takes too long for is left
// out.
func Every(ctx context.Context, period time.Duration, do func(now time.Time) error) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if err := do(now); err != nil {
				return err
			}
		}
	}
}

// SignalContext returns a context that is done on SIGTERM and SIGINT.
func SignalContext(parent context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(parent, syscall.SIGTERM, syscall.SIGINT)
}

// All runs parts until ctx is done or one of them ends, then stops them one after another, the last
// one first, so that what a part stands on outlives it. It returns the errors of all parts.
func All(ctx context.Context, parts ...Part) error {
	type end struct {
		part int
		err  error
	}
	ended := make(chan end, len(parts))
	stops := make([]context.CancelFunc, len(parts))
	for i, part := range parts {
		// Each part has a context of its own that outlives ctx, or all would stop at once.
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		stops[i] = stop
		go func() { ended <- end{i, part.Run(own)} }()
	}
	var errs []error
	done := make([]bool, len(parts))
	note := func(e end, early bool) {
		done[e.part] = true
		switch name := parts[e.part].Name; {
		case e.err != nil && !errors.Is(e.err, context.Canceled):
			errs = append(errs, fmt.Errorf("%s: %w", name, e.err))
		case early:
			errs = append(errs, fmt.Errorf("%s ended on its own", name))
		}
	}
	if len(parts) > 0 {
		select {
		case <-ctx.Done():
		case e := <-ended:
			note(e, ctx.Err() == nil)
		}
	}
	for i := range slices.Backward(parts) {
		stops[i]()
		for !done[i] {
			note(<-ended, false)
		}
	}
	return errors.Join(errs...)
}
