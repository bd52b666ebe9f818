// Package watch tells the backends, the plans and relay what Kubernetes says.
//
// Owns: the informers. Reads: Revisions, EndpointSlices of private Services and of the activators,
// the plans in the status of Routes. Writes: the tables of backends, plans and relay. Never: does
// anything in an informer callback that could wait; watches Routes where no gateway leads requests
// by their hosts alone.
package watch

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/api/client/informers/externalversions"
	servinginformers "ebb.dev/ebb/api/client/informers/externalversions/serving/v1"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// Watch fills the tables.
type Watch struct {
	Kube     kubernetes.Interface
	Ebb      versioned.Interface
	Table    *backends.Table
	Plans    *plans.Table
	Relay    *relay.Table
	System   string // Ebb's namespace
	Settings *settings.Store
	Log      *slog.Logger

	// Known is closed when everything that existed at the start is in the tables.
	Known chan struct{}
	// order is held from reading a Revision in the informer's store until the table has it, so that
	// a re-reading of all never overwrites news with what it read before them.
	order     sync.Mutex
	revisions cache.SharedIndexInformer
}

// sweep is how often words that nobody confirmed are looked at.
const sweep = time.Second

// Run watches until ctx is done.
func (w *Watch) Run(ctx context.Context) error {
	ours := externalversions.NewSharedInformerFactory(w.Ebb, 0)
	revisions := ours.InformerFor(&servingv1.Revision{}, func(client versioned.Interface, resync time.Duration) cache.SharedIndexInformer {
		return servinginformers.NewRevisionInformer(client, metav1.NamespaceAll, resync, cache.Indexers{}) // nobody asks for those of a namespace
	})
	w.revisions = revisions
	sliced, endpointSlices := w.slices("", names.ServiceTypeLabel+"="+names.ServiceTypePrivate)
	activators, activatorSlices := w.slices(w.System, discoveryv1.LabelServiceName+"="+names.ActivatorService)

	revisionsSynced, err := follow(revisions, transformRevision, w.revision, w.revision)
	if err != nil {
		return err
	}
	slicesSynced, err := follow(endpointSlices, transformSlice, w.slice, w.sliceDeleted)
	if err != nil {
		return err
	}
	// Requests do not need them, so nothing waits until they are known.
	if _, err := follow(activatorSlices, transformSlice, w.slice, w.sliceDeleted); err != nil {
		return err
	}
	resting, restingSlices := w.slices(w.System, discoveryv1.LabelServiceName+"="+plan.Resting)
	needed, restingSynced, err := w.resting(restingSlices)
	if err != nil {
		return err
	}
	planned := externalversions.NewSharedInformerFactory(w.Ebb, 0)
	followPlans, err := w.plans(planned)
	if err != nil {
		return err
	}
	ours.Start(ctx.Done())
	sliced.Start(ctx.Done())
	resting.Start(ctx.Done())
	activators.Start(ctx.Done())
	defer ours.Shutdown()
	defer sliced.Shutdown()
	defer resting.Shutdown()
	defer activators.Shutdown()
	defer planned.Shutdown()
	var group sync.WaitGroup
	defer group.Wait()
	known := cache.WaitForCacheSync(ctx.Done(), revisionsSynced, slicesSynced, restingSynced)
	select {
	case <-needed:
		needed = nil
		known = known && followPlans(ctx)
	default:
	}
	if known {
		close(w.Known)
		w.Log.Info("the cluster's revisions and their pods are known", "revisions", len(revisions.GetStore().ListKeys()))
	}
	w.loop(ctx, revisions.GetStore(), needed, func() { group.Go(func() { followPlans(ctx) }) })
	return nil
}

// loop does what no event of an object causes, until ctx is done. followPlans is called once they
// are needed.
func (w *Watch) loop(ctx context.Context, revisions cache.Store, needed <-chan struct{}, followPlans func()) {
	ticker := time.NewTicker(sweep)
	defer ticker.Stop()
	_, replaced := w.Settings.Current()
	for {
		select {
		case <-ctx.Done():
			return
		case <-needed:
			needed = nil
			followPlans()
		case now := <-ticker.C:
			w.Table.Sweep(now)
		case <-replaced:
			// Defaults of fields that a Revision leaves open may have changed.
			_, replaced = w.Settings.Current()
			for _, o := range revisions.List() {
				w.revision(o)
			}
		}
	}
}

// slices makes an informer of the EndpointSlices in a namespace, or all, that a selector chooses,
// with the factory that starts it.
func (w *Watch) slices(namespace, selector string) (informers.SharedInformerFactory, cache.SharedIndexInformer) {
	factory := informers.NewSharedInformerFactory(w.Kube, 0)
	return factory, factory.InformerFor(&discoveryv1.EndpointSlice{}, func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return discoveryinformers.NewFilteredEndpointSliceInformer(client, namespace, resync, cache.Indexers{},
			func(o *metav1.ListOptions) { o.LabelSelector = selector })
	})
}

// follow calls changed and deleted for the objects of an informer, which transform has made
// smaller.
func follow(informer cache.SharedIndexInformer, transform cache.TransformFunc, changed, deleted func(any)) (cache.InformerSynced, error) {
	if err := informer.SetTransform(transform); err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	handle, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    changed,
		UpdateFunc: func(_, o any) { changed(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			deleted(o)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	return handle.HasSynced, nil
}

// revision brings the table to what the informer's store says of o now.
func (w *Watch) revision(o any) {
	r, ok := o.(*keptRevision)
	if !ok {
		return
	}
	w.order.Lock()
	defer w.order.Unlock()
	key := backends.Key{Namespace: r.Namespace, Name: r.Name}
	// The store cannot fail: it is a map.
	newest, exists, _ := w.revisions.GetStore().Get(o)
	if r, ok = newest.(*keptRevision); exists && ok {
		w.Table.SetRevision(key, r.info(w.Settings.Load().Rules()))
	} else {
		w.Table.DeleteRevision(key)
	}
}

func (w *Watch) slice(o any) {
	if s, ok := o.(*keptSlice); ok {
		w.Table.SetSlice(s.key, s.Name, s.endpoints)
	}
}

func (w *Watch) sliceDeleted(o any) {
	if s, ok := o.(*keptSlice); ok {
		w.Table.SetSlice(s.key, s.Name, nil)
	}
}
