package reconcile

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"knative.dev/pkg/hash"
)

// Leases divides the keys into buckets, each with a Lease in the system namespace (internal/lease). A replica works on the keys of
// the buckets it holds. All reconcilers share the buckets, so that a key's Service, Configuration, Route and Revision live on one
// replica and an idle cluster renews as few Leases as there are buckets.
type Leases struct {
	mu   sync.RWMutex
	set  *hash.BucketSet // nil: there is one bucket, called ""
	held map[string]*tenure
}

// tenure is the time for which a bucket is held.
type tenure struct {
	ctx  context.Context
	work sync.WaitGroup // the reconciles that were begun in it
}

// NewLeases holds nothing.
func NewLeases() *Leases { return &Leases{held: map[string]*tenure{}} }

// HoldAll gives every key to this process without Leases, for tests and for a controller that runs alone by flag.
func (l *Leases) HoldAll(ctx context.Context) { l.win("", ctx) }

// Bucket is the bucket that a key lies in.
func (l *Leases) Bucket(key Key) string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.bucket(key)
}

func (l *Leases) bucket(key Key) string {
	if l.set == nil {
		return ""
	}
	return l.set.Owner(key.String())
}

// Begin returns a context that ends with the lease on key's bucket, and whether this replica holds it. Then done is to be
// called at the end of the work.
func (l *Leases) Begin(key Key) (ctx context.Context, done func(), ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t := l.held[l.bucket(key)]
	if t == nil || t.ctx.Err() != nil {
		return nil, nil, false
	}
	t.work.Add(1)
	return t.ctx, t.work.Done, true
}

// begin divides the keys anew; nothing is held then.
func (l *Leases) begin(buckets []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.set = hash.NewBucketSet(sets.New(buckets...))
}

func (l *Leases) win(bucket string, ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[bucket] = &tenure{ctx: ctx}
}

// lose returns when the reconciles of the bucket, whose context has ended, have returned: then another replica may have it.
func (l *Leases) lose(bucket string) {
	l.mu.Lock()
	t := l.held[bucket]
	delete(l.held, bucket)
	l.mu.Unlock()
	if t != nil {
		t.work.Wait()
	}
}
