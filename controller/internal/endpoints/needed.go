package endpoints

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

// This file decides whether a revision has a public Service, where hosts may rest (decision 20).
// Activators reach pods without it. HTTPRoutes name it, and GRPCRoutes:
//
//	the revision, its Service                              has a public Service
//	any, where no host may rest                            yes
//	any, with system-internal-tls, where none does         yes
//	has the annotation serving.knative.dev/no-gc           yes
//	an HTTPRoute or a GRPCRoute of anybody names it        yes
//	a DomainMapping refers to it                           yes
//	has the mark of a Route that there is                  yes
//	none of these for less than unneededFor                as it was
//	none of these, and the GRPCRoutes are not known        as it was
//	none of these                                          no
//
// The mark is the lock between this reconciler and that of Routes. The latter makes the Service, or
// finds it, and writes the mark before it writes an HTTPRoute that names it. A Service is deleted
// in the version that was seen without a mark, so what was marked since stays.

// unneededFor is how long nobody needs a public Service before it is deleted. A gateway may have
// requests in flight there, and caches may be behind.
const unneededFor = time.Minute

// needs finds out whether somebody needs the public Service of a revision.
type needs struct {
	settings  *settings.Store
	revisions listers.RevisionLister
	routes    listers.RouteLister
	client    ebb.Interface
	events    record.EventRecorder
	named     gateway.Named
	mappings  reconcile.Index[*v1beta1.DomainMapping] // by the name that they refer to
	now       func() time.Time

	mu    sync.Mutex
	since map[reconcile.Key]time.Time // nobody needs it; without an entry the wait begins anew
}

func newNeeds(mgr *reconcile.Manager, c *reconcile.Controller, services cache.SharedIndexInformer) *needs {
	serving := mgr.EbbInformers.Serving().V1()
	mappings := mgr.EbbInformers.Serving().V1beta1().DomainMappings().Informer()
	n := &needs{
		settings: mgr.Settings, revisions: serving.Revisions().Lister(), routes: serving.Routes().Lister(), client: mgr.Ebb,
		// A public Service has the name of its PodAutoscaler.
		named:    gateway.NewNamed(mgr, c, func() bool { return mgr.Settings.Load().Gateway.Resting }),
		mappings: gateway.Mappings(mappings), events: mgr.Events, now: mgr.Now, since: map[reconcile.Key]time.Time{},
	}
	marked := reconcile.IndexBy(services, names.NeededByAnnotation, NeededBy)
	c.Watch(serving.Routes().Informer(), func(object any) (keys []reconcile.Key) {
		route, ok := object.(*servingv1.Route)
		if !ok || n.has(route.Namespace, route.Name) {
			return nil
		}
		for _, service := range marked.Of(route.Namespace, route.Name) {
			keys = append(keys, reconcile.Self(service)...)
		}
		return keys
	})
	c.Others = n.forget // when it is ours again, others may have needed it since
	c.Watch(serving.Revisions().Informer(), func(object any) []reconcile.Key {
		if rev, ok := object.(*servingv1.Revision); !ok || rev.Annotations[names.NoGCAnnotation] == "" || !n.settings.Load().Gateway.Resting {
			return nil
		}
		return reconcile.Self(object)
	})
	c.Watch(mappings, func(object any) []reconcile.Key {
		if dm, ok := object.(*v1beta1.DomainMapping); ok && toService(dm) && n.settings.Load().Gateway.Resting {
			return []reconcile.Key{{Namespace: dm.Namespace, Name: dm.Spec.Ref.Name}}
		}
		return nil
	})
	return n
}

// toService reports whether a mapping refers to a Service of Kubernetes.
func toService(dm *v1beta1.DomainMapping) bool {
	return dm.Spec.Ref.Kind == "Service" && !strings.Contains(dm.Spec.Ref.APIVersion, "/") && dm.Spec.Ref.Group == ""
}

// unneeded reports whether nobody needs the public Service of a revision, and how much longer that
// has to be so before it goes.
func (n *needs) unneeded(pa *autoscalingv1alpha1.PodAutoscaler, have *corev1.Service) (wait time.Duration, ok bool) {
	key := reconcile.Key{Namespace: pa.Namespace, Name: pa.Name}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.needed(key, have) {
		delete(n.since, key)
		return 0, false
	}
	if have == nil {
		delete(n.since, key)
		return 0, true
	}
	if n.named.Unknown() {
		delete(n.since, key)
		return unneededFor, true
	}
	if n.since[key].IsZero() {
		n.since[key] = n.now()
	}
	return max(0, n.since[key].Add(unneededFor).Sub(n.now())), true
}

