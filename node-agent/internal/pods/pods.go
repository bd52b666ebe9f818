// Package pods keeps a link to every pod of the node that may sleep.
//
// Owns: the links. Reads: the pods of this node. Writes: nothing. Never: freezes a pod that is
// being deleted, or a container that the controller has not named.
package pods

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/node-agent/internal/link"
)

// Cgroups are the containers of all pods of the node.
type Cgroups interface {
	Freeze(ctx context.Context, uid string, ids []string) error
	Thaw(uid string) error
	Compress(ctx context.Context, uid string, ids []string) error
}

// Pods keeps the links. Its exported fields are set before the first pod comes.
type Pods struct {
	Cgroups Cgroups
	Port    uint16 // of queue-proxy
	Link    link.Options
	Log     *slog.Logger

	ctx   context.Context
	mu    sync.Mutex
	links map[types.UID]*entry
	all   sync.WaitGroup
}

// entry is a pod with a link, or with one that is ending.
type entry struct {
	pod  atomic.Pointer[Pod]
	stop context.CancelFunc
}

// New returns Pods without any.
func New() *Pods { return &Pods{links: map[types.UID]*entry{}} }

// Run follows what source tells until ctx ends, and returns once every container runs.
func (p *Pods) Run(ctx context.Context, source cache.ListerWatcher) error {
	p.ctx = ctx
	informer := cache.NewSharedInformer(source, &Pod{}, 0)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { p.see(o.(*Pod)) },
		UpdateFunc: func(_, o any) { p.see(o.(*Pod)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			p.leave(o.(*Pod).UID)
		},
	}); err != nil {
		return fmt.Errorf("watch the pods of this node: %w", err)
	}
	informer.RunWithContext(ctx)
	p.all.Wait()
	return nil
}

// Count returns the number of pods that have a link.
func (p *Pods) Count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// see takes the newest version of a pod.
func (p *Pods) see(pod *Pod) {
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if !pod.sleeps() || err != nil {
		p.leave(pod.UID)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.links[pod.UID]
	if e == nil {
		e = &entry{}
		p.links[pod.UID] = e
		e.pod.Store(pod)
		p.startLocked(e, netip.AddrPortFrom(address, p.Port))
		return
	}
	if before := e.pod.Swap(pod); before.Status.PodIP != pod.Status.PodIP {
		e.stop()
	}
}

func (p *Pods) leave(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.links[uid]; e != nil {
		e.pod.Store(nil)
		e.stop()
	}
}

func (p *Pods) startLocked(e *entry, to netip.AddrPort) {
	ctx, stop := context.WithCancel(p.ctx)
	e.stop = stop
	pod := e.pod.Load()
	o := p.Link
	o.Pod, o.UID, o.Address, o.Containers = pod.Namespace+"/"+pod.Name, string(pod.UID), to, &containers{p.Cgroups, e, string(pod.UID)}
	p.all.Go(func() {
		defer stop()
		link.Run(ctx, o)
		p.mu.Lock()
		defer p.mu.Unlock()
		// The pod may be wanted again, at another address.
		next := e.pod.Load()
		delete(p.links, pod.UID)
		if next == nil || p.ctx.Err() != nil {
			return
		}
		if address, err := netip.ParseAddr(next.Status.PodIP); err == nil {
			p.links[pod.UID] = e
			p.startLocked(e, netip.AddrPortFrom(address, p.Port))
		}
	})
}

// containers are those of one pod, as its status names them at the time of each call: a container
// that was restarted has a new ID.
type containers struct {
	cgroups Cgroups
	entry   *entry
	uid     string
}

func (c *containers) ids() ([]string, error) {
	pod := c.entry.pod.Load()
	if pod == nil {
		return nil, fmt.Errorf("the pod is going away")
	}
	return pod.containers()
}

func (c *containers) Freeze(ctx context.Context) error {
	ids, err := c.ids()
	if err != nil {
		return err
	}
	return c.cgroups.Freeze(ctx, c.uid, ids)
}

func (c *containers) Compress(ctx context.Context) error {
	ids, err := c.ids()
	if err != nil {
		return err
	}
	return c.cgroups.Compress(ctx, c.uid, ids)
}

func (c *containers) Thaw() error { return c.cgroups.Thaw(c.uid) }
