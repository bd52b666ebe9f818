// Package shares divides something that there is so much of, such as bytes of memory, among owners
// who may each want all of it.
//
// Owns: how much each owner holds. Reads: nothing. Writes: nothing. Never: lets one owner keep
// others from their share.
package shares

import (
	"context"
	"sync"
)

// Pool is what is divided. An owner takes more only if it then holds no more than is free. Alone it
// can hold half, beside another that does the same a third, so whoever comes later finds some.
type Pool struct {
	mu    sync.Mutex
	free  int64
	held  map[string]int64 // none has 0
	given chan struct{}    // closed when something was given back; nil if nobody waits
}

// New returns a Pool of so much.
func New(all int64) *Pool { return &Pool{free: all, held: map[string]int64{}} }

// Take takes n for an owner, or nothing and is false.
func (p *Pool) Take(owner string, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(owner, n)
}

func (p *Pool) take(owner string, n int64) bool {
	if p.held[owner]+n > p.free-n {
		return false
	}
	p.add(owner, n)
	return true
}

// Add takes n for an owner although there may be too little: for what is there already.
func (p *Pool) Add(owner string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(owner, n)
}

func (p *Pool) add(owner string, n int64) {
	p.free -= n
	if owner == "" {
		return
	}
	if p.held[owner] += n; p.held[owner] == 0 {
		delete(p.held, owner)
	}
}

// Give gives n back.
func (p *Pool) Give(owner string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(owner, -n)
	if p.given != nil {
		close(p.given)
		p.given = nil
	}
}

// Wait takes n when there is as much, or returns why ctx is done.
func (p *Pool) Wait(ctx context.Context, owner string, n int64) error {
	for {
		p.mu.Lock()
		if p.take(owner, n) {
			p.mu.Unlock()
			return nil
		}
		if p.given == nil {
			p.given = make(chan struct{})
		}
		given := p.given
		p.mu.Unlock()
		select {
		case <-given:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Grow makes the Pool larger.
func (p *Pool) Grow(n int64) { p.Give("", n) }

// Held returns what an owner holds.
func (p *Pool) Held(owner string) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[owner]
}

// Largest returns the owner that holds most, "" if none holds anything.
func (p *Pool) Largest() (owner string, most int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for one, n := range p.held {
		if n > most || n == most && one < owner {
			owner, most = one, n
		}
	}
	return owner, most
}

// Free returns what nobody holds; it is negative if more was added than there is.
func (p *Pool) Free() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.free
}