// needed reports whether somebody needs the public Service of a revision now.
func (n *needs) needed(key reconcile.Key, have *corev1.Service) bool {
	if s := n.settings.Load(); !s.Gateway.Resting || s.Network.SystemInternalTLS || n.named.By(key) || slices.ContainsFunc(n.mappings.Of(key.Namespace, key.Name), toService) {
		return true
	}
	if rev, err := n.revisions.Revisions(key.Namespace).Get(key.Name); err == nil && rev.Annotations[names.NoGCAnnotation] == "true" {
		return true
	}
	return slices.ContainsFunc(NeededBy(have), func(route string) bool { return n.has(key.Namespace, route) })
}

// has reports whether the cache has a Route.
func (n *needs) has(namespace, route string) bool {
	_, err := n.routes.Routes(namespace).Get(route)
	return err == nil
}

// gone returns those of the marks whose Routes are gone. The API server is asked, as the cache may
// not have a Route yet.
func (n *needs) gone(ctx context.Context, have *corev1.Service) (gone []string, err error) {
	for _, route := range NeededBy(have) {
		if n.has(have.Namespace, route) {
			continue
		}
		if _, found, err := apply.Found(n.client.ServingV1().Routes(have.Namespace).Get(ctx, route, metav1.GetOptions{})); err != nil {
			return gone, fmt.Errorf("read Route %s/%s: %w", have.Namespace, route, err)
		} else if !found {
			gone = append(gone, route)
		}
	}
	return gone, nil
}

func (n *needs) forget(key reconcile.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.since, key)
}

// takeAway deletes the public Service in this version, and its EndpointSlices after it: the Service
// has the mark, so it alone tells whether somebody needs both. If this ends in between, the
// EndpointSlices list what was there then. So nobody makes a Service beside them: a Route waits
// until they are gone, and the reconciler of endpoints writes them first.
func (r *reconciler) takeAway(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler, have *corev1.Service) error {
	if have != nil && metav1.IsControlledBy(have, pa) {
		if gone, err := r.needs.gone(ctx, have); err != nil || len(gone) < len(NeededBy(have)) {
			return err
		}
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion}}
		if err := apply.Delete(ctx, r.kube.CoreV1().Services(pa.Namespace), "Service", have, options); err != nil {
			return err
		}
		r.needs.forget(reconcile.Key{Namespace: pa.Namespace, Name: pa.Name})
		if rev, err := r.needs.revisions.Revisions(pa.Namespace).Get(pa.Name); err == nil {
			r.needs.events.Eventf(rev, corev1.EventTypeNormal, "ServiceDeleted",
				"Activators serve this Revision, and no HTTPRoute or GRPCRoute names its Service, which is deleted. The annotation %s: \"true\" keeps it", names.NoGCAnnotation)
		}
	}
	own := r.own(pa)
	if have == nil && len(own) > 0 { // the cache may not have it yet
		if _, found, err := apply.Found(r.kube.CoreV1().Services(pa.Namespace).Get(ctx, names.PublicService(pa.Name), metav1.GetOptions{})); err != nil || found {
			return err
		}
	}
	for _, slice := range own {
		options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &slice.UID, ResourceVersion: &slice.ResourceVersion}}
		if err := apply.Delete(ctx, r.kube.DiscoveryV1().EndpointSlices(pa.Namespace), "EndpointSlice", slice, options); err != nil {
			return err
		}
	}
	return nil
}

// own returns the EndpointSlices of the public Service.
func (r *reconciler) own(pa *autoscalingv1alpha1.PodAutoscaler) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(r.slices.Of(pa.Namespace, pa.Name), func(slice *discoveryv1.EndpointSlice) bool {
		return slice.Labels[discoveryv1.LabelManagedBy] != managedBy || !metav1.IsControlledBy(slice, pa)
	})
}

// Public returns the public Service of a revision with the mark of a Route, for who makes it before
// this reconciler does.
func Public(pa *autoscalingv1alpha1.PodAutoscaler, route string) *corev1.Service {
	service := publicService(pa)
	Mark(service, route)
	return service
}

// NeededBy returns the Routes whose mark a public Service has. There may be none, and no Service.
func NeededBy(service *corev1.Service) []string {
	if service == nil || service.Annotations[names.NeededByAnnotation] == "" {
		return nil
	}
	return strings.Split(service.Annotations[names.NeededByAnnotation], ",")
}

// Mark gives a public Service the mark of a Route.
func Mark(service *corev1.Service, route string) {
	setMarks(service, append(NeededBy(service), route))
}

// Unmark takes the mark of a Route off a public Service.
func Unmark(service *corev1.Service, route string) {
	setMarks(service, slices.DeleteFunc(NeededBy(service), func(name string) bool { return name == route }))
}

func setMarks(service *corev1.Service, routes []string) {
	slices.Sort(routes)
	if routes = slices.Compact(routes); len(routes) == 0 {
		delete(service.Annotations, names.NeededByAnnotation)
		return
	}
	if service.Annotations == nil {
		service.Annotations = map[string]string{}
	}
	service.Annotations[names.NeededByAnnotation] = strings.Join(routes, ",")
}
