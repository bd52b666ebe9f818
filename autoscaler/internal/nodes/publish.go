package nodes

import (
	"context"
	"fmt"
	"log/slog"
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
	Log      *slog.Logger

	mutex sync.Mutex
	want  string
	news  chan struct{}
}

// Set says which nodes are silent now, by name. It does not block.
func (p *Publisher) Set(silent []string) {
	p.mutex.Lock()
	p.want = wire.EncodeSilentNodes(silent)
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
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.changed():
		}
		p.mutex.Lock()
		want := p.want
		p.mutex.Unlock()
		switch {
		case !p.MayWrite():
			have = nil
		case have == nil || *have != want:
			err := p.write(ctx, want)
			if have = &want; err != nil {
				have = nil
				if ctx.Err() == nil {
					p.Log.Warn("cannot tell which nodes are silent; it is tried again", "error", err)
				}
			}
		}
	}
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
