package link

import (
	"context"
	"errors"
	"sync"
	"time"

	"ebb.dev/ebb/standby"
)

const (
	// calm is how long after a thaw no pod is compressed: the request that woke its pod has its
	// answer then.
	calm = 100 * time.Millisecond
	// yields bounds how long a compression makes room for pods that wake. On a node where they
	// never cease, memory is worth something, too.
	yields = 5 * time.Second
	// hush is how long after a thaw no pod is frozen: most requests that wake a pod have their
	// answer then. A pod that was frozen says so to all activators and to the autoscaler.
	hush = 20 * time.Millisecond
	// patience bounds how long a freeze makes room for pods that wake. Its order ends with
	// OrderTime, and a pod whose order has ended stays warm.
	patience = standby.OrderTime / 2
)

// Pool bounds how much work the agent does at once, however many pods ask for it: the agent must
// answer the guard meanwhile. Each kind of work has places of its own, so a pod that wakes never
// waits for others that freeze or are compressed. A compression stops for it and goes on later, and
// a freeze begins later.
type Pool struct {
	places map[standby.Work]chan struct{}

	mu     sync.Mutex
	thaws  int       // under way
	thawed time.Time // when one ended last
	stop   func()    // interrupts the compression under way, nil for none
}

// NewPool returns the pool of a node.
func NewPool() *Pool {
	return &Pool{places: map[standby.Work]chan struct{}{
		standby.ThawAll:   make(chan struct{}, 2),
		standby.FreezeAll: make(chan struct{}, 2),
		standby.Compress:  make(chan struct{}, 1),
	}}
}

var errBusy = errors.New("the node agent was busy with other pods")

// do does work once there is a place for it, unless ctx ends before. A compression may be
// interrupted and begun anew.
func (p *Pool) do(ctx context.Context, work standby.Work, f func(context.Context) error) error {
	asked := time.Now()
	if work == standby.ThawAll {
		p.wake()
		defer p.woke()
	}
	place := p.places[work]
	select {
	case place <- struct{}{}:
	case <-ctx.Done():
		return errBusy
	}
	defer func() { <-place }()
	if work == standby.FreezeAll {
		p.yield(ctx, asked)
	}
	if ctx.Err() != nil {
		return errBusy
	}
	if work == standby.Compress {
		return p.compress(ctx, f)
	}
	return f(ctx)
}

// yield waits until no pod wakes, for patience at most, or until ctx ends.
func (p *Pool) yield(ctx context.Context, asked time.Time) {
	for {
		wait := min(p.restless(hush), patience-time.Since(asked))
		if wait <= 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// restless is how long it takes until no pod has woken for so long, if no other one does.
func (p *Pool) restless(quiet time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.restlessLocked(quiet)
}

func (p *Pool) restlessLocked(quiet time.Duration) time.Duration {
	if p.thaws > 0 {
		return quiet
	}
	return quiet - time.Since(p.thawed)
}

func (p *Pool) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaws++
	if p.stop != nil {
		p.stop()
	}
}

func (p *Pool) woke() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thaws--
	p.thawed = time.Now()
}

// compress compresses while no pod wakes.
func (p *Pool) compress(ctx context.Context, f func(context.Context) error) error {
	for began := time.Now(); ; {
		if time.Since(began) >= yields {
			return f(ctx)
		}
		try, stop := context.WithCancel(ctx)
		if wait := p.claim(stop); wait > 0 {
			stop()
			select {
			case <-ctx.Done():
				return errBusy
			case <-time.After(wait):
			}
			continue
		}
		err := f(try)
		p.mu.Lock()
		p.stop = nil
		interrupted := try.Err() != nil && ctx.Err() == nil
		p.mu.Unlock()
		stop()
		if !interrupted {
			return err
		}
	}
}

// claim lets a compression begin, which stop interrupts, or says how long it has to wait first.
func (p *Pool) claim(stop func()) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = p.restlessLocked(calm); wait <= 0 {
		p.stop = stop
	}
	return wait
}
