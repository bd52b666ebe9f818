// Package reconcile runs the reconcilers of the controller: a queue of keys and workers for each,
// leases that divide the keys among replicas, and the frame around one reconcile of one object
// (kind.go).
//
// Owns: the queues, the leases, observedGeneration, and when a status is written.
// Reads: the informer caches.
// Writes: the status and the finalizers of the kinds that it runs, Leases, Events about failures.
// Never: decides anything about an object. The reconcilers do that.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// Key is the name of an object. Cluster-scoped objects have no namespace.
type Key = types.NamespacedName

// Sooner is the sooner of two times after which to reconcile again, of which 0 is never.
func Sooner(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Controller is a reconciler with its queue. Its fields are not changed after Run has started.
type Controller struct {
	// Name is the name in logs and metrics, for example "revision".
	Name string
	// Reconcile makes the object match its spec. One worker at a time calls it for a key. If it
	// returns a positive duration, it is called again after that.
	Reconcile func(ctx context.Context, key Key) (again time.Duration, err error)
	// Keys lists all keys. They are reconciled after a lease was acquired or a setting changed.
	Keys func() []Key
	// Workers is the number of keys that are reconciled at the same time. 0 means 8.
	Workers int
	// Background, if set, runs with the workers until ctx ends.
	Background func(ctx context.Context)
	// Others, if set, is called instead of Reconcile for a key that another replica reconciles.
	Others func(key Key)

	queue workqueue.TypedRateLimitingInterface[Key]
	lanes *lanes                        // of queue
	fresh workqueue.TypedInterface[Key] // keys of new objects that wait
	soon  soon
	once  sync.Once
}

func (c *Controller) q() workqueue.TypedRateLimitingInterface[Key] {
	c.once.Do(func() {
		c.fresh = workqueue.NewTyped[Key]()
		c.lanes = newLanes()
		limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](20*time.Millisecond, failedAgain)
		c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
			workqueue.TypedRateLimitingQueueConfig[Key]{Name: c.Name, DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(
				workqueue.TypedDelayingQueueConfig[Key]{Name: c.Name, Queue: workqueue.NewTypedWithConfig(
					workqueue.TypedQueueConfig[Key]{Name: c.Name, Queue: c.lanes})})})
	})
	return c.queue
}

func (c *Controller) arrivals() workqueue.TypedInterface[Key] {
	c.q()
	return c.fresh
}

// Enqueue adds a key to the queue.
func (c *Controller) Enqueue(key Key) {
	queue := c.q()
	c.lanes.unmark(key)
	queue.Add(key)
}

// enqueueLate adds a key of which nothing has changed (lanes.go).
func (c *Controller) enqueueLate(key Key, delay time.Duration) {
	queue := c.q()
	add := func() {
		c.lanes.mark(key)
		queue.Add(key)
	}
	if delay <= 0 {
		add()
		return
	}
	time.AfterFunc(delay, add) // until then a retry of the key is not a late one
}

// EnqueueAll adds all keys to the queue, at random times within the given time, so that a changed
// setting causes no burst. They go behind keys of which something else changed.
func (c *Controller) EnqueueAll(within time.Duration) {
	for _, key := range c.Keys() {
		c.enqueueLate(key, rand.N(max(within, 1)))
	}
}

// permanent marks an error for which a retry does not help.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent wraps an error for which a retry does not help. The key is reconciled again only when
// something changes.
func Permanent(err error) error { return permanent{err} }

// foreign marks an error that lasts until somebody else acts.
type foreign struct{ error }

func (f foreign) Unwrap() error { return f.error }

// Foreign wraps an error that somebody else has to end, with an object that no informer shows: the
// key is reconciled again every ForeignAgain.
func Foreign(err error) error { return foreign{err} }

// How often the API server is asked again whether a cause is gone of which nothing is told.
const (
	ForeignAgain = 30 * time.Second
	// failedAgain bounds the back-off: a quota may be raised, or the API server be there again, and
	// what it was away for may serve.
	failedAgain = time.Minute
)

