package nodes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"ebb.dev/ebb/wire"
)

const (
	// publishPeriod is the time between two looks whether this replica is to write.
	publishPeriod = time.Second
	// publishTime bounds a read or a write.
	publishTime = 5 * time.Second
)

// Publisher tells the controller which nodes are silent, in the Lease wire.SilentNodes. Of several
// replicas one does.
type Publisher struct {
	Leases coordination.LeaseInterface
	// MayWrite reports whether this replica is the one.
	MayWrite func() bool
	// Undecided, if set, receives nodes that another replica told of, and returns those about which
	// this one cannot decide yet. They stay in the Lease. A replica that does not write receives
	// them once, when it starts: it decides about its own revisions, too.
	Undecided func([]string) []string
	Log       *slog.Logger

	mutex sync.Mutex
	want  []string
	news  chan struct{}
}

// Set says which nodes are silent now, by name. It does not block.
func (p *Publisher) Set(silent []string) {
	p.mutex.Lock()
	p.want = slices.Clone(silent)
	p.mutex.Unlock()
	select {
	case p.changed() <- struct{}{}:
	default:
	}
}

func (p *Publisher) changed() chan struct{} {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.news == nil {
		p.news = make(chan struct{}, 1)
	}
	return p.news
}

// Run writes until ctx ends. What it wrote or found is not read again as long as it may write.
func (p *Publisher) Run(ctx context.Context) error {
	tick := time.NewTicker(publishPeriod)
	defer tick.Stop()
	var have *string
	var kept []string // of another replica
	for begun, told := false, p.Undecided == nil; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.changed():
		}
		if !p.MayWrite() {
			have, kept, begun = nil, nil, false
			if !told {
				names, err := p.read(ctx)
				if told = err == nil; told {
					p.Undecided(names)
				}
			}
			continue
		}
		var err error
		if !begun {
			kept, err = p.read(ctx)
			begun = err == nil
			told = told || begun
		}
		if len(kept) > 0 && p.Undecided != nil {
			kept = p.Undecided(kept)
		} else {
			kept = nil
		}
		p.mutex.Lock()
		want := wire.EncodeSilentNodes(union(p.want, kept))
		p.mutex.Unlock()
		if err == nil && (have == nil || *have != want) {
			if have, err = &want, p.write(ctx, want); err != nil {
				have = nil
			}
		}
		if err != nil && ctx.Err() == nil {
			p.Log.Warn("cannot tell which nodes are silent; it is tried again", "error", err)
		}
	}
}

// union is both without what is twice, in order.
func union(a, b []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// read returns which nodes the Lease says are silent.
func (p *Publisher) read(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	lease, err := p.Leases.Get(ctx, wire.SilentNodes, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Lease %s: %w", wire.SilentNodes, err)
	}
	return wire.DecodeSilentNodes(lease.Annotations[wire.SilentNodesAnnotation]), nil
}

// write makes the Lease say so. Without one, no node is silent.
func (p *Publisher) write(ctx context.Context, want string) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	lease, err := p.Leases.Get(ctx, wire.SilentNodes, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && want == "":
		return nil
	case apierrors.IsNotFound(err):
		_, err = p.Leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: wire.SilentNodes,
			Annotations: map[string]string{wire.SilentNodesAnnotation: want}}}, metav1.CreateOptions{})
	case err == nil && lease.Annotations[wire.SilentNodesAnnotation] != want:
		lease = lease.DeepCopy()
		metav1.SetMetaDataAnnotation(&lease.ObjectMeta, wire.SilentNodesAnnotation, want)
		_, err = p.Leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write Lease %s: %w", wire.SilentNodes, err)
	}
	return nil
}
