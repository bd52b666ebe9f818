package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	gatewayinformers "sigs.k8s.io/gateway-api/pkg/client/informers/externalversions"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	ebbinformers "ebb.dev/ebb/api/client/informers/externalversions"
	ebbscheme "ebb.dev/ebb/api/client/versioned/scheme"
	"ebb.dev/ebb/internal/events"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/settings"
)

// Manager is what reconcilers read and write: clients, caches and settings. A process has one.
type Manager struct {
	Clients
	Settings *settings.Store
	Events   record.EventRecorder
	Log      *slog.Logger
	// SystemNamespace is the namespace of Ebb itself. ClusterDomain ends the names of Services:
	// "cluster.local".
	SystemNamespace, ClusterDomain string
	Refusals                       Refusals
	// ToGateways, if set, is the way of probes to gateways, for tests without a network.
	ToGateways http.RoundTripper
	// Now returns the times that are written into objects.
	Now func() time.Time

	// Informers of Ebb's kinds and of the Gateway API, without managed fields.
	EbbInformers     ebbinformers.SharedInformerFactory
	GatewayInformers gatewayinformers.SharedInformerFactory

	namespaces cache.SharedIndexInformer
	// The controllers that Run got, and how many reconciles run.
	controllers []*Controller
	running     atomic.Int64

	mu       sync.Mutex
	kube     map[selection]informers.SharedInformerFactory
	optional []*Optional
}

type selection struct{ namespace, name, labels string }

// NewManager returns a Manager whose caches are still empty.
func NewManager(clients Clients, store *settings.Store, events record.EventRecorder, log *slog.Logger,
	systemNamespace, clusterDomain string) *Manager {
	mgr := &Manager{
		Clients: clients, Settings: store, Events: events, Log: log,
		SystemNamespace: systemNamespace, ClusterDomain: clusterDomain, Now: time.Now,
		EbbInformers:     ebbinformers.NewSharedInformerFactoryWithOptions(clients.Ebb, 0, ebbinformers.WithTransform(Trim)),
		GatewayInformers: gatewayinformers.NewSharedInformerFactoryWithOptions(clients.Gateways, 0, gatewayinformers.WithTransform(Trim)),
		kube:             map[selection]informers.SharedInformerFactory{},
	}
	mgr.namespaces = mgr.Kubernetes("", "").Core().V1().Namespaces().Informer()
	return mgr
}

// Kubernetes returns the informers of Kubernetes' own kinds for the objects in a namespace ("" is
// all) that match a label selector. The same arguments return the same informers, so reconcilers
// share a cache. Only Namespaces are watched without a selector: nobody wants every pod of a
// cluster in memory.
func (mgr *Manager) Kubernetes(namespace, labelSelector string) informers.SharedInformerFactory {
	return mgr.selected(selection{namespace: namespace, labels: labelSelector})
}

// Named is Kubernetes for the objects with one name. A Role can allow to watch no other Secret.
func (mgr *Manager) Named(namespace, name string) informers.SharedInformerFactory {
	return mgr.selected(selection{namespace: namespace, name: name})
}

func (mgr *Manager) selected(s selection) informers.SharedInformerFactory {
	mgr.mu.Lock()
	defer mgr.mu.Unlock()
	if f, ok := mgr.kube[s]; ok {
		return f
	}
	f := informers.NewSharedInformerFactoryWithOptions(mgr.Kube, 0, informers.WithNamespace(s.namespace),
		informers.WithTransform(Trim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = s.labels
			if s.name != "" {
				o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, s.name).String()
			}
		}))
	mgr.kube[s] = f
	return f
}

// Terminating reports whether a namespace is being deleted. The API server then refuses every
// creation in it.
func (mgr *Manager) Terminating(namespace string) bool {
	object, exists, err := mgr.namespaces.GetStore().GetByKey(namespace)
	if err != nil || !exists {
		return false
	}
	m, ok := object.(metav1.Object)
	return ok && m.GetDeletionTimestamp() != nil
}

// RecordEvents makes the Manager record Events as the given component until stop is called.
func (mgr *Manager) RecordEvents(component string) (stop func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(livingSink{events.Sink(mgr.Kube), mgr.Terminating})
	mgr.Events = broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: component})
	return broadcaster.Shutdown
}

// livingSink drops Events in namespaces that are being deleted, which would be refused.
type livingSink struct {
	record.EventSink
	terminating func(namespace string) bool
}

func (s livingSink) Create(event *corev1.Event) (*corev1.Event, error) {
	if s.terminating(event.Namespace) {
		return event, nil
	}
	return s.EventSink.Create(event)
}

func (s livingSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	if s.terminating(event.Namespace) {
		return event, nil
	}
	return s.EventSink.Patch(event, data)
}

