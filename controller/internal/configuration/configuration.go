// Package configuration reconciles Configurations. It creates the Revision of the current template,
// and finds the latest revision that is ready.
//
// Owns: a Configuration's status. Reads: Configurations, Revisions. Writes: new Revisions. Never:
// changes a Revision.
package configuration

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/apis"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
)

type reconciler struct {
	client    ebb.Interface
	revisions listers.RevisionLister
	made      reconcile.Index[*servingv1.Revision] // by Configuration
	events    record.EventRecorder
	now       func() time.Time
	defaults  func() *rules.Config
}

// New returns the reconciler of Configurations.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	serving := mgr.EbbInformers.Serving().V1()
	r := &reconciler{client: mgr.Ebb, revisions: serving.Revisions().Lister(), events: mgr.Events, now: mgr.Now,
		made:     reconcile.IndexByLabel[*servingv1.Revision](serving.Revisions().Informer(), names.ConfigurationLabel),
		defaults: func() *rules.Config { return mgr.Settings.Load().Rules() }}
	c := reconcile.Kind[*servingv1.Configuration]{
		Name: "configuration", Informer: serving.Configurations().Informer(), Manager: mgr,
		Client: func(ns string) reconcile.Client[*servingv1.Configuration] {
			return mgr.Ebb.ServingV1().Configurations(ns)
		},
		Reconcile: r.reconcile,
		// A Service waits for the first status if it names its revision.
		MayHold: func(before, after *servingv1.Configuration) bool {
			return before.Status.LatestCreatedRevisionName == "" && after.Spec.Template.Name == ""
		},
	}.Controller()
	c.WatchNews(serving.Revisions().Informer(), reconcile.ControllerOf("Configuration"), reconcile.BesidesScale)
	return c
}

func (r *reconciler) reconcile(ctx context.Context, config *servingv1.Configuration) (time.Duration, error) {
	manager := config.GetConditionSet().Manage(&config.Status)
	manager.InitializeConditions()

	created, err := r.created(ctx, config)
	if err != nil {
		if conflict, ok := err.(*takenError); ok {
			manager.MarkFalse(apis.ConditionReady, servingv1.ReasonRevisionFailed,
				"Revision creation failed with message: %s.", conflict)
			return 0, reconcile.Foreign(fmt.Errorf("configuration %s/%s: %w", config.Namespace, config.Name, err))
		}
		if apply.IsRefused(err) {
			manager.MarkFalse(apis.ConditionReady, servingv1.ReasonRevisionFailed, "Revision creation failed with message: %s.", err)
		}
		return 0, err
	}
	config.Status.LatestCreatedRevisionName = created.Name

	all := r.made.Of(config.Namespace, config.Name)
	before := config.Status.LatestReadyRevisionName
	latest := latestReady(config, created, all)
	if latest != before {
		config.Status.LatestReadyRevisionName = latest
		if before != "" {
			r.events.Eventf(config, corev1.EventTypeNormal, "LatestReadyUpdate", "LatestReadyRevisionName updated to %q", latest)
		} else if !reconcile.IsNew(config) {
			r.events.Eventf(config, corev1.EventTypeNormal, "ConfigurationReady", "Configuration becomes ready with Revision %q", latest)
		}
	}

	switch state := ready(created); {
	case state.IsFalse() && created.Status.ObservedGeneration == created.Generation:
		was := manager.GetCondition(apis.ConditionReady)
		manager.MarkFalse(apis.ConditionReady, servingv1.ReasonRevisionFailed, "Revision %q failed with message: %s.", created.Name, state.Message)
		if was.GetReason() != servingv1.ReasonRevisionFailed || was.GetMessage() != manager.GetCondition(apis.ConditionReady).Message {
			event := "LatestCreatedFailed"
			if created.Name == latest {
				event = "LatestReadyFailed"
			}
			r.events.Eventf(config, corev1.EventTypeWarning, event, "Latest created revision %q has failed: %s", created.Name, state.Message)
		}
	case created.Name == latest && isReady(created):
		manager.MarkTrue(apis.ConditionReady)
	case latest != "" && !slices.ContainsFunc(all, func(rev *servingv1.Revision) bool { return rev.Name == latest }):
		manager.MarkFalse(apis.ConditionReady, servingv1.ReasonRevisionDeleted, "Revision %q was deleted.", latest)
	default:
		manager.MarkUnknown(apis.ConditionReady, "", "")
	}
	return 0, nil
}

// takenError means that the name which the user chose belongs to another revision.
type takenError struct{ name string }

func (e *takenError) Error() string {
	return fmt.Sprintf("revision name %q is taken by a Revision with another spec or another owner; choose another spec.template.metadata.name", e.name)
}

// created returns the revision of the current template, and creates it if there is none.
func (r *reconciler) created(ctx context.Context, config *servingv1.Configuration) (*servingv1.Revision, error) {
	name := RevisionName(config)
	have, found, err := apply.Found(r.revisions.Revisions(config.Namespace).Get(name))
	if found {
		return have, r.check(have, config)
	} else if err != nil {
		return nil, err
	}
	made, err := r.client.ServingV1().Revisions(config.Namespace).Create(ctx, MakeRevision(config, r.defaults(), r.now()), metav1.CreateOptions{})
	switch {
	case err == nil:
		if !reconcile.IsNew(config) {
			r.events.Eventf(config, corev1.EventTypeNormal, "Created", "Created Revision %q", name)
		}
		return made, nil
	case apierrors.IsAlreadyExists(err):
		// The cache does not show yet what we created.
		if made, err = r.client.ServingV1().Revisions(config.Namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("read revision %s/%s: %w", config.Namespace, name, err)
		}
		return made, r.check(made, config)
	default:
		r.events.Eventf(config, corev1.EventTypeWarning, "CreationFailed", "Failed to create Revision: %v", err)
		return nil, fmt.Errorf("create revision %s/%s: %w", config.Namespace, name, err)
	}
}

func (r *reconciler) check(rev *servingv1.Revision, config *servingv1.Configuration) error {
	if generationOf(rev) == config.Generation && metav1.IsControlledBy(rev, config) || Reusable(rev, config, r.defaults()) {
		return nil
	}
	return &takenError{rev.Name}
}
