package watch

import (
	"context"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/client/informers/externalversions"
	servinginformers "ebb.dev/ebb/api/client/informers/externalversions/serving/v1"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/interned"
)

// resting follows the activators to which gateways lead requests by their hosts alone: these stand
// behind a Service of its own, whose EndpointSlices the informer has. It returns a channel that is
// closed when there is one, so that plans are needed.
func (w *Watch) resting(informer cache.SharedIndexInformer) (needed chan struct{}, synced cache.InformerSynced, err error) {
	needed = make(chan struct{})
	var once sync.Once
	tell := func(o any, there bool) {
		s, ok := o.(*keptSlice)
		if !ok {
			return
		}
		var addresses []netip.AddrPort
		if there {
			for _, e := range s.endpoints {
				addresses = append(addresses, e.Address)
			}
		}
		w.Relay.SetSlice(s.Name, addresses)
	}
	synced, err = follow(informer, transformSlice, func(o any) {
		tell(o, true)
		once.Do(func() { close(needed) })
	}, func(o any) { tell(o, false) })
	return needed, synced, err
}

// plans returns what watches the plans in the status of Routes from then on. It reports whether all
// of them are in the table, which may take until ctx is done.
func (w *Watch) plans(factory externalversions.SharedInformerFactory) (follows func(context.Context) bool, err error) {
	informer := factory.InformerFor(&servingv1.Route{}, func(client versioned.Interface, resync time.Duration) cache.SharedIndexInformer {
		return servinginformers.NewRouteInformer(client, metav1.NamespaceAll, resync, cache.Indexers{})
	})
	synced, err := follow(informer, transformRoute, w.route, w.routeDeleted)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) bool {
		factory.Start(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), synced) {
			return false
		}
		w.Plans.Follow()
		w.Log.Info("the plans of Routes are known", "plans", w.Plans.Len())
		return true
	}, nil
}

// route stores the plan in a Route's status.
func (w *Watch) route(o any) {
	r, ok := o.(*keptRoute)
	if !ok {
		return
	}
	if err := w.Plans.Set(r.Namespace, r.Name, r.uid, r.created, r.plan); err != nil {
		w.Log.Warn("a plan cannot be read; if there was one before, that counts", "error", err)
	}
}

func (w *Watch) routeDeleted(o any) {
	if r, ok := o.(*keptRoute); ok {
		w.Plans.Delete(r.Namespace, r.Name)
	}
}

// keptRoute is what is kept of a Route: who it is and its plan. There is one for each service of
// the cluster.
type keptRoute struct {
	interned.Identity
	uid, plan string
	created   time.Time
}

func transformRoute(o any) (any, error) {
	if r, ok := o.(*servingv1.Route); ok {
		return &keptRoute{interned.IdentityOf(r), string(r.UID), r.Status.Annotations[names.PlanAnnotation], r.CreationTimestamp.Time}, nil
	}
	return o, nil
}
