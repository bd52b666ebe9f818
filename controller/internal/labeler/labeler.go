// Package labeler labels Revisions and Configurations with the Routes that lead to them.
//
// Owns: the annotation serving.knative.dev/routes of both, the label routingState and the
// annotation routingStateModified of Revisions, the finalizer of Routes. Reads: Services, Routes,
// Configurations, Revisions, HTTPRoutes. Writes: merge patches of these keys alone. Never: a
// status; takes a Route from a revision that its HTTPRoutes name.
package labeler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
)

type reconciler struct {
	client         ebb.Interface
	terminating    func(namespace string) bool
	services       listers.ServiceLister
	configurations listers.ConfigurationLister
	revisions      listers.RevisionLister
	httpRoutes     reconcile.Index[*gatewayv1.HTTPRoute] // by Route
	// Those with the name of a Route in their annotation, by that. Only active revisions have one.
	routedConfigurations reconcile.Index[*servingv1.Configuration]
	routedRevisions      reconcile.Index[*servingv1.Revision]
	now                  func() time.Time
}

// New returns the labeler. Its keys are Routes.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	serving := mgr.EbbInformers.Serving().V1()
	httpRoutes := mgr.GatewayInformers.Gateway().V1().HTTPRoutes()
	r := &reconciler{client: mgr.Ebb, terminating: mgr.Terminating, now: mgr.Now, services: serving.Services().Lister(),
		configurations: serving.Configurations().Lister(), revisions: serving.Revisions().Lister(),
		httpRoutes:           reconcile.IndexByLabel[*gatewayv1.HTTPRoute](httpRoutes.Informer(), names.RouteLabel),
		routedConfigurations: reconcile.IndexBy(serving.Configurations().Informer(), names.RoutesAnnotation, routesIn[*servingv1.Configuration]),
		routedRevisions: reconcile.IndexBy(serving.Revisions().Informer(), names.RoutesAnnotation, func(rev *servingv1.Revision) []string {
			if rev.Labels[names.RoutingStateLabel] != string(names.RoutingActive) {
				return nil
			}
			return routesIn(rev)
		}),
	}
	c := reconcile.Kind[*servingv1.Route]{
		Name: "labeler", Informer: serving.Routes().Informer(), Manager: mgr, KeepStatus: true,
		Client:    func(ns string) reconcile.Client[*servingv1.Route] { return mgr.Ebb.ServingV1().Routes(ns) },
		Finalizer: names.RouteFinalizer,
		Reconcile: func(ctx context.Context, route *servingv1.Route) (time.Duration, error) {
			return 0, r.label(ctx, route)
		},
		Finalize: r.clearAll,
	}.Controller()
	// A new revision of a Configuration, or one with a name that a Route has, needs its labels.
	c.Watch(serving.Configurations().Informer(), func(object any) []reconcile.Key { return routesOf(object) })
	c.WatchNews(serving.Revisions().Informer(), func(object any) []reconcile.Key { return routesOf(object) }, reconcile.BesidesScale)
	c.Watch(httpRoutes.Informer(), reconcile.ControllerOf("Route"))
	return c
}

// routesIn returns the Routes in the annotation of an object.
func routesIn[T metav1.Object](object T) []string {
	return slices.Collect(maps.Keys(routes(object.GetAnnotations()[names.RoutesAnnotation])))
}

// routesOf returns the Routes in the annotation of an object, and the Route of its Service, which
// may lead to it first.
func routesOf(object any) []reconcile.Key {
	m, ok := object.(metav1.Object)
	if !ok {
		return nil
	}
	set := routes(m.GetAnnotations()[names.RoutesAnnotation])
	if service := m.GetLabels()[names.ServiceLabel]; service != "" {
		set[service] = true
	}
	keys := make([]reconcile.Key, 0, len(set))
	for name := range set {
		keys = append(keys, reconcile.Key{Namespace: m.GetNamespace(), Name: name})
	}
	return keys
}

func (r *reconciler) label(ctx context.Context, route *servingv1.Route) error {
	want := targetsOf(route)
	// The latest created and the latest ready revision of a Configuration serve soon.
	for name := range want.configurations {
		config, found, err := apply.Found(r.configurations.Configurations(route.Namespace).Get(name))
		if err != nil {
			return err
		} else if !found {
			continue
		}
		for _, latest := range []string{config.Status.LatestCreatedRevisionName, config.Status.LatestReadyRevisionName} {
			if latest != "" {
				want.revisions[latest] = true
			}
		}
		if err := r.lastGood(route, config, want); err != nil {
			return err
		}
		if err := r.setConfiguration(ctx, config, withRoute(config.Annotations[names.RoutesAnnotation], route.Name)); err != nil {
			return err
		}
	}
	for name := range want.revisions {
		rev, found, err := apply.Found(r.revisions.Revisions(route.Namespace).Get(name))
		if err != nil {
			return err
		} else if !found {
			continue
		}
		if err := r.setRevision(ctx, rev, withRoute(rev.Annotations[names.RoutesAnnotation], route.Name)); err != nil {
			return err
		}
	}
	// Until the gateways follow a changed Route, the revisions of its old state serve. They may
	// never follow it: then what their HTTPRoutes name goes on serving.
	if followed := route.Status.GetCondition(servingv1.RouteConditionIngressReady); route.Status.ObservedGeneration != route.Generation || !followed.IsTrue() {
		return nil
	}
	r.led(route, want)
	return r.clear(ctx, route, want)
}

