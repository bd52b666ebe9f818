package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewayinformers "sigs.k8s.io/gateway-api/pkg/client/informers/externalversions"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	ebbinformers "ebb.dev/ebb/api/client/informers/externalversions"
	ebb "ebb.dev/ebb/api/client/versioned"
	ebbscheme "ebb.dev/ebb/api/client/versioned/scheme"
	"ebb.dev/ebb/internal/events"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/settings"
)

// World is what reconcilers read and write: clients, caches, settings. One World serves one process.
type World struct {
	Kube     kubernetes.Interface
	Ebb      ebb.Interface
	Gateways gateways.Interface
	Dynamic  dynamic.Interface
	Settings *settings.Store
	Events   record.EventRecorder
	Log      *slog.Logger
	// SystemNamespace holds Ebb itself; ClusterDomain ends the names of Services: "cluster.local".
	SystemNamespace, ClusterDomain string
	// Now is the clock of what is written into objects.
	Now func() time.Time

	// Informers of Ebb's kinds and of the Gateway API, without managed fields.
	EbbInformers     ebbinformers.SharedInformerFactory
	GatewayInformers gatewayinformers.SharedInformerFactory

	mu       sync.Mutex
	kube     map[selection]informers.SharedInformerFactory
	optional []*Optional
}

type selection struct{ namespace, labels string }

// NewWorld makes a World over clients, with caches that are still empty.
func NewWorld(clients Clients, store *settings.Store, events record.EventRecorder, log *slog.Logger,
	systemNamespace, clusterDomain string) *World {
	return &World{
		Kube: clients.Kube, Ebb: clients.Ebb, Gateways: clients.Gateways, Dynamic: clients.Dynamic, Settings: store, Events: events, Log: log,
		SystemNamespace: systemNamespace, ClusterDomain: clusterDomain, Now: time.Now,
		EbbInformers:     ebbinformers.NewSharedInformerFactoryWithOptions(clients.Ebb, 0, ebbinformers.WithTransform(Trim)),
		GatewayInformers: gatewayinformers.NewSharedInformerFactoryWithOptions(clients.Gateways, 0, gatewayinformers.WithTransform(Trim)),
		kube:             map[selection]informers.SharedInformerFactory{},
	}
}

// Kubernetes returns the informers of Kubernetes' own kinds for the objects of a namespace ("" is all) that match a label
// selector. The same selection gives the same informers, so reconcilers share a cache; a selector is always given, because
// nobody wants every pod of a cluster in memory.
func (w *World) Kubernetes(namespace, labelSelector string) informers.SharedInformerFactory {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := selection{namespace, labelSelector}
	if f, ok := w.kube[s]; ok {
		return f
	}
	f := informers.NewSharedInformerFactoryWithOptions(w.Kube, 0, informers.WithNamespace(namespace),
		informers.WithTransform(Trim),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = labelSelector }))
	w.kube[s] = f
	return f
}

// NewEvents is a recorder that writes Events as the component.
func NewEvents(kube kubernetes.Interface, component string) (record.EventRecorder, func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(events.Sink(kube))
	return broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: component}), broadcaster.Shutdown
}

// Start runs every informer that a reconciler asked for and waits until they have listed.
func (w *World) start(ctx context.Context) error {
	w.mu.Lock()
	factories := make([]informers.SharedInformerFactory, 0, len(w.kube))
	for _, f := range w.kube {
		factories = append(factories, f)
	}
	optional := w.optional
	w.mu.Unlock()
	for _, f := range factories {
		f.Start(ctx.Done())
	}
	w.EbbInformers.Start(ctx.Done())
	w.GatewayInformers.Start(ctx.Done())
	for _, o := range optional {
		if err := o.run(ctx); err != nil {
			return err
		}
	}
	synced := func(kind any, ok bool) error {
		if !ok {
			return fmt.Errorf("cache of %v did not fill: %w", kind, context.Cause(ctx))
		}
		return nil
	}
	for _, f := range factories {
		for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
			if err := synced(kind, ok); err != nil {
				return err
			}
		}
	}
	for kind, ok := range w.EbbInformers.WaitForCacheSync(ctx.Done()) {
		if err := synced(kind, ok); err != nil {
			return err
		}
	}
	for kind, ok := range w.GatewayInformers.WaitForCacheSync(ctx.Done()) {
		if err := synced(kind, ok); err != nil {
			return err
		}
	}
	return nil
}

