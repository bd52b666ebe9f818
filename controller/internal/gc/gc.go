// Package gc deletes old revisions.
//
// Owns: the decision which (choose.go). Reads: Configurations, Revisions, config-gc. Writes:
// deletes Revisions. Never: deletes a revision that a Route leads to, that no Route ever led to,
// that is the latest, or that has the annotation no-gc.
package gc

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// interval is the longest time between two looks at the age of revisions. Changes of the
// Configuration and of its revisions cause more: a revision can go once no Route leads to it, and
// that is written on the revision alone.
const interval = 30 * time.Minute

// New returns the garbage collector. Its keys are Configurations.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	serving := mgr.EbbInformers.Serving().V1()
	revisions := reconcile.IndexByLabel[*servingv1.Revision](serving.Revisions().Informer(), names.ConfigurationLabel)
	c := reconcile.Kind[*servingv1.Configuration]{
		Name: "gc", Informer: serving.Configurations().Informer(), Manager: mgr, KeepStatus: true,
		Client: func(ns string) reconcile.Client[*servingv1.Configuration] {
			return mgr.Ebb.ServingV1().Configurations(ns)
		},
		Reconcile: func(ctx context.Context, config *servingv1.Configuration) (time.Duration, error) {
			var failed []error
			doomed, next := choose(config, revisions.Of(config.Namespace, config.Name), mgr.Settings.Load().GC, mgr.Now())
			for _, rev := range doomed {
				failed = append(failed, apply.Delete(ctx, mgr.Ebb.ServingV1().Revisions(rev.Namespace), "Revision", rev,
					metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &rev.UID, ResourceVersion: &rev.ResourceVersion}}))
			}
			return next, errors.Join(failed...)
		},
	}.Controller()
	c.WatchNews(serving.Revisions().Informer(), reconcile.Label(names.ConfigurationLabel), reconcile.BesidesScale)
	c.Workers = 2
	return c
}
