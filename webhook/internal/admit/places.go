package admit

import (
	"context"
	"net/netip"
	"slices"
	"sync"
)

// places lets in a bounded number of requests at once, and fewer from one address. Addresses that
// wait take turns, so that one with many requests delays another by one of them.
type places struct {
	mu          sync.Mutex
	free, ofOne int
	held        map[netip.Addr]int
	waiting     map[netip.Addr][]chan struct{}
	turns       []netip.Addr // the addresses that wait
}

func newPlaces(all, ofOne int) *places {
	return &places{free: all, ofOne: ofOne, held: map[netip.Addr]int{}, waiting: map[netip.Addr][]chan struct{}{}}
}

// take waits for a place until ctx ends. The place must be left if it returns true.
func (p *places) take(ctx context.Context, from netip.Addr) bool {
	mine := make(chan struct{})
	p.mu.Lock()
	if len(p.waiting[from]) == 0 {
		p.turns = append(p.turns, from)
	}
	p.waiting[from] = append(p.waiting[from], mine)
	p.admit()
	p.mu.Unlock()
	select {
	case <-mine:
		return true
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.waiting[from], mine); i >= 0 {
		p.unqueue(from, i)
		return false
	}
	return true // it came in the meantime
}

// try takes a place if there is one now.
func (p *places) try(from netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free == 0 || p.held[from] >= p.ofOne {
		return false
	}
	p.free--
	p.held[from]++
	return true
}

func (p *places) leave(from netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free++
	if p.held[from]--; p.held[from] == 0 {
		delete(p.held, from)
	}
	p.admit()
}

// admit gives free places to the addresses whose turn it is.
func (p *places) admit() {
	for p.free > 0 {
		i := slices.IndexFunc(p.turns, func(from netip.Addr) bool { return p.held[from] < p.ofOne })
		if i < 0 {
			return
		}
		from := p.turns[i]
		p.free--
		p.held[from]++
		close(p.waiting[from][0])
		p.unqueue(from, 0)
		if j := slices.Index(p.turns, from); j >= 0 {
			p.turns = append(slices.Delete(p.turns, j, j+1), from)
		}
	}
}

// unqueue takes one request of an address out of the queue.
func (p *places) unqueue(from netip.Addr, i int) {
	p.waiting[from] = slices.Delete(p.waiting[from], i, i+1)
	if len(p.waiting[from]) == 0 {
		delete(p.waiting, from)
		p.turns = slices.DeleteFunc(p.turns, func(one netip.Addr) bool { return one == from })
	}
}
