package reconcile

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/util/sets"
	"knative.dev/pkg/hash"
)

// Leases divides the keys into buckets, each with a Lease in the system namespace (internal/lease).
// A replica works on the keys of the buckets that it holds. All reconcilers share the buckets: one
// replica handles the Service, Configuration, Route and Revision of a name, and an idle cluster
// renews one Lease for each bucket.
type Leases struct {
	mu   sync.RWMutex
	set  *hash.BucketSet // nil: there is one bucket, ""
	held map[string]*tenure
}

// tenure is the time during which a bucket is held.
type tenure struct {
	ctx  context.Context
	work sync.WaitGroup // the reconciles that began in it
}

// NewLeases divides the keys among the buckets. It holds none of them. Without buckets there is
// one, "".
func NewLeases(buckets ...string) *Leases {
	l := &Leases{held: map[string]*tenure{}}
	if len(buckets) > 0 {
		l.set = hash.NewBucketSet(sets.New(buckets...))
	}
	return l
}

// Bucket is the bucket that a key lies in.
func (l *Leases) Bucket(key Key) string {
	if l.set == nil {
		return ""
	}
	return l.set.Owner(key.String())
}

// Begin reports whether this replica holds the bucket of key. If so, ctx ends when the Lease does,
// and the caller must call done at the end of its work.
func (l *Leases) Begin(key Key) (ctx context.Context, done func(), ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	t := l.held[l.Bucket(key)]
	if t == nil || t.ctx.Err() != nil {
		return nil, nil, false
	}
	t.work.Add(1)
	return t.ctx, t.work.Done, true
}

// Held is the number of buckets that this replica holds.
func (l *Leases) Held() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.held)
}

func (l *Leases) win(bucket string, ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[bucket] = &tenure{ctx: ctx}
}

// lose returns when all reconciles of the bucket have returned; their context has ended. Then
// another replica can have it.
func (l *Leases) lose(bucket string) {
	l.mu.Lock()
	t := l.held[bucket]
	delete(l.held, bucket)
	l.mu.Unlock()
	if t != nil {
		t.work.Wait()
	}
}
