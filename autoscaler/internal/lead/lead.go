// Package lead divides the revisions among the replicas of the autoscaler.
//
// Owns: which bucket a revision belongs to (consistent hashing of its name), and who decides for
// it. Reads: the leases, and what is known of who holds them (internal/lease).
// Writes: the leases. Never: decides anything about a revision.
package lead

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"knative.dev/pkg/hash"

	"ebb.dev/ebb/internal/lease"
)

// Config says who this process is, and how the buckets are divided.
type Config struct {
	Namespace string
	// Pod and IP name this process; together they are its identity in a lease.
	Pod, IP string
	Scheme  lease.Source
	// Dead reports whether a node seems to be dead.
	Dead func(node string) bool
}

// Hooks are called on changes. They must not call back.
type Hooks struct {
	// Changed is called when a bucket has another owner.
	Changed func()
	// Left is called when this process no longer owns a bucket. It returns when nothing more is
	// decided or written for the bucket's revisions. Only then can another process own it.
	Left func()
	// Taken is called after Changed when this process is the new owner of a bucket, with the IP of
	// the previous owner, which can be this process.
	Taken func(bucket, from string)
}

// Prefix begins the names of the leases.
const Prefix = "autoscaler-bucket-"

// Election is this process's part in dividing the buckets.
type Election struct {
	config Config
	self   string // this process's identity
	log    *slog.Logger
	hooks  Hooks
	leases lease.Election
	names  []string // of the buckets
	set    *hash.BucketSet

	mutex  sync.RWMutex
	holder map[string]string    // bucket -> identity, "" when it is not held
	before map[string]string    // bucket -> identity of the last holder
	until  map[string]time.Time // bucket -> until when this process may write, without a renewal
}

// New returns an Election. Run takes part in it.
func New(c Config, client kubernetes.Interface, log *slog.Logger) *Election {
	scheme, _ := c.Scheme()
	names := scheme.Names()
	e := &Election{config: c, self: c.Pod + "_" + c.IP, log: log, names: names, set: hash.NewBucketSet(sets.New(names...)),
		holder: map[string]string{}, before: map[string]string{}, until: map[string]time.Time{}}
	e.leases = lease.Election{Client: client, Namespace: c.Namespace, Identity: e.self, Buckets: names, Scheme: c.Scheme, Log: log,
		Won: e.won, Lost: e.lost, Renewed: e.renewed, Holder: e.held, Fate: lease.OfPod(client, c.Namespace, c.Dead)}
	return e
}

// Run takes part in the election of every bucket until ctx is done, then releases its leases.
func (e *Election) Run(ctx context.Context, hooks Hooks) error {
	e.hooks = hooks
	return e.leases.Run(ctx)
}

func (e *Election) won(name string, _ context.Context) {
	e.mutex.Lock()
	e.holder[name] = e.self
	from := e.before[name]
	e.before[name] = e.self
	e.mutex.Unlock()
	e.log.Info("bucket has an owner", "bucket", name, "owner", e.self, "self", true)
	e.hooks.Changed()
	if _, ip, _ := strings.Cut(from, "_"); ip != "" && e.hooks.Taken != nil {
		e.hooks.Taken(name, ip)
	}
}

func (e *Election) lost(name string) {
	e.mutex.Lock()
	e.holder[name] = ""
	e.mutex.Unlock()
	e.log.Warn("bucket lost", "bucket", name)
	e.hooks.Changed()
	if e.hooks.Left != nil {
		e.hooks.Left()
	}
}

// held is called when another process holds a lease, or no process does.
func (e *Election) held(name, identity string) {
	e.mutex.Lock()
	if e.holder[name] == e.self {
		e.mutex.Unlock()
		return // lost is called first
	}
	e.holder[name] = identity
	if identity != "" {
		e.before[name] = identity
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
	return e.holder[e.Bucket(key)] == e.self
}

// MayWrite reports whether this process may write a revision's scale and status now. It asks the
// clock as well as the election: a process that was frozen beyond its lease must not write before
// the election notices. The wall clock counts too, because the monotonic one stands still while a
// virtual machine is suspended.
func (e *Election) MayWrite(key types.NamespacedName) bool {
	bucket := e.Bucket(key)
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	now, until := time.Now(), e.until[bucket]
	return e.holder[bucket] == e.self && now.Before(until) && now.Round(0).Before(until.Round(0))
}

func (e *Election) renewed(name string, until time.Time) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.until[name] = until
}

// Owner returns the IP of the process that decides for a revision, "" while there is none.
func (e *Election) Owner(key types.NamespacedName) string {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	_, ip, _ := strings.Cut(e.holder[e.Bucket(key)], "_")
	return ip
}

// Others returns the IPs of the other processes that decide for revisions.
func (e *Election) Others() []string {
	e.mutex.RLock()
	defer e.mutex.RUnlock()
	found := sets.New[string]()
	for _, holder := range e.holder {
		if _, ip, _ := strings.Cut(holder, "_"); ip != "" && holder != e.self {
			found.Insert(ip)
		}
	}
	return sets.List(found)
}

// Bucket is the name of the bucket that a revision belongs to. It is called for every stat.
func (e *Election) Bucket(key types.NamespacedName) string {
	if len(e.names) == 1 {
		return e.names[0]
	}
	return e.set.Owner(key.String())
}

// Learn sets the owner of a bucket after this process stopped taking part in the election.
func (e *Election) Learn(bucket, ip string) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	if e.holder[bucket] == "" {
		e.holder[bucket] = "_" + ip
	}
}

// Buckets is the number of buckets that the replicas divide.
func (e *Election) Buckets() int { return len(e.names) }

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
