// Package service reconciles Services: one Configuration and one Route of the same name.
//
// Owns: a Service's status. Reads: Services, Configurations, Routes, the Revision a template names.
// Writes: the Configuration and the Route, spec and metadata; their drift is overwritten. Never: Revisions, traffic.
package service

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/apis"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/configuration"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

type reconciler struct {
	client         ebb.Interface
	configurations listers.ConfigurationLister
	routes         listers.RouteLister
	revisions      listers.RevisionLister
	settings       *settings.Store
	events         record.EventRecorder
	clusterDomain  string
}

// New is the reconciler of Services.
func New(w *reconcile.World) *reconcile.Controller {
	serving := w.EbbInformers.Serving().V1()
	r := &reconciler{
		client: w.Ebb, settings: w.Settings, events: w.Events, clusterDomain: w.ClusterDomain,
		configurations: serving.Configurations().Lister(),
		routes:         serving.Routes().Lister(),
		revisions:      serving.Revisions().Lister(),
	}
	c := reconcile.Kind[*servingv1.Service]{
		Name: "service", Informer: serving.Services().Informer(), Events: w.Events,
		Client:    func(ns string) reconcile.Client[*servingv1.Service] { return w.Ebb.ServingV1().Services(ns) },
		Reconcile: r.reconcile,
	}.Controller()
	// Children carry the Service's name. Objects of others that stand in their place do so too, and going they let us proceed.
	c.Watch(serving.Configurations().Informer(), reconcile.Self)
	c.Watch(serving.Routes().Informer(), reconcile.Self)
	return c
}

func (r *reconciler) reconcile(ctx context.Context, svc *servingv1.Service) (time.Duration, error) {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	manager.InitializeConditions()

	config, err := r.configuration(ctx, svc)
	if err != nil {
		return 0, refused(svc, servingv1.ServiceConditionConfigurationsReady, err)
	}
	rollUpConfiguration(svc, config)

	// A Route that names a revision its Configuration has yet to make would fail for a moment: the Configuration goes first.
	if name := config.Spec.Template.Name; name != "" {
		if config.Generation != config.Status.ObservedGeneration {
			manager.MarkUnknown(servingv1.ServiceConditionRoutesReady, servingv1.ReasonOutOfDate,
				"The Configuration is still working to reflect the latest desired specification.")
			return 0, nil
		}
		named, err := r.revisions.Revisions(svc.Namespace).Get(name)
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, err
		}
		if err == nil && !configuration.Reusable(named, config, r.settings.Load().Rules(r.clusterDomain)) {
			manager.MarkFalse(servingv1.ServiceConditionRoutesReady, servingv1.ReasonRevisionNameTaken,
				"The revision name %q is taken by a conflicting Revision, so traffic will not be migrated", name)
			return 0, nil
		}
	}

	route, err := r.route(ctx, svc)
	if err != nil {
		return 0, refused(svc, servingv1.ServiceConditionRoutesReady, err)
	}
	rollUpRoute(svc, route)
	tellCause(svc)
	return 0, nil
}

// refused turns an error about a child into a condition where trying again alone will not help: somebody has to act.
func refused(svc *servingv1.Service, condition apis.ConditionType, err error) error {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	switch {
	case apply.IsNotOwned(err):
		manager.MarkFalse(condition, servingv1.ReasonNotOwned, "%s", err)
		return reconcile.Permanent(fmt.Errorf("service %s/%s: %w", svc.Namespace, svc.Name, err))
	case apply.IsRefused(err):
		manager.MarkFalse(condition, string(apierrors.ReasonForError(err)), "%s", err)
	}
	return err
}

func (r *reconciler) configuration(ctx context.Context, svc *servingv1.Service) (*servingv1.Configuration, error) {
	have, err := r.configurations.Configurations(svc.Namespace).Get(svc.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	after, outcome, err := apply.Child(ctx, r.client.ServingV1().Configurations(svc.Namespace), "Configuration", svc,
		have, err == nil, MakeConfiguration(svc), func(have, want *servingv1.Configuration) {
			// The labeler's word on a Configuration that is there stays.
			delete(want.Annotations, names.RoutesAnnotation)
			if routes, ok := have.Annotations[names.RoutesAnnotation]; ok {
				want.Annotations[names.RoutesAnnotation] = routes
			}
			have.Labels, have.Annotations = want.Labels, want.Annotations
			if equality.Semantic.DeepEqual(have.Spec, want.Spec) {
				return
			}
			// Both sides under the same defaults: a new cluster default alone is no change and makes no new revision.
			config := r.settings.Load().Rules(r.clusterDomain)
			a, b := have.DeepCopy(), want.DeepCopy()
			a.SetDefaults(rules.Request[servingv1.Configuration]{Config: config, Operation: rules.Create})
			b.SetDefaults(rules.Request[servingv1.Configuration]{Config: config, Operation: rules.Create})
			if !equality.Semantic.DeepEqual(a.Spec, b.Spec) {
				have.Spec = want.Spec
			}
		})
	r.tell(svc, "Configuration", outcome, err)
	return after, err
}

func (r *reconciler) route(ctx context.Context, svc *servingv1.Service) (*servingv1.Route, error) {
	have, err := r.routes.Routes(svc.Namespace).Get(svc.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	after, outcome, err := apply.Child(ctx, r.client.ServingV1().Routes(svc.Namespace), "Route", svc,
		have, err == nil, MakeRoute(svc), func(have, want *servingv1.Route) {
			have.Labels, have.Annotations = want.Labels, want.Annotations
			if equality.Semantic.DeepEqual(have.Spec, want.Spec) {
				return
			}
			config := r.settings.Load().Rules(r.clusterDomain)
			a, b := have.DeepCopy(), want.DeepCopy()
			a.SetDefaults(rules.Request[servingv1.Route]{Config: config, Operation: rules.Create})
			b.SetDefaults(rules.Request[servingv1.Route]{Config: config, Operation: rules.Create})
			if !equality.Semantic.DeepEqual(a.Spec, b.Spec) {
				have.Spec = want.Spec
			}
		})
	r.tell(svc, "Route", outcome, err)
	return after, err
}

func (r *reconciler) tell(svc *servingv1.Service, kind string, outcome apply.Outcome, err error) {
	switch {
	case outcome != apply.Created || apply.IsNotOwned(err):
	case err == nil:
		r.events.Eventf(svc, corev1.EventTypeNormal, "Created", "Created %s %q", kind, svc.Name)
	default:
		r.events.Eventf(svc, corev1.EventTypeWarning, "CreationFailed", "Failed to create %s %q: %v", kind, svc.Name, err)
	}
}
