package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"knative.dev/pkg/hash"
)

// LeaseSettings are the timings of config-leader-election.
type LeaseSettings struct {
	Buckets                                 int
	LeaseDuration, RenewDeadline, RetryWait time.Duration
	// Prefix names the Leases: "<prefix>.00-of-01".
	Prefix string
}

// Leases divides the keys into buckets, each with a Lease in the system namespace. A replica works on the keys of the buckets
// it holds. All reconcilers share the buckets, so that a key's Service, Configuration, Route and Revision live on one replica
// and an idle cluster renews as few Leases as there are buckets.
type Leases struct {
	set *hash.BucketSet

	mu   sync.RWMutex
	held map[string]context.Context
}

// NewLeases holds nothing until run.
func NewLeases(s LeaseSettings) *Leases {
	names := sets.New[string]()
	for i := range max(s.Buckets, 1) {
		names.Insert(fmt.Sprintf("%s.%02d-of-%02d", s.Prefix, i, max(s.Buckets, 1)))
	}
	return &Leases{set: hash.NewBucketSet(names), held: map[string]context.Context{}}
}

// HoldAll gives every bucket to this process without Leases, for tests and for a controller that runs alone by flag.
func (l *Leases) HoldAll(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range l.set.BucketList() {
		l.held[name] = ctx
	}
}

// Context returns a context that ends with the lease on key's bucket, and whether this replica holds it.
func (l *Leases) Context(key Key) (context.Context, bool) {
	name := l.set.Owner(key.String())
	l.mu.RLock()
	defer l.mu.RUnlock()
	ctx, ok := l.held[name]
	return ctx, ok && ctx.Err() == nil
}

// run competes for every bucket until ctx ends, then gives up what it holds so that another replica need not wait for the
// lease to run out. won is called with each bucket gained.
func (l *Leases) run(ctx context.Context, client kubernetes.Interface, namespace, identity string, s LeaseSettings,
	log *slog.Logger, won func(mine func(Key) bool)) error {
	var group sync.WaitGroup
	for _, name := range l.set.BucketList() {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
				Client:     client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
			},
			LeaseDuration:   s.LeaseDuration,
			RenewDeadline:   s.RenewDeadline,
			RetryPeriod:     s.RetryWait,
			ReleaseOnCancel: true,
			Name:            name,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(held context.Context) {
					log.Info("lease won", "lease", name)
					l.mu.Lock()
					l.held[name] = held
					l.mu.Unlock()
					won(func(key Key) bool { return l.set.Owner(key.String()) == name })
				},
				OnStoppedLeading: func() {
					l.mu.Lock()
					delete(l.held, name)
					l.mu.Unlock()
					log.Info("lease given up", "lease", name)
				},
			},
		})
		if err != nil {
			return fmt.Errorf("compete for lease %s/%s: %w", namespace, name, err)
		}
		group.Go(func() {
			for ctx.Err() == nil {
				elector.Run(ctx)
			}
		})
	}
	group.Wait()
	return nil
}
