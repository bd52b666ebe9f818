package resting

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

const (
	// keepFor is how long the common HTTPRoutes stay after the last host that rested: another
	// replica may have seen the setting later.
	keepFor = 30 * time.Second
	// activatorsAgain is when activators are asked again that do not follow plans yet, and
	// everyAgain when all is looked at that no informer shows.
	activatorsAgain = time.Second
	everyAgain      = 30 * time.Second
)

type reconciler struct {
	kube                  kubernetes.Interface
	client                gatewayclient.Interface
	settings              *settings.Store
	system, clusterDomain string
	namespaces            corelisters.NamespaceLister
	httpRoutes            reconcile.Index[*gatewayv1.HTTPRoute] // of this package and bridges, by label
	activators            discoverylisters.EndpointSliceLister
	silent                func() sets.Set[string]
	plans                 plans
	followers             *followers
	seen                  *Seen
	now                   func() time.Time

	unused time.Time // since when nothing rests, zero if something does
	gone   bool      // nothing of what this package owns is there
}

// ofResting indexes the HTTPRoutes of Ebb's namespace that this package looks after.
const ofResting = "resting"

// New returns the reconciler of what all resting hosts share. Its only key is the name of the
// Service.
func New(mgr *reconcile.Manager, seen *Seen) *reconcile.Controller {
	httpRoutes := mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer()
	activators := mgr.Kubernetes(mgr.SystemNamespace, discoveryv1.LabelServiceName+"="+names.ActivatorService).Discovery().V1().EndpointSlices()
	routes := mgr.EbbInformers.Serving().V1().Routes().Informer()
	r := &reconciler{
		kube: mgr.Kube, client: mgr.Gateways, settings: mgr.Settings, system: mgr.SystemNamespace, clusterDomain: mgr.ClusterDomain,
		namespaces: mgr.Kubernetes("", "").Core().V1().Namespaces().Lister(),
		httpRoutes: reconcile.IndexBy(httpRoutes, ofResting, func(h *gatewayv1.HTTPRoute) (keys []string) {
			for _, label := range []string{names.CommonLabel, names.BridgeLabel} {
				if h.Namespace == mgr.SystemNamespace && h.Labels[label] != "" {
					keys = append(keys, label)
				}
			}
			return keys
		}),
		activators: activators.Lister(), silent: mgr.SilentNodes, plans: plans{gateway.NewPlanned(routes), routes.GetIndexer()}, followers: newFollowers(mgr), seen: seen, now: mgr.Now,
	}
	only := reconcile.Key{Namespace: mgr.SystemNamespace, Name: plan.Resting}
	keys := func() []reconcile.Key { return []reconcile.Key{only} }
	c := &reconcile.Controller{Name: "resting", Workers: 1, Reconcile: r.reconcile, Keys: keys, Background: seen.Run}
	seen.Tell(func() { c.Enqueue(only) })
	whileOn := func(any) []reconcile.Key {
		if r.on() {
			return keys()
		}
		return nil
	}
	c.Watch(httpRoutes, func(object any) []reconcile.Key {
		if m := object.(metav1.Object); m.GetNamespace() == r.system && (m.GetLabels()[names.CommonLabel] != "" || m.GetLabels()[names.BridgeLabel] != "") {
			return keys()
		}
		return nil
	})
	c.Watch(activators.Informer(), whileOn)
	c.Watch(mgr.Silent().Informer(), whileOn)
	c.Watch(routes, func(object any) []reconcile.Key {
		if route, ok := object.(*servingv1.Route); ok && !r.on() && route.Status.Annotations[names.PlanAnnotation] != "" {
			return keys()
		}
		return nil
	})
	return c
}

func (r *reconciler) on() bool { return hindrance(r.settings.Load(), r.system) == "" }

func (r *reconciler) reconcile(ctx context.Context, _ reconcile.Key) (time.Duration, error) {
	if err := r.deleteOrphans(ctx); err != nil {
		return 0, err
	}
	if !r.on() {
		return r.end(ctx)
	}
	r.unused, r.gone = time.Time{}, false
	owner, err := r.namespaces.Get(r.system)
	if err != nil {
		return 0, fmt.Errorf("find Ebb's namespace, which owns what resting hosts share: %w", err)
	}
	again, err := r.publish(ctx, owner)
	if err != nil {
		return 0, err
	}
	return again, r.write(ctx, owner, r.settings.Load())
}

