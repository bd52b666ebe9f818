// Package lead shares the revisions out among the replicas of the autoscaler.
//
// Owns: one lease per bucket; a revision belongs to a bucket by consistent hashing of its name.
// Reads: the leases, and whether the pod that holds one still exists.
// Writes: the leases. Never: decides anything about a revision.
package lead

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"knative.dev/pkg/hash"
)

// Config is config-leader-election, and who this process is.
type Config struct {
	Namespace string
	// Pod and IP name this process; together they are its identity in a lease.
	Pod, IP                                   string
	Buckets                                   int
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
}

// longestRetry bounds the time between two attempts to take a free lease, whatever is configured: a
// bucket without an owner is a set of services that do not wake up.
const longestRetry = 2 * time.Second

// Election is this process's part in sharing out the buckets.
type Election struct {
	config  Config
	client  kubernetes.Interface
	log     *slog.Logger
	changed func()
	taken   func(bucket, from string)
	set     *hash.BucketSet
	names   []string

	mutex  sync.RWMutex
	holder map[string]string // bucket -> identity, "" when nobody holds it
	before map[string]string // bucket -> the last identity of another that held it
}

// BucketName is the name of the lease of bucket i of n.
func BucketName(i, n int) string { return fmt.Sprintf("autoscaler-bucket-%02d-of-%02d", i, n) }

// New returns an Election; Run takes part in it. changed is called when a bucket got another owner, and then taken, if this
// process is that and another one was before, with the IP of that one. Neither may block.
func New(c Config, client kubernetes.Interface, log *slog.Logger, changed func(), taken func(bucket, from string)) *Election {
	e := &Election{config: c, client: client, log: log, changed: changed, taken: taken, holder: map[string]string{}, before: map[string]string{}}
	all := sets.New[string]()
	for i := range c.Buckets {
		e.names = append(e.names, BucketName(i, c.Buckets))
		all.Insert(e.names[i])
	}
	e.set = hash.NewBucketSet(all)
	return e
}

func (e *Election) identity() string { return e.config.Pod + "_" + e.config.IP }

// Owns reports whether this process decides for a revision.
func (e *Election) Owns(key types.NamespacedName) bool {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	return e.holder[e.set.Owner(key.String())] == e.identity()
}

// Owner returns the IP of the process that decides for a revision, "" when nobody does at the moment.
func (e *Election) Owner(key types.NamespacedName) string {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	_, ip, _ := strings.Cut(e.holder[e.set.Owner(key.String())], "_")
	return ip
}

// Run takes part in the election of every bucket until ctx is done, and then gives its leases up.
func (e *Election) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, name := range e.names {
		elector, err := e.elector(name)
		if err != nil {
			return err
		}
		all.Go(func() {
			// RunOrDie returns when the lease is lost; then it is tried for anew.
			for ctx.Err() == nil {
				elector.Run(ctx)
			}
		})
	}
	all.Go(func() { e.freeOrphans(ctx) })
	all.Wait()
	return nil
}

func (e *Election) elector(name string) (*leaderelection.LeaderElector, error) {
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.config.Namespace, Name: name},
		Client:     e.client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity()},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: name, ReleaseOnCancel: true,
		LeaseDuration: e.config.LeaseDuration,
		RenewDeadline: e.config.RenewDeadline,
		RetryPeriod:   min(e.config.RetryPeriod, longestRetry),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { e.set1(name, e.identity()) },
			OnStoppedLeading: func() { e.lose(name) },
			OnNewLeader:      func(identity string) { e.set1(name, identity) },
		},
	})
	if err != nil {
		return nil, fmt.Errorf("prepare election of %s: %w", name, err)
	}
	return elector, nil
}

func (e *Election) set1(name, identity string) {
	e.mutex.Lock()
	same := e.holder[name] == identity
	e.holder[name] = identity
	_, from, _ := strings.Cut(e.before[name], "_")
	self := identity == e.identity()
	if self {
		delete(e.before, name)
	} else if identity != "" {
		e.before[name] = identity
	}
	e.mutex.Unlock()
	if !same {
		e.log.Info("bucket has an owner", "bucket", name, "owner", identity, "self", identity == e.identity())
		e.changed()
		if self && from != "" && e.taken != nil {
			e.taken(name, from)
		}
	}
}

// Bucket is the name of the bucket that a revision belongs to.
func (e *Election) Bucket(key types.NamespacedName) string { return e.set.Owner(key.String()) }

// Learn says who owns a bucket of which this process knows no owner any more, because it has stopped to take part.
func (e *Election) Learn(bucket, ip string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.holder[bucket] == "" {
		e.holder[bucket] = "_" + ip
	}
}

// Held names the buckets that this process owns.
func (e *Election) Held() []string {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	var all []string
	for _, name := range e.names {
		if e.holder[name] == e.identity() {
			all = append(all, name)
		}
	}
	return all
}

func (e *Election) lose(name string) {
	e.mutex.Lock()
	own := e.holder[name] == e.identity()
	if own {
		e.holder[name] = ""
	}
	e.mutex.Unlock()
	if own {
		e.log.Warn("bucket was given up", "bucket", name)
		e.changed()
	}
}

// freeOrphans clears the lease of a pod that no longer exists, or has another address than the holder, so that its buckets need
// not wait for the lease to run out: after a restart of its node a pod keeps its name and gets a new address, and nothing of
// what it was runs any more. A pod that exists with the holder's address keeps its lease, whatever its state: it may still write.
func (e *Election) freeOrphans(ctx context.Context) {
	ticker := time.NewTicker(longestRetry / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, name := range e.names {
			e.mutex.RLock()
			holder := e.holder[name]
			e.mutex.RUnlock()
			pod, ip, _ := strings.Cut(holder, "_")
			if pod == "" || holder == e.identity() {
				continue
			}
			found, err := e.client.CoreV1().Pods(e.config.Namespace).Get(ctx, pod, metav1.GetOptions{})
			if moved := err == nil && found.Status.PodIP != "" && found.Status.PodIP != ip; !apierrors.IsNotFound(err) && !moved {
				continue
			}
			if err := e.free(ctx, name, holder); err != nil {
				e.log.Warn("the lease of a pod that is gone stays until it runs out", "bucket", name, "owner", holder, "error", err)
			}
		}
	}
}

func (e *Election) free(ctx context.Context, name, holder string) error {
	leases := e.client.CoordinationV1().Leases(e.config.Namespace)
	lease, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get lease %s/%s: %w", e.config.Namespace, name, err)
	}
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != holder {
		return nil
	}
	nobody := ""
	lease.Spec.HolderIdentity = &nobody
	// The resource version read above makes this fail if anybody renewed in between.
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update lease %s/%s: %w", e.config.Namespace, name, err)
	}
	e.log.Info("freed the bucket of a pod that is gone", "bucket", name, "owner", holder)
	return nil
}
