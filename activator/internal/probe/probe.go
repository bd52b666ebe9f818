// Package probe sends readiness probes to pods that are not ready in Kubernetes and that have sent
// no announcement. It is the fallback when an announcement is lost (contract section 6.4).
//
// Owns: one goroutine for each revision with queued requests and such pods. Reads: the revision's
// snapshot. Writes: Table.ProbeSucceeded. Never: probes while no request is queued; stores the
// result of a failed probe.
package probe

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
	// Period is the time between two probes of a pod. Timeout bounds one probe. It is far longer
	// than the round trip of a slow network, because a pod that always answers late would never be
	// used.
	Period  = 200 * time.Millisecond
	Timeout = 2 * time.Second
	// once bounds how many pods of a revision are probed at the same time.
	once = 16
)

// Prober sends the probes.
type Prober struct {
	// Mesh is chain.Handler.Mesh.
	Mesh func() bool

	mutex  sync.Mutex
	busy   map[backends.Key]bool
	wanted chan backends.Key
	client *http.Client
}

// New returns a Prober; Run must run.
func New(mesh func() bool) *Prober {
	return &Prober{Mesh: mesh, busy: map[backends.Key]bool{}, wanted: make(chan backends.Key, 1024),
		client: &http.Client{Timeout: Timeout, Transport: &http.Transport{
			DialContext:       (&net.Dialer{Timeout: Timeout}).DialContext,
			DisableKeepAlives: true,
		}}}
}

// Want starts probes for a revision with queued requests. It never blocks. A call that finds the
// channel full is dropped; the next doubling of the queue calls again.
func (p *Prober) Want(key backends.Key) {
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
func (p *Prober) Run(ctx context.Context, table *backends.Table) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case key := <-p.wanted:
			group.Go(func() {
				p.revision(ctx, table, key)
				p.mutex.Lock()
				delete(p.busy, key)
				p.mutex.Unlock()
			})
		}
	}
}

// revision probes the pods of a revision that are not ready until its queue is empty.
func (p *Prober) revision(ctx context.Context, table *backends.Table, key backends.Key) {
	tick := time.NewTimer(0)
	<-tick.C
	for {
		r := table.Get(key)
		if r == nil {
			return
		}
		if r.Queued() == 0 {
			return
		}
		s := r.Snapshot()
		var group sync.WaitGroup
		room := make(chan struct{}, once)
		for _, b := range s.NotReady {
			group.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				if p.ask(ctx, key, b) == nil {
					table.ProbeSucceeded(key, b)
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

func (p *Prober) ask(ctx context.Context, key backends.Key, b hold.Backend) error {
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
