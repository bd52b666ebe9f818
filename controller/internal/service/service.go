// Package service reconciles Services. Each has one Configuration and one Route of the same name.
//
// Owns: a Service's status. Reads: Services, Configurations, Routes, the Revision that a template
// names. Writes: spec and metadata of the Configuration and the Route, and overwrites changes of
// others. Never: Revisions, traffic.
package service

import (
	"context"
	"fmt"
	"strings"
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
}

// New returns the reconciler of Services.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	serving := mgr.EbbInformers.Serving().V1()
	r := &reconciler{
		client: mgr.Ebb, settings: mgr.Settings, events: mgr.Events,
		configurations: serving.Configurations().Lister(),
		routes:         serving.Routes().Lister(),
		revisions:      serving.Revisions().Lister(),
	}
	c := reconcile.Kind[*servingv1.Service]{
		Name: "service", Informer: serving.Services().Informer(), Manager: mgr,
		Client:    func(ns string) reconcile.Client[*servingv1.Service] { return mgr.Ebb.ServingV1().Services(ns) },
		Reconcile: r.reconcile, MayHold: func(_, _ *servingv1.Service) bool { return true }, NewWait: true,
	}.Controller()
	// Children have the Service's name. So do objects of others that are in their place, and the
	// Service continues when they go.
	c.Watch(serving.Configurations().Informer(), reconcile.Self)
	c.Watch(serving.Routes().Informer(), reconcile.Self)
	return c
}

func (r *reconciler) reconcile(ctx context.Context, svc *servingv1.Service) (_ time.Duration, err error) {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	manager.InitializeConditions()
	var created []string
	var failed string
	defer func() { r.tell(svc, created, failed, err) }()
	note := func(kind string, outcome apply.Outcome, err error) {
		if outcome == apply.Created && err == nil {
			created = append(created, kind)
		} else if outcome == apply.Created {
			failed = kind
		}
	}

	config, outcome, err := r.configuration(ctx, svc)
	if note("Configuration", outcome, err); err != nil {
		return 0, refused(svc, servingv1.ServiceConditionConfigurationsReady, err)
	}
	rollUpConfiguration(svc, config)

	// A Route that names a Revision which does not exist yet would fail for a moment, so the
	// Configuration goes first.
	if name := config.Spec.Template.Name; name != "" {
		if config.Generation != config.Status.ObservedGeneration {
			manager.MarkUnknown(servingv1.ServiceConditionRoutesReady, servingv1.ReasonOutOfDate,
				"The Configuration is still working to reflect the latest desired specification.")
			return 0, nil
		}
		named, found, err := apply.Found(r.revisions.Revisions(svc.Namespace).Get(name))
		if err != nil {
			return 0, err
		}
		if found && !configuration.Reusable(named, config, r.settings.Load().Rules()) {
			manager.MarkFalse(servingv1.ServiceConditionRoutesReady, servingv1.ReasonRevisionNameTaken,
				"The revision name %q is taken by a conflicting Revision, so traffic will not be migrated", name)
			return 0, nil
		}
	}

	route, outcome, err := r.route(ctx, svc)
	if note("Route", outcome, err); err != nil {
		return 0, refused(svc, servingv1.ServiceConditionRoutesReady, err)
	}
	rollUpRoute(svc, route)
	tellCause(svc)
	return 0, nil
}

// refused turns an error about a child into a condition if a retry alone does not help, because
// somebody has to act.
func refused(svc *servingv1.Service, condition apis.ConditionType, err error) error {
	manager := svc.GetConditionSet().Manage(&svc.Status)
	switch {
	case apply.IsNotOwned(err):
		manager.MarkFalse(condition, servingv1.ReasonNotOwned, "%s", err)
		return reconcile.Foreign(fmt.Errorf("service %s/%s: %w", svc.Namespace, svc.Name, err))
	case apply.IsRefused(err):
		manager.MarkFalse(condition, string(apierrors.ReasonForError(err)), "%s", err)
	}
	return err
}

// configuration makes the Configuration exist as the Service says.
func (r *reconciler) configuration(ctx context.Context, svc *servingv1.Service) (*servingv1.Configuration, apply.Outcome, error) {
	have, found, err := apply.Found(r.configurations.Configurations(svc.Namespace).Get(svc.Name))
	if err != nil {
		return nil, apply.Unchanged, err
	}
	return apply.Child(ctx, r.client.ServingV1().Configurations(svc.Namespace), "Configuration", svc,
		have, found, MakeConfiguration(svc), func(have, want *servingv1.Configuration) {
			// From its creation on, the labeler sets this annotation.
			delete(want.Annotations, names.RoutesAnnotation)
			if routes, ok := have.Annotations[names.RoutesAnnotation]; ok {
				want.Annotations[names.RoutesAnnotation] = routes
			}
			have.Labels, have.Annotations = want.Labels, want.Annotations
			if !equality.Semantic.DeepEqual(have.Spec, want.Spec) {
				// Compare with the same defaults on both sides. A new default of the cluster is not
				// a change, and makes no Revision.
				a, b, config := have.DeepCopy(), want.DeepCopy(), r.settings.Load().Rules()
				a.SetDefaults(rules.Request[servingv1.Configuration]{Config: config, Operation: rules.Create})
				b.SetDefaults(rules.Request[servingv1.Configuration]{Config: config, Operation: rules.Create})
				if !equality.Semantic.DeepEqual(a.Spec, b.Spec) {
					have.Spec = want.Spec
				}
			}
		})
}

// route makes the Route exist as the Service says.
func (r *reconciler) route(ctx context.Context, svc *servingv1.Service) (*servingv1.Route, apply.Outcome, error) {
	have, found, err := apply.Found(r.routes.Routes(svc.Namespace).Get(svc.Name))
	if err != nil {
		return nil, apply.Unchanged, err
	}
	return apply.Child(ctx, r.client.ServingV1().Routes(svc.Namespace), "Route", svc,
		have, found, MakeRoute(svc), func(have, want *servingv1.Route) {
			have.Labels, have.Annotations = want.Labels, want.Annotations
			if !equality.Semantic.DeepEqual(have.Spec, want.Spec) {
				a, b, config := have.DeepCopy(), want.DeepCopy(), r.settings.Load().Rules()
				a.SetDefaults(rules.Request[servingv1.Route]{Config: config, Operation: rules.Create})
				b.SetDefaults(rules.Request[servingv1.Route]{Config: config, Operation: rules.Create})
				if !equality.Semantic.DeepEqual(a.Spec, b.Spec) {
					have.Spec = want.Spec
				}
			}
		})
}

// tell records one Event about the children that a reconcile created, and one if a creation failed.
func (r *reconciler) tell(svc *servingv1.Service, created []string, failed string, err error) {
	if len(created) > 0 && !reconcile.IsNew(svc) {
		r.events.Eventf(svc, corev1.EventTypeNormal, "Created", "Created %s %q", strings.Join(created, " and "), svc.Name)
	}
	if failed != "" && !apply.IsNotOwned(err) {
		r.events.Eventf(svc, corev1.EventTypeWarning, "CreationFailed", "Failed to create %s %q: %v", failed, svc.Name, err)
	}
}