// start runs every informer that a reconciler asked for and waits until all have listed.
func (mgr *Manager) start(ctx context.Context) error {
	mgr.mu.Lock()
	optional := mgr.optional
	mgr.mu.Unlock()
	for _, f := range mgr.factories() {
		f.Start(ctx.Done())
	}
	for _, o := range optional {
		if err := o.run(ctx); err != nil {
			return err
		}
	}
	for _, f := range mgr.factories() {
		for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
			if !ok {
				return fmt.Errorf("cache of %v did not fill: %mgr", kind, context.Cause(ctx))
			}
		}
	}
	return nil
}

// factory is what all generated informer factories have in common.
type factory interface {
	Start(stop <-chan struct{})
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
	Shutdown()
}

func (mgr *Manager) factories() []factory {
	mgr.mu.Lock()
	defer mgr.mu.Unlock()
	all := []factory{mgr.EbbInformers, mgr.GatewayInformers}
	for _, f := range mgr.kube {
		all = append(all, f)
	}
	return all
}

// Options configure Run.
type Options struct {
	// Timeout bounds one reconcile.
	Timeout time.Duration
	// Identity is the name of this replica in Leases.
	Identity string
	// Alone is for a single replica, which needs no Leases.
	Alone bool
	// SettingsWithin spreads the reconciles after a changed setting.
	SettingsWithin time.Duration
	// Leases says how the keys are divided among the replicas.
	Leases lease.Source
	// Fate, if set, says what is known of another replica. What a dead one holds is taken sooner.
	// If it works all the same, two work on a key for a moment. They may: what they write follows
	// from what they read.
	Fate    func(ctx context.Context, identity string) lease.Fate
	Metrics *Metrics
	// Synced is called once the caches are filled.
	Synced func()
}

// Run starts the caches, then the workers of the controllers, then the elections, and runs until
// ctx ends. It returns when all reconciles have ended and all leases are released.
func (mgr *Manager) Run(ctx context.Context, controllers []*Controller, o Options) error {
	caches, stopCaches := context.WithCancel(context.WithoutCancel(ctx))
	defer mgr.stop(controllers)
	defer stopCaches()
	// The end of ctx ends the wait for the caches. Once they are filled they outlive the workers.
	keepCaches := context.AfterFunc(ctx, stopCaches)
	if err := mgr.start(caches); err != nil {
		return err
	}
	keepCaches()
	if o.Synced != nil {
		o.Synced()
	}

	var buckets []string
	if !o.Alone {
		scheme, _ := o.Leases()
		buckets = scheme.Names()
	}
	leases := NewLeases(buckets...)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	leasing, stopLeasing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeasing()
	runner := runner{timeout: o.Timeout, leases: leases, metrics: o.Metrics, log: mgr.Log, mgr: mgr}
	mgr.controllers = controllers

	var workers, elections sync.WaitGroup
	var electionFailed error
	for _, c := range controllers {
		workers.Go(func() { runner.work(ctx, c) })
	}
	workers.Go(func() { mgr.followSettings(ctx, controllers, o.SettingsWithin) })
	won := func(bucket string) { enqueue(controllers, leases, bucket) }
	if o.Alone {
		leases.win("", leasing)
		won("")
	} else {
		telemetry.Leases(o.Metrics.registry, "controller", func() int { return len(buckets) }, leases.Held)
		election := lease.Election{Client: mgr.Kube, Namespace: mgr.SystemNamespace, Identity: o.Identity, Buckets: buckets,
			Scheme: o.Leases, Log: mgr.Log, Fate: o.Fate, Lost: leases.lose,
			Won: func(bucket string, held context.Context) {
				leases.win(bucket, held)
				won(bucket)
			}}
		elections.Go(func() {
			if electionFailed = election.Run(leasing); electionFailed != nil {
				fail(electionFailed)
			}
		})
	}
	workers.Wait()
	stopLeasing()
	elections.Wait()
	return electionFailed
}

// enqueue reconciles all keys of a bucket.
func enqueue(controllers []*Controller, leases *Leases, bucket string) {
	for _, c := range controllers {
		for _, key := range c.Keys() {
			if leases.Bucket(key) == bucket {
				c.enqueueLate(key, 0)
			}
		}
	}
}

// stop ends the caches, and the queues, whose workers may not have started.
func (mgr *Manager) stop(controllers []*Controller) {
	for _, f := range mgr.factories() {
		f.Shutdown()
	}
	for _, c := range controllers {
		c.q().ShutDown()
		c.arrivals().ShutDown()
	}
}

// followSettings reconciles everything after a setting changed.
func (mgr *Manager) followSettings(ctx context.Context, controllers []*Controller, within time.Duration) {
	_, replaced := mgr.Settings.Current()
	for {
		select {
		case <-ctx.Done():
			return
		case <-replaced:
		}
		_, replaced = mgr.Settings.Current()
		for _, c := range controllers {
			c.EnqueueAll(within)
		}
	}
}

func eventScheme() *runtime.Scheme {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, ebbscheme.AddToScheme} {
		if err := add(all); err != nil {
			panic(fmt.Sprintf("build the scheme of events: %v", err)) // two kinds with one name, an error in the build
		}
	}
	return all
}
