package watch

import (
	"context"
	"net/netip"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/client/informers/externalversions"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// resting follows the activators to which gateways lead requests by their hosts alone: these stand
// behind a Service of its own, whose EndpointSlices the informer has. It returns a channel that is
// closed when there is one, so that plans are needed.
func (w *Watch) resting(informer cache.SharedIndexInformer) (needed chan struct{}, synced cache.InformerSynced, err error) {
	needed = make(chan struct{})
	var once sync.Once
	tell := func(o any, there bool) {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok {
			return
		}
		var addresses []netip.AddrPort
		if _, endpoints := endpointsOf(s); there {
			for _, e := range endpoints {
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
	synced, err := follow(factory.Serving().V1().Routes().Informer(), transformRoute, w.route, w.routeDeleted)
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
	r, ok := o.(*servingv1.Route)
	if !ok {
		return
	}
	text := r.Status.Annotations[names.PlanAnnotation]
	if err := w.Plans.Set(r.Namespace, r.Name, string(r.UID), r.CreationTimestamp.Time, text); err != nil {
		w.Log.Warn("a plan cannot be read; if there was one before, that counts", "error", err)
	}
}

func (w *Watch) routeDeleted(o any) {
	if r, ok := o.(*servingv1.Route); ok {
		w.Plans.Delete(r.Namespace, r.Name)
	}
}

// transformRoute keeps nothing of a Route but who it is and its plan: there is one for each service
// of the cluster.
func transformRoute(o any) (any, error) {
	r, ok := o.(*servingv1.Route)
	if !ok {
		return o, nil
	}
	kept := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, UID: r.UID,
		ResourceVersion: r.ResourceVersion, CreationTimestamp: r.CreationTimestamp}}
	if text := r.Status.Annotations[names.PlanAnnotation]; text != "" {
		kept.Status.Annotations = map[string]string{names.PlanAnnotation: text}
	}
	return kept, nil
}
