// Package lead shares the revisions out among the replicas of the autoscaler.
//
// Owns: which bucket a revision belongs to (consistent hashing of its name), and who decides for it. Reads: the leases, by internal/lease,
// and whether the pod that holds one still exists. Writes: the leases. Never: decides anything about a revision.
package lead

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"knative.dev/pkg/hash"

	"ebb.dev/ebb/internal/lease"
)

// Config says who this process is, and how the buckets are shared out now.
type Config struct {
	Namespace string
	// Pod and IP name this process; together they are its identity in a lease.
	Pod, IP string
	// Scheme returns the settings, and a channel that is closed once they may have changed.
	Scheme func() (lease.Scheme, <-chan struct{})
}

// Hooks tell what changes. None of them may call back.
type Hooks struct {
	// Changed is called when a bucket got another owner, and Left when this process owns one no more, before another may: it returns
	// when nothing is decided for its revisions any more.
	Changed, Left func()
	// Taken is called after Changed if this process is the new owner and another one was before, or this one itself with another
	// number of buckets, with the IP of that one.
	Taken func(bucket, from string)
}

// Prefix begins the names of the leases.
const Prefix = "autoscaler-bucket-"

// Election is this process's part in sharing out the buckets.
type Election struct {
	config Config
	self   string // this process's identity
	log    *slog.Logger
	hooks  Hooks
	leases lease.Election

	mutex  sync.RWMutex
	set    *hash.BucketSet
	names  []string
	holder map[string]string          // bucket -> identity, "" when nobody holds it
	before map[string]map[string]bool // bucket -> identities of those that held it, or what is in it now, before
}

// New returns an Election; Run takes part in it.
func New(c Config, client kubernetes.Interface, log *slog.Logger, hooks Hooks) *Election {
	e := &Election{config: c, self: c.Pod + "_" + c.IP, log: log, hooks: hooks}
	e.leases = lease.Election{Client: client, Namespace: c.Namespace, Component: "autoscaler", Identity: e.self, Scheme: c.Scheme, Log: log,
		Began: e.began, Won: e.won, Lost: e.lost, Holder: e.held, Gone: lease.PodGone(client, c.Namespace)}
	scheme, _ := c.Scheme()
	e.began(scheme.Names())
	return e
}

// Run takes part in the election of every bucket until ctx is done, and then gives its leases up.
func (e *Election) Run(ctx context.Context) error { return e.leases.Run(ctx) }

// began divides the revisions anew. What is in a bucket then may have been decided for by any of those who held one before.
func (e *Election) began(names []string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	owners := map[string]bool{}
	for _, name := range e.names {
		for identity := range e.before[name] {
			owners[identity] = true
		}
	}
	e.names, e.set = names, hash.NewBucketSet(sets.New(names...))
	e.holder, e.before = map[string]string{}, map[string]map[string]bool{}
	for _, name := range names {
		e.before[name] = map[string]bool{}
		for identity := range owners {
			e.before[name][identity] = true
		}
	}
}

func (e *Election) won(name string, _ context.Context) {
	e.mutex.Lock()
	e.holder[name] = e.self
	from := e.before[name]
	e.before[name] = map[string]bool{e.self: true}
	e.mutex.Unlock()
	e.log.Info("bucket has an owner", "bucket", name, "owner", e.self, "self", true)
	e.hooks.Changed()
	for identity := range from {
		if _, ip, _ := strings.Cut(identity, "_"); ip != "" && e.hooks.Taken != nil {
			e.hooks.Taken(name, ip)
		}
	}
}

func (e *Election) lost(name string) {
	e.mutex.Lock()
	e.holder[name] = ""
	e.mutex.Unlock()
	e.log.Warn("bucket was given up", "bucket", name)
	e.hooks.Changed()
	if e.hooks.Left != nil {
		e.hooks.Left()
	}
}

// held is told of another's lease.
func (e *Election) held(name, identity string) {
	e.mutex.Lock()
	if e.holder[name] == e.self {
		e.mutex.Unlock()
		return // lost comes first
	}
	e.holder[name] = identity
	if identity != "" {
		e.before[name] = map[string]bool{identity: true}
	}
	e.mutex.Unlock()
	if identity != "" {
		e.log.Info("bucket has an owner", "bucket", name, "owner", identity, "self", false)
	}
	e.hooks.Changed()
}

// Owns reports whether this process decides for a revision.
func (e *Election) Owns(key types.NamespacedName) bool {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	return e.holder[e.bucket(key)] == e.self
}

// Owner returns the IP of the process that decides for a revision, "" when nobody does at the moment.
func (e *Election) Owner(key types.NamespacedName) string {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	_, ip, _ := strings.Cut(e.holder[e.bucket(key)], "_")
	return ip
}

// Bucket is the name of the bucket that a revision belongs to.
func (e *Election) Bucket(key types.NamespacedName) string {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	return e.bucket(key)
}

// bucket is Bucket under the mutex. It is asked of every stat.
func (e *Election) bucket(key types.NamespacedName) string {
	if len(e.names) == 1 {
		return e.names[0]
	}
	return e.set.Owner(key.String())
}

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
		if e.holder[name] == e.self {
			all = append(all, name)
		}
	}
	return all
}
