package link

import (
	"context"
	"errors"

	"ebb.dev/ebb/standby"
)

// Pool bounds how much work the agent does at once, however many pods ask for it: the agent must
// answer the guard meanwhile. Each kind of work has places of its own, so a pod that wakes never
// waits for others that freeze or are compressed.
type Pool struct {
	places map[standby.Work]chan struct{}
}

// NewPool returns the pool of a node.
func NewPool() *Pool {
	return &Pool{places: map[standby.Work]chan struct{}{
		standby.ThawAll:   make(chan struct{}, 2),
		standby.FreezeAll: make(chan struct{}, 2),
		standby.Compress:  make(chan struct{}, 1),
	}}
}

// do does work once there is a place for it, unless ctx ends before.
func (p *Pool) do(ctx context.Context, work standby.Work, f func() error) error {
	place := p.places[work]
	select {
	case place <- struct{}{}:
	case <-ctx.Done():
		return errors.New("the node agent was busy with other pods")
	}
	defer func() { <-place }()
	if ctx.Err() != nil {
		return errors.New("the node agent was busy with other pods")
	}
	return f()
}