func (w *World) stop() {
	for _, f := range w.kube {
		f.Shutdown()
	}
	w.EbbInformers.Shutdown()
	w.GatewayInformers.Shutdown()
}

// Options are the knobs of Run.
type Options struct {
	// Timeout bounds one reconcile.
	Timeout time.Duration
	// Identity names this replica in Leases.
	Identity string
	// Alone runs without Leases: one replica, or a test.
	Alone bool
	// SettingsWithin spreads the reconciles after a changed setting.
	SettingsWithin time.Duration
	// Leases says how the keys are shared out among the replicas, see LeaseScheme.
	Leases  func() (lease.Scheme, <-chan struct{})
	Metrics *Metrics
	// Synced is called once the caches are filled.
	Synced func()
}

// Run starts the caches, then the workers of the controllers, then competes for leases, until ctx ends. It returns after every
// reconcile that was begun has ended and every lease is given up.
func (w *World) Run(ctx context.Context, controllers []*Controller, o Options) error {
	caches, stopCaches := context.WithCancel(context.WithoutCancel(ctx))
	defer w.stop()
	defer stopCaches()
	// Until the caches are filled, the end of ctx ends the wait for them; afterwards they outlive the workers.
	keepCaches := context.AfterFunc(ctx, stopCaches)
	if err := w.start(caches); err != nil {
		return err
	}
	keepCaches()
	if o.Synced != nil {
		o.Synced()
	}

	leases := NewLeases()
	leasing, stopLeasing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLeasing()
	runner := runner{timeout: o.Timeout, leases: leases, metrics: o.Metrics, log: w.Log}

	var workers, elections sync.WaitGroup
	for _, c := range controllers {
		workers.Go(func() { runner.work(ctx, c) })
	}
	workers.Go(func() { w.followSettings(ctx, controllers, o.SettingsWithin) })
	won := func(bucket string) {
		for _, c := range controllers {
			for _, key := range c.Keys() {
				if leases.Bucket(key) == bucket {
					c.Enqueue(key)
				}
			}
		}
	}
	if o.Alone {
		leases.HoldAll(leasing)
		won("")
	} else {
		election := lease.Election{Client: w.Kube, Namespace: w.SystemNamespace, Component: "controller", Identity: o.Identity,
			Scheme: o.Leases, Log: w.Log, Began: leases.begin, Lost: leases.lose,
			Won: func(bucket string, held context.Context) {
				leases.win(bucket, held)
				won(bucket)
			}}
		elections.Go(func() {
			if err := election.Run(leasing); err != nil {
				w.Log.Error("no leases", "error", err.Error())
			}
		})
	}
	workers.Wait()
	stopLeasing()
	elections.Wait()
	return nil
}

// followSettings reconciles everything after a setting changed.
func (w *World) followSettings(ctx context.Context, controllers []*Controller, within time.Duration) {
	_, replaced := w.Settings.Current()
	for {
		select {
		case <-ctx.Done():
			return
		case <-replaced:
		}
		_, replaced = w.Settings.Current()
		for _, c := range controllers {
			c.EnqueueAll(within)
		}
	}
}

// Trim is the transform of every cache: it drops what no reconciler reads. Managed fields are often half of an object. Of a
// pod only what tells how it fares is kept.
func Trim(object any) (any, error) {
	if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return gone, nil
	}
	if m, ok := object.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	if pod, ok := object.(*corev1.Pod); ok {
		pod.Annotations = nil
		pod.Spec = corev1.PodSpec{NodeName: pod.Spec.NodeName}
		pod.Status = corev1.PodStatus{
			Phase: pod.Status.Phase, Conditions: pod.Status.Conditions, PodIP: pod.Status.PodIP,
			Reason: pod.Status.Reason, Message: pod.Status.Message, StartTime: pod.Status.StartTime,
			ContainerStatuses: pod.Status.ContainerStatuses, InitContainerStatuses: pod.Status.InitContainerStatuses,
		}
	}
	if d, ok := object.(*appsv1.Deployment); ok {
		// Its content is compared by a hash in its metadata.
		d.Spec.Template.Spec = corev1.PodSpec{}
	}
	return object, nil
}

func eventScheme() *runtime.Scheme {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, ebbscheme.AddToScheme} {
		if err := add(all); err != nil {
			panic(fmt.Sprintf("build the scheme of events: %v", err)) // two kinds under one name: a fault of the build
		}
	}
	return all
}