// lastGood adds the revision that serves in place of a latest one that went back. It may be in
// reserve, or parked.
func (r *reconciler) lastGood(route *servingv1.Route, config *servingv1.Configuration, want targets) error {
	latest, found, err := apply.Found(r.revisions.Revisions(route.Namespace).Get(config.Status.LatestReadyRevisionName))
	if err != nil || !found || latest.WentBack() == "" {
		return err
	}
	all, err := r.revisions.Revisions(route.Namespace).List(labels.SelectorFromSet(labels.Set{names.ConfigurationLabel: config.Name}))
	if err != nil {
		return err
	}
	if good := route.LastGood(latest, all); good != nil {
		want.revisions[good.Name] = true
	}
	return nil
}

// led adds the revisions that the HTTPRoutes of the Route name.
func (r *reconciler) led(route *servingv1.Route, want targets) {
	for _, h := range r.httpRoutes.Of(route.Namespace, route.Name) {
		if metav1.IsControlledBy(h, route) {
			for service := range gateway.Services(h) {
				want.revisions[service] = true // the public Service has the revision's name
			}
		}
	}
}

// clearAll is called for a Route that is being deleted. What the Route led to is left alone if it
// is being deleted too: with its namespace, or with the Service that controls the Route and all
// Revisions that it may lead to.
func (r *reconciler) clearAll(ctx context.Context, route *servingv1.Route) error {
	if r.terminating(route.Namespace) {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(route); owner != nil && owner.Kind == "Service" {
		service, found, err := apply.Found(r.services.Services(route.Namespace).Get(owner.Name))
		if err != nil {
			return err
		}
		if !found || service.UID != owner.UID || service.DeletionTimestamp != nil {
			return nil
		}
	}
	return r.clear(ctx, route, targets{})
}

// clear removes the Route's name from all objects that have it and that the Route does not lead to.
func (r *reconciler) clear(ctx context.Context, route *servingv1.Route, want targets) error {
	for _, config := range r.routedConfigurations.Of(route.Namespace, route.Name) {
		if !want.configurations[config.Name] {
			if err := r.setConfiguration(ctx, config, withoutRoute(config.Annotations[names.RoutesAnnotation], route.Name)); err != nil {
				return err
			}
		}
	}
	for _, rev := range r.routedRevisions.Of(route.Namespace, route.Name) {
		if !want.revisions[rev.Name] {
			if err := r.setRevision(ctx, rev, withoutRoute(rev.Annotations[names.RoutesAnnotation], route.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *reconciler) setConfiguration(ctx context.Context, config *servingv1.Configuration, routes string) error {
	if config.Annotations[names.RoutesAnnotation] == routes || !config.DeletionTimestamp.IsZero() {
		return nil
	}
	return label(ctx, r.client.ServingV1().Configurations(config.Namespace), "configuration", config,
		map[string]any{names.RoutesAnnotation: orRemove(routes)}, nil)
}

func (r *reconciler) setRevision(ctx context.Context, rev *servingv1.Revision, routes string) error {
	next := string(state(routes))
	moved := rev.Labels[names.RoutingStateLabel] != next
	if rev.Annotations[names.RoutesAnnotation] == routes && !moved || !rev.DeletionTimestamp.IsZero() {
		return nil
	}
	annotations := map[string]any{names.RoutesAnnotation: orRemove(routes)}
	var labels map[string]any
	if moved {
		labels = map[string]any{names.RoutingStateLabel: next}
		annotations[names.RoutingStateModifiedAnnotation] = r.now().UTC().Format(time.RFC3339)
	}
	return label(ctx, r.client.ServingV1().Revisions(rev.Namespace), "revision", rev, annotations, labels)
}

// label patches the metadata of an object. The patch has the resource version, so a value that was
// computed from an old object causes a conflict and does not replace a newer one.
func label[T metav1.Object](ctx context.Context, client reconcile.Client[T], kind string, object T, annotations, labels map[string]any) error {
	metadata := map[string]any{"resourceVersion": object.GetResourceVersion(), "annotations": annotations}
	if labels != nil {
		metadata["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("label %s %s/%s: %w", kind, object.GetNamespace(), object.GetName(), err)
	}
	return nil
}

// orRemove returns the value of a key in a merge patch. There, null removes the key.
func orRemove(value string) any {
	if value == "" {
		return nil
	}
	return value
}