// Metrics measures reconciles, by reconciler and outcome, and counts Leases.
type Metrics struct {
	registry prometheus.Registerer
	duration *prometheus.HistogramVec
	// depth has two names: client-go's own, and the one of Knative's controllers.
	depth [2]*prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(into prometheus.Registerer) *Metrics {
	depth := func(name string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: "Keys that wait in the queue of the reconciler."}, []string{"name"})
	}
	m := &Metrics{
		registry: into,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ebb_controller_reconcile_duration_seconds",
			Help:    "Duration of a reconcile, by reconciler and outcome (ok, error, panic).",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 30},
		}, []string{"reconciler", "outcome"}),
		depth: [2]*prometheus.GaugeVec{depth("workqueue_depth"), depth("kn_workqueue_depth")},
	}
	into.MustRegister(m.duration, m.depth[0], m.depth[1])
	return m
}

const (
	// settleWithin bounds how long a key rests after a reconcile.
	settleWithin = 200 * time.Millisecond
	// noCall is less than a call of the API server takes. The timer for a rest as short as that
	// would cost as much CPU as the reconcile.
	noCall = 500 * time.Microsecond
)

// runner runs the workers of all controllers.
type runner struct {
	timeout time.Duration
	leases  *Leases
	metrics *Metrics
	log     *slog.Logger
	mgr     *Manager
}

// work runs the workers of c until ctx ends, and returns when the last reconcile has ended.
func (r runner) work(ctx context.Context, c *Controller) {
	var group sync.WaitGroup
	workers := c.Workers
	if workers <= 0 {
		workers = 8
	}
	for range workers {
		group.Go(func() {
			for r.next(c) {
			}
		})
	}
	group.Go(func() { c.admit(ctx, r.mgr.busy) })
	if c.Background != nil {
		group.Go(func() { c.Background(ctx) })
	}
	<-ctx.Done()
	c.q().ShutDown()
	group.Wait()
}

func (r runner) next(c *Controller) bool {
	key, down := c.q().Get()
	if down {
		return false
	}
	late := c.lanes.tookLate(key)
	c.soon.drop(key) // what it waited with is in the caches
	// The caches show what a reconcile wrote about as long after its end as it took. Until then
	// events only mark the key, so that the next reconcile does not write the same again. A
	// reconcile that wrote nothing takes no time.
	began := time.Now()
	defer func() {
		if took := min(time.Since(began), settleWithin); took > noCall {
			time.AfterFunc(took, func() { c.q().Done(key) })
		} else {
			c.q().Done(key)
		}
	}()
	for _, depth := range r.metrics.depth {
		depth.WithLabelValues(c.Name).Set(float64(c.q().Len()))
	}

	// A key of another replica is dropped, because that replica gets the same event. The loss of
	// the lease cancels the reconcile.
	leased, done, ours := r.leases.Begin(key)
	if !ours {
		c.q().Forget(key)
		if c.Others != nil {
			c.Others(key)
		}
		return true
	}
	defer done()
	ctx, cancel := context.WithTimeout(leased, r.timeout)
	defer cancel()

	if !late {
		r.mgr.running.Add(1)
		defer r.mgr.running.Add(-1)
	}
	again, outcome, err := call(ctx, c, key)
	r.metrics.duration.WithLabelValues(c.Name, outcome).Observe(time.Since(began).Seconds())
	settle(c, key, again, err, r.log.With("reconciler", c.Name, "key", key.String(), "took", time.Since(began).Round(time.Millisecond).String()))
	return true
}

