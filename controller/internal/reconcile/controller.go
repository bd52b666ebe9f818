// Package reconcile is the small machine under every reconciler of the controller: a queue of keys per reconciler, workers,
// leases that divide the keys among replicas, and the frame around one reconcile of one object (kind.go).
//
// Owns: the queues, the leases, observedGeneration and the moment at which status is written.
// Reads: the informer caches it is given.
// Writes: status subresources and finalizers of the kinds it runs, Leases, Events about failures.
// Never: decides anything about an object; that is the reconciler's own package.
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

// Key names one object. Cluster-scoped objects have an empty namespace.
type Key = types.NamespacedName

// Controller is one reconciler with its queue. Fields are set before Run and not changed after.
type Controller struct {
	// Name appears in logs, metrics and the lease prefix settings: "revision".
	Name string
	// Reconcile brings the object called key closer to what it should be. It is called for one key by one worker at a time.
	// A positive duration asks to be called again after it.
	Reconcile func(ctx context.Context, key Key) (again time.Duration, err error)
	// Keys lists every key that should be looked at after a lease was won or a setting changed.
	Keys func() []Key
	// Workers is the number of keys worked on at once; 0 means 8.
	Workers int
	// Background, if set, runs beside the workers until ctx ends.
	Background func(ctx context.Context)

	queue workqueue.TypedRateLimitingInterface[Key]
	once  sync.Once
}

func (c *Controller) q() workqueue.TypedRateLimitingInterface[Key] {
	c.once.Do(func() {
		limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[Key](20*time.Millisecond, 1000*time.Second)
		c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
			workqueue.TypedRateLimitingQueueConfig[Key]{Name: c.Name})
	})
	return c.queue
}

// Enqueue asks for a reconcile of key.
func (c *Controller) Enqueue(key Key) { c.q().Add(key) }

// EnqueueAfter asks for a reconcile of key after delay.
func (c *Controller) EnqueueAfter(key Key, delay time.Duration) { c.q().AddAfter(key, delay) }

// EnqueueAll asks for a reconcile of every key within the given time, spread so that a changed setting is no thundering herd.
func (c *Controller) EnqueueAll(within time.Duration) {
	for _, key := range c.Keys() {
		if within <= 0 {
			c.Enqueue(key)
			continue
		}
		c.EnqueueAfter(key, rand.N(within))
	}
}

// permanent marks an error that trying again cannot cure.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// Permanent wraps an error that another attempt cannot cure: the key is reconciled again only when something changes.
func Permanent(err error) error { return permanent{err} }

// Metrics counts reconciles by controller and outcome.
type Metrics struct {
	duration *prometheus.HistogramVec
	depth    *prometheus.GaugeVec
}

// NewMetrics registers the metrics of the machine.
func NewMetrics(into prometheus.Registerer) *Metrics {
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ebb_controller_reconcile_duration_seconds",
			Help:    "Time one reconcile took, by reconciler and outcome (ok, error, panic).",
			Buckets: []float64{.001, .005, .02, .1, .5, 2, 10, 30},
		}, []string{"reconciler", "outcome"}),
		depth: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ebb_controller_queue_keys",
			Help: "Keys waiting to be reconciled.",
		}, []string{"reconciler"}),
	}
	into.MustRegister(m.duration, m.depth)
	return m
}

// runner is what the workers of all controllers share.
type runner struct {
	timeout time.Duration
	leases  *Leases
	metrics *Metrics
	log     *slog.Logger
}

// work runs the workers of c until ctx ends and what was begun is finished.
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
	defer c.q().Done(key)
	r.metrics.depth.WithLabelValues(c.Name).Set(float64(c.q().Len()))

	// A key of another replica is dropped: that replica sees the same event. Losing the lease cancels the reconcile.
	leased, done, ours := r.leases.Begin(key)
	if !ours {
		c.q().Forget(key)
		return true
	}
	defer done()
	ctx, cancel := context.WithTimeout(leased, r.timeout)
	defer cancel()

	began := time.Now()
	again, outcome, err := call(ctx, c, key)
	r.metrics.duration.WithLabelValues(c.Name, outcome).Observe(time.Since(began).Seconds())
	log := r.log.With("reconciler", c.Name, "key", key.String(), "took", time.Since(began).Round(time.Millisecond).String())
	switch {
	case err == nil:
		c.q().Forget(key)
		if again > 0 {
			c.q().AddAfter(key, again)
		}
		log.Debug("reconciled")
	case namespaceGoes(err):
		c.q().Forget(key)
		log.Debug("reconcile met a namespace that is being deleted", "error", err.Error())
	case errors.As(err, new(permanent)):
		c.q().Forget(key)
		log.Info("reconcile failed and waits for a change", "error", err.Error())
	default:
		c.q().AddRateLimited(key)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			// The cache was behind; the event that brings it up to date is on its way.
			log.Debug("reconcile met a newer object", "error", err.Error())
		} else {
			log.Warn("reconcile failed and will be tried again", "error", err.Error(), "attempt", c.q().NumRequeues(key))
		}
	}
	return true
}

// namespaceGoes says whether the API server refused because the object's namespace is being deleted: that cannot be taken back,
// so nothing is tried again, and there is nobody left to tell.
func namespaceGoes(err error) bool {
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// call runs one reconcile and turns a panic into an error: one hostile object must not stop all others.
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

// Watch reconciles toKeys(object) whenever an object of the informer appears, changes or goes. The function runs in the
// informer's callback, so it may only compute: no client, no lock that is held across one.
func (c *Controller) Watch(informer cache.SharedIndexInformer, toKeys func(object any) []Key) {
	if _, err := informer.AddEventHandler(c.handler(toKeys)); err != nil {
		// Only a stopped informer refuses a handler, and informers start after all controllers are built.
		panic(fmt.Sprintf("watch for %s: %v", c.Name, err))
	}
}

func (c *Controller) handler(toKeys func(object any) []Key) cache.ResourceEventHandler {
	enqueue := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		for _, key := range toKeys(object) {
			c.Enqueue(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: enqueue,
		UpdateFunc: func(before, after any) {
			if sameVersion(before, after) {
				return // the informer's own resync
			}
			// An object that moved from one owner to another concerns both.
			enqueue(before)
			enqueue(after)
		},
		DeleteFunc: enqueue,
	}
}