// end takes away what resting hosts share, when there is no such host: the HTTPRoutes first.
func (r *reconciler) end(ctx context.Context) (time.Duration, error) {
	have := r.httpRoutes.Of(r.system, names.CommonLabel)
	services := r.kube.CoreV1().Services(r.system)
	if len(have) == 0 && !r.gone {
		_, found, err := apply.Found(services.Get(ctx, plan.Resting, metav1.GetOptions{}))
		if err != nil {
			return 0, err
		}
		r.gone = !found
	}
	switch {
	case r.gone:
		return 0, nil
	case r.plans.Len() > 0 || len(r.httpRoutes.Of(r.system, names.BridgeLabel)) > 0:
		r.unused = time.Time{}
		return everyAgain, r.keep(ctx)
	case r.unused.IsZero():
		r.unused = r.now()
		return keepFor, r.keep(ctx)
	}
	if left := keepFor - r.now().Sub(r.unused); left > 0 {
		return left, r.keep(ctx)
	}
	for _, h := range have {
		if err := apply.Delete(ctx, r.client.GatewayV1().HTTPRoutes(r.system), "HTTPRoute", h, metav1.DeleteOptions{}); err != nil {
			return 0, err
		}
	}
	for _, kind := range addressTypes {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: sliceName(kind), Namespace: r.system}}
		if err := apply.Delete(ctx, r.kube.DiscoveryV1().EndpointSlices(r.system), "EndpointSlice", slice, metav1.DeleteOptions{}); err != nil {
			return 0, err
		}
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: plan.Resting, Namespace: r.system}}
	if err := apply.Delete(ctx, services, "Service", service, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	r.gone = true
	r.followers.forget()
	return 0, nil
}

// keep lists the activators while the last hosts come to have HTTPRoutes of their own.
func (r *reconciler) keep(ctx context.Context) error {
	owner, err := r.namespaces.Get(r.system)
	if err != nil {
		return err
	}
	_, err = r.publish(ctx, owner)
	return err
}

// write makes the common HTTPRoutes exist, and deletes others below which no host rests.
func (r *reconciler) write(ctx context.Context, owner *corev1.Namespace, s *settings.Snapshot) error {
	meta := gatewayapi.Meta{Labels: map[string]string{names.CommonLabel: "true"}, Owner: ownedBy(owner)}
	have, wanted := map[string]*gatewayv1.HTTPRoute{}, map[string]bool{}
	for _, h := range r.httpRoutes.Of(r.system, names.CommonLabel) {
		have[h.Name] = h
	}
	api := r.client.GatewayV1().HTTPRoutes(r.system)
	var all []*gatewayv1.HTTPRoute
	list := commons(s, r.system, r.clusterDomain)
	for _, c := range list {
		for twin := range twins {
			want, _ := c.route(r.system, twin).HTTPRoute(s.Gateway, meta)
			wanted[want.Name], all = true, append(all, want)
		}
	}
	// Gateways that the settings do not name any more serve until those do that they name instead.
	beside, retained := gatewayapi.RetainParents(have, all)
	if retained && (!r.seen.all(list) || gatewayapi.Unaccepted(have, all) != "") {
		all = beside
	}
	for _, want := range all {
		cached, found := have[want.Name]
		if _, _, err := apply.Child(ctx, api, "HTTPRoute", owner, cached, found, want, func(have, want *gatewayv1.HTTPRoute) {
			apply.Metadata(have, want)
			have.Spec = want.Spec
		}); err != nil {
			return err
		}
	}
	for name, h := range have {
		if wanted[name] || r.plans.below(h) {
			continue
		}
		if err := apply.Delete(ctx, api, "HTTPRoute", h, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// deleteOrphans deletes the bridges of Routes that are gone.
func (r *reconciler) deleteOrphans(ctx context.Context) error {
	for _, h := range r.httpRoutes.Of(r.system, names.BridgeLabel) {
		key, uid := Route(h)
		if r.plans.exists(key, uid) {
			continue
		}
		if err := apply.Delete(ctx, r.client.GatewayV1().HTTPRoutes(r.system), "HTTPRoute", h, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}
