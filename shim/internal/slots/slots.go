// Package slots bounds how many requests run at a time, and how many wait for that.
//
// Owns: the slots. Reads: nothing. Writes: nothing. Never: runs a request.
package slots

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Errors of Take.
var (
	ErrFull = errors.New("too many requests wait for a worker")
	ErrLong = errors.New("no worker was free in time")
)

// Slots are the workers of a program and the queue before them.
type Slots struct {
	free    chan struct{} // nil: no limit
	waiting atomic.Int64
	queue   int64
	longest time.Duration // 0: no limit
}

// New returns slots for so many workers, 0 for any number. Beyond them so many requests wait, each
// for at most longest, 0 for any time.
func New(workers, queue int, longest time.Duration) *Slots {
	s := &Slots{queue: int64(queue), longest: longest}
	if workers > 0 {
		s.free = make(chan struct{}, workers)
		for range workers {
			s.free <- struct{}{}
		}
	}
	return s
}

// Take waits for a slot. The caller gives it back with release, once. It returns ErrFull, ErrLong,
// or the cause of the end of ctx.
func (s *Slots) Take(ctx context.Context) (release func(), err error) {
	if s.free == nil {
		return func() {}, nil
	}
	give := func() { s.free <- struct{}{} }
	select {
	case <-s.free:
		return give, nil
	default:
	}
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > s.queue {
		return nil, ErrFull
	}
	if s.longest > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.longest, ErrLong)
		defer cancel()
	}
	select {
	case <-s.free:
		return give, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
