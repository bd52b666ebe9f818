// Package lease divides work among the replicas of a component. The work is divided into buckets.
// Each bucket has a Lease, and the replica that holds the Lease does the bucket's work. client-go's
// leader elector competes for each Lease.
//
// Owns: when a bucket counts as held. Reads: the Leases of one namespace. Writes: the Leases of its
// buckets. Never: knows what the work is.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
)

// Scheme is how the work is divided, and how long the replicas wait for each other.
type Scheme struct {
	// Prefix begins the names of the Leases: "controller." of controller.00-of-01.
	Prefix string
	// Buckets is their number; 0 means 1.
	Buckets                                   uint32
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// Source returns the current Scheme and a channel that is closed once it may have changed.
type Source func() (Scheme, <-chan struct{})

// Names are the names of the Leases. They also name the buckets.
func (s Scheme) Names() []string {
	n := max(s.Buckets, 1)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s%02d-of-%02d", s.Prefix, i, n)
	}
	return names
}

// Election is one replica's part in the competition. Fields are set before Run and not changed
// after.
type Election struct {
	Client kubernetes.Interface
	// Namespace holds the Leases. Identity names this replica in them.
	Namespace, Identity string
	// Buckets are the Leases to compete for, as Scheme named them when the process started.
	Buckets []string
	Scheme  Source
	Log     *slog.Logger

	// Won is called when this replica holds a bucket, with a context that ends when it no longer
	// does. Then Lost is called. It returns when no work is being done for the bucket; only then
	// can another replica get the Lease, unless Fate says that this one is gone or dead.
	Won  func(bucket string, held context.Context)
	Lost func(bucket string)
	// Renewed, if set, is called before Won and after each renewal, with the time until which this
	// replica may write what two must not write at once. It is sooner than Lost is called: a
	// replica whose node seems dead loses its Lease before that (Dead). While the API server takes
	// more than a seventh of a Lease's duration for one renewal after the other, it can be too late
	// by the rest.
	Renewed func(bucket string, until time.Time)
	// Holder, if set, is called with the other replica that holds a bucket, "" when none does.
	Holder func(bucket, identity string)
	// Fate, if set, says what is known of the replica that holds a Lease. Those of one that is Gone
	// are freed, and those of one that is Dead once it may not write any more.
	Fate func(ctx context.Context, identity string) Fate
}

// ErrRenamed says that an Election ended because its Leases have other names now.
var ErrRenamed = errors.New("the leases changed")

// Run competes for every bucket until ctx ends, then releases what it holds, so that no replica
// waits for a Lease to expire. New timings apply at once and keep what is held. Run fails when the
// names of the Leases change: the process then restarts.
func (e *Election) Run(ctx context.Context) error {
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	scheme, replaced := e.Scheme()
	seats := map[string]*seat{}
	for _, name := range e.Buckets {
		seats[name] = &seat{Election: e, name: name, scheme: scheme}
	}
	leases := informers.NewSharedInformerFactoryWithOptions(e.Client, 0, informers.WithNamespace(e.Namespace))
	defer leases.Shutdown()
	if err := follow(leases, seats); err != nil {
		return err
	}
	leases.Start(running.Done())
	var group sync.WaitGroup
	for _, s := range seats {
		group.Go(func() {
			if err := s.run(running); err != nil {
				stop(err)
			}
		})
	}
	group.Go(func() {
		wait.UntilWithContext(running, func(ctx context.Context) { e.freeEnded(ctx, seats) }, fatePeriod)
	})
	for running.Err() == nil {
		if names := scheme.Names(); !slices.Equal(names, e.Buckets) {
			stop(fmt.Errorf("%w from %v to %v: the process must restart", ErrRenamed, e.Buckets, names))
		}
		select {
		case <-running.Done():
		case <-replaced:
			scheme, replaced = e.Scheme()
			for _, s := range seats {
				s.retime(scheme)
			}
		}
	}
	group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(running)
}

// follow shows each seat its Lease when it changes, so that a released Lease is taken at once and
// each replica knows who holds what. Without it the electors would ask once a retry period.
func follow(leases informers.SharedInformerFactory, seats map[string]*seat) error {
	see := func(o any) {
		if l, ok := o.(*coordinationv1.Lease); ok && seats[l.Name] != nil {
			seats[l.Name].sees(l.Spec)
		}
	}
	_, err := leases.Coordination().V1().Leases().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, now any) { see(now) },
		DeleteFunc: func(o any) {
			if name, err := cache.DeletionHandlingObjectToName(o); err == nil && seats[name.Name] != nil {
				seats[name.Name].sees(coordinationv1.LeaseSpec{})
			}
		},
	})
	return err
}

// fatePeriod is how often Election.Fate is asked.
const fatePeriod = time.Second

// freeEnded frees the Leases of holders that have ended. Nothing waits for it: it takes as long as
// the API server does.
func (e *Election) freeEnded(ctx context.Context, seats map[string]*seat) {
	fates := map[string]Fate{}
	for name, s := range seats {
		l := s.other()
		if l.holder == "" || e.Fate == nil {
			continue
		}
		if _, asked := fates[l.holder]; !asked {
			fates[l.holder] = e.Fate(ctx, l.holder)
		}
		fate := fates[l.holder]
		if fate == Lives || fate == Dead && time.Since(l.seen) < mayWrite(l.lasts) {
			continue
		}
		freed, err := e.free(ctx, name, func(now *coordinationv1.LeaseSpec) bool {
			return fate == Gone || now.RenewTime != nil && now.RenewTime.Equal(&metav1.MicroTime{Time: l.renewed})
		}, l.holder)
		switch {
		case err != nil:
			e.Log.Warn("cannot free the lease of a replica that has ended", "lease", name, "holder", l.holder, "it is", fate.String(), "error", err.Error())
		case freed:
			e.Log.Info("freed the lease of a replica that has ended", "lease", name, "holder", l.holder, "it is", fate.String())
		}
	}
}

// free clears the holder of a Lease if it still is the given one, and the Lease as it is now is to
// be freed. client-go's release would also clear another's.
func (e *Election) free(ctx context.Context, name string, still func(*coordinationv1.LeaseSpec) bool, holder string) (freed bool, err error) {
	leases := e.Client.CoordinationV1().Leases(e.Namespace)
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		l, err := leases.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && (ptr.Deref(l.Spec.HolderIdentity, "") != holder || !still(&l.Spec)) {
			return nil
		}
		if err != nil {
			return err
		}
		l.Spec.HolderIdentity = nil
		_, err = leases.Update(ctx, l, metav1.UpdateOptions{})
		freed = err == nil
		return err
	})
	return freed, err
}
