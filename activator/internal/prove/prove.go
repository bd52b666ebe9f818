// Package prove asks pods that Kubernetes calls not ready, and that have not announced themselves, whether they are ready:
// the fallback for a lost announcement (contract section 6.4).
//
// Owns: a goroutine for each revision that has waiting requests and such pods. Reads: the revision's snapshot.
// Writes: Prove of the table. Never: asks while nothing waits; keeps anything from a failed attempt.
package prove

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

const (
	// Period is how often a pod is asked, Timeout how long it may take: far beyond a slow network's round trip, because a
	// pod that cannot answer in time can never be used.
	Period  = 200 * time.Millisecond
	Timeout = 2 * time.Second
	// once is how many pods of a revision are asked at a time.
	once = 16
)

// Prover asks pods.
type Prover struct {
	Table *backends.Table
	// Mesh is chain.Handler.Mesh.
	Mesh func() bool

	mutex  sync.Mutex
	busy   map[backends.Key]bool
	wanted chan backends.Key
	client *http.Client
}

// New returns a Prover; Run must run.
func New(table *backends.Table) *Prover {
	return &Prover{Table: table, busy: map[backends.Key]bool{}, wanted: make(chan backends.Key, 1024),
		client: &http.Client{Timeout: Timeout, Transport: &http.Transport{
			DialContext:       (&net.Dialer{Timeout: Timeout}).DialContext,
			DisableKeepAlives: true,
		}}}
}

// Want tells that requests of a revision wait. It never blocks; a hint that finds no room is given up,
// since the next doubling of the queue gives another.
func (p *Prover) Want(key backends.Key) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.busy[key] {
		return
	}
	select {
	case p.wanted <- key:
		p.busy[key] = true
	default:
	}
}

// Run works until ctx is done.
func (p *Prover) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case key := <-p.wanted:
			group.Go(func() {
				p.revision(ctx, key)
				p.mutex.Lock()
				delete(p.busy, key)
				p.mutex.Unlock()
			})
		}
	}
}

// revision asks a revision's unproven pods until nothing waits any more.
func (p *Prover) revision(ctx context.Context, key backends.Key) {
	tick := time.NewTimer(0)
	<-tick.C
	for {
		r := p.Table.Get(key)
		if r == nil {
			return
		}
		if waiting, _ := r.Queue.Load(); waiting == 0 {
			return
		}
		s := r.Snapshot()
		var group sync.WaitGroup
		room := make(chan struct{}, once)
		for _, b := range s.Unproven {
			group.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				if p.ask(ctx, key, b) == nil {
					p.Table.Prove(key, b)
				}
			})
		}
		group.Wait()
		tick.Reset(Period)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.Changed:
		}
	}
}

func (p *Prover) ask(ctx context.Context, key backends.Key, b hold.Backend) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.Address.String()+wire.PathHealth, nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", b.Address, err)
	}
	request.Header.Set("User-Agent", wire.AgentActivatorProbe)
	request.Header.Set(wire.HeaderNetworkProbe, wire.ProbeQueue)
	if p.Mesh != nil && p.Mesh() {
		request.Host = names.PrivateService(key.Name) + "." + key.Namespace
		request.Header.Set(wire.HeaderDirectLB, "true")
	}
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask %s: %w", b.Address, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64))
	if err != nil || response.StatusCode != http.StatusOK || string(body) != wire.ProbeQueue {
		return fmt.Errorf("ask %s: it answered %s %q", b.Address, response.Status, body)
	}
	return nil
}
