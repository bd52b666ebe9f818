// Package labeler tells Revisions and Configurations which Routes lead to them.
//
// Owns: the annotation serving.knative.dev/routes of both, the label routingState and the annotation routingStateModified of
// Revisions, and the finalizer of Routes. Reads: Routes, Configurations, Revisions. Writes: merge patches of exactly these keys.
// Never: a status.
package labeler

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"knative.dev/pkg/apis"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

type reconciler struct {
	client         ebb.Interface
	configurations listers.ConfigurationLister
	revisions      listers.RevisionLister
	now            func() time.Time
}

// New is the labeler.
func New(w *reconcile.World) *reconcile.Controller {
	serving := w.EbbInformers.Serving().V1()
	r := &reconciler{client: w.Ebb, now: w.Now,
		configurations: serving.Configurations().Lister(), revisions: serving.Revisions().Lister()}
	c := reconcile.Kind[*servingv1.Route]{
		Name: "labeler", Informer: serving.Routes().Informer(), Events: w.Events, KeepStatus: true,
		Client:    func(ns string) reconcile.Client[*servingv1.Route] { return w.Ebb.ServingV1().Routes(ns) },
		Finalizer: names.RouteFinalizer,
		Reconcile: func(ctx context.Context, route *servingv1.Route) (time.Duration, error) {
			return 0, r.label(ctx, route)
		},
		Finalize: r.clearAll,
	}.Controller()
	// A Configuration that makes a new revision, and a revision that appears under a routed name, need their labels.
	c.Watch(serving.Configurations().Informer(), func(object any) []reconcile.Key { return routesOf(object) })
	c.Watch(serving.Revisions().Informer(), func(object any) []reconcile.Key { return routesOf(object) })
	return c
}

// routesOf are the Routes an object says lead to it, and the Route of its Service, which may name it before it says so.
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
	// The latest revisions of a routed Configuration, the created and the ready one, are about to be served.
	for name := range want.configurations {
		config, err := r.configurations.Configurations(route.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return err
		}
		for _, latest := range []string{config.Status.LatestCreatedRevisionName, config.Status.LatestReadyRevisionName} {
			if latest != "" {
				want.revisions[latest] = true
			}
		}
		if err := r.setConfiguration(ctx, config, withRoute(config.Annotations[names.RoutesAnnotation], route.Name)); err != nil {
			return err
		}
	}
	for name := range want.revisions {
		rev, err := r.revisions.Revisions(route.Namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return err
		}
		if err := r.setRevision(ctx, rev, withRoute(rev.Annotations[names.RoutesAnnotation], route.Name)); err != nil {
			return err
		}
	}
	// While a Route is on its way from one state to the next, what it leaves may still be served.
	if ready := route.Status.GetCondition(apis.ConditionReady); route.Status.ObservedGeneration != route.Generation || ready.IsUnknown() {
		return nil
	}
	return r.clear(ctx, route, want)
}

// clearAll is for a Route that goes.
func (r *reconciler) clearAll(ctx context.Context, route *servingv1.Route) error {
	return r.clear(ctx, route, targets{})
}

// clear takes the Route's name off everything that carries it and is not wanted. Only revisions labelled active can carry one.
func (r *reconciler) clear(ctx context.Context, route *servingv1.Route, want targets) error {
	configs, err := r.configurations.Configurations(route.Namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, config := range configs {
		value := config.Annotations[names.RoutesAnnotation]
		if hasRoute(value, route.Name) && !want.configurations[config.Name] {
			if err := r.setConfiguration(ctx, config, withoutRoute(value, route.Name)); err != nil {
				return err
			}
		}
	}
	active := labels.SelectorFromSet(labels.Set{names.RoutingStateLabel: string(names.RoutingActive)})
	revs, err := r.revisions.Revisions(route.Namespace).List(active)
	if err != nil {
		return err
	}
	for _, rev := range revs {
		value := rev.Annotations[names.RoutesAnnotation]
		if hasRoute(value, route.Name) && !want.revisions[rev.Name] {
			if err := r.setRevision(ctx, rev, withoutRoute(value, route.Name)); err != nil {
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
	patch, err := metadataPatch(config.ResourceVersion, map[string]any{names.RoutesAnnotation: orRemove(routes)}, nil)
	if err != nil {
		return err
	}
	_, err = r.client.ServingV1().Configurations(config.Namespace).Patch(ctx, config.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("label configuration %s/%s: %w", config.Namespace, config.Name, err)
	}
	return nil
}

func (r *reconciler) setRevision(ctx context.Context, rev *servingv1.Revision, routes string) error {
	next := state(routes)
	same := rev.Annotations[names.RoutesAnnotation] == routes && rev.Labels[names.RoutingStateLabel] == string(next)
	if same || !rev.DeletionTimestamp.IsZero() {
		return nil
	}
	annotations := map[string]any{names.RoutesAnnotation: orRemove(routes)}
	var patchLabels map[string]any
	if rev.Labels[names.RoutingStateLabel] != string(next) {
		patchLabels = map[string]any{names.RoutingStateLabel: string(next)}
		annotations[names.RoutingStateModifiedAnnotation] = r.now().UTC().Format(time.RFC3339)
	}
	patch, err := metadataPatch(rev.ResourceVersion, annotations, patchLabels)
	if err != nil {
		return err
	}
	_, err = r.client.ServingV1().Revisions(rev.Namespace).Patch(ctx, rev.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("label revision %s/%s: %w", rev.Namespace, rev.Name, err)
	}
	return nil
}

// metadataPatch carries the resource version, so that a value computed from an old cache meets a conflict, not the new value.
func metadataPatch(version string, annotations, labels map[string]any) ([]byte, error) {
	metadata := map[string]any{"resourceVersion": version, "annotations": annotations}
	if labels != nil {
		metadata["labels"] = labels
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

// orRemove is the value of a key in a merge patch, where null removes.
func orRemove(value string) any {
	if value == "" {
		return nil
	}
	return value
}