// settle logs how a reconcile ended, and decides when its key is reconciled again.
func settle(c *Controller, key Key, again time.Duration, err error, log *slog.Logger) {
	switch {
	case err == nil:
		c.q().Forget(key)
		if again > 0 {
			c.q().AddAfter(key, again)
		}
		log.Debug("reconciled")
	case namespaceGoes(err):
		c.q().Forget(key)
		log.Debug("reconcile failed because the namespace is being deleted", "error", err.Error())
	case errors.As(err, new(permanent)):
		c.q().Forget(key)
		log.Info("reconcile failed, not retried until something changes", "error", err.Error())
	case errors.As(err, new(foreign)):
		c.q().Forget(key)
		c.q().AddAfter(key, ForeignAgain)
		log.Info("reconcile failed, will be retried", "error", err.Error())
	default:
		c.q().AddRateLimited(key)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			// The cache was behind, and an event will update it.
			log.Debug("reconcile failed because the object in the cache was old", "error", err.Error())
		} else {
			log.Warn("reconcile failed, will be retried", "error", err.Error(), "attempt", c.q().NumRequeues(key))
		}
	}
}

// namespaceGoes reports whether the API server rejected a request because the namespace is being
// deleted. That is final, so there is no retry and no Event.
func namespaceGoes(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// call runs one reconcile and turns a panic into an error, so that one object cannot stop all
// others.
func call(ctx context.Context, c *Controller, key Key) (again time.Duration, outcome string, err error) {
	defer func() {
		if p := recover(); p != nil {
			again, outcome = 0, "panic"
			err = fmt.Errorf("reconcile %s %s panicked: %v\n%s", c.Name, key, p, debug.Stack())
		}
	}()
	again, err = c.Reconcile(ctx, key)
	if err != nil {
		return again, "error", err
	}
	return again, "ok", nil
}

// Watch adds toKeys(object) to the queue when an object of the informer is added, updated or
// deleted. toKeys runs in the informer's handler, so it must not block.
func (c *Controller) Watch(informer cache.SharedIndexInformer, toKeys func(object any) []Key) {
	c.WatchNews(informer, toKeys, always)
}

// WatchForAll is Watch for an object on which all keys depend. They go behind keys of which
// something else changed.
func (c *Controller) WatchForAll(informer cache.SharedIndexInformer, keys func() []Key) {
	c.handle(informer, cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.enqueueAllLate(keys()) },
		UpdateFunc: func(before, after any) {
			if !sameVersion(before, after) {
				c.enqueueAllLate(keys())
			}
		},
		DeleteFunc: func(any) { c.enqueueAllLate(keys()) },
	})
}

func (c *Controller) enqueueAllLate(keys []Key) {
	for _, key := range keys {
		c.enqueueLate(key, 0)
	}
}

func (c *Controller) handle(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	if _, err := informer.AddEventHandler(handler); err != nil {
		// Only a stopped informer returns an error, and no informer has started yet.
		panic(fmt.Sprintf("watch for %s: %v", c.Name, err))
	}
}

// handler passes the keys of new objects to created. Those that existed before the start of the
// informer are not new.
func (c *Controller) handler(toKeys func(object any) []Key, created func(Key), urgency func(before, after any) Urgency) cache.ResourceEventHandler {
	pass := func(object any, to func(Key)) {
		for _, key := range toKeys(object) {
			to(key)
		}
	}
	tell := func(object any, u Urgency, now func(Key)) {
		switch u {
		case AtOnce:
			pass(object, now)
		case Soon:
			pass(object, func(key Key) { c.soon.add(key, func() { c.Enqueue(key) }) })
		}
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(object any, existed bool) {
			if existed {
				pass(object, func(key Key) { c.enqueueLate(key, 0) })
			} else {
				tell(object, urgency(nil, object), created)
			}
		},
		UpdateFunc: func(before, after any) {
			if sameVersion(before, after) {
				return // a resync of the informer
			}
			// If the owner changed, both are concerned.
			u := urgency(before, after)
			tell(before, u, c.Enqueue)
			tell(after, u, c.Enqueue)
		},
		DeleteFunc: func(object any) {
			if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			tell(object, urgency(object, nil), c.Enqueue)
		},
	}
}
