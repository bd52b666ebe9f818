// Package gc deletes revisions that nobody is likely to go back to.
//
// Owns: the decision which (choose.go). Reads: Configurations, Revisions, config-gc. Writes: deletes Revisions. Never: touches a
// revision that is routed, was never routed, is the latest, or carries no-gc.
package gc

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

// interval is how often age alone is looked at again; every change of the Configuration is a reason too.
const interval = 30 * time.Minute

// New is the garbage collector; its keys are Configurations.
func New(w *reconcile.World) *reconcile.Controller {
	serving := w.EbbInformers.Serving().V1()
	revisions := serving.Revisions().Lister()
	c := reconcile.Kind[*servingv1.Configuration]{
		Name: "gc", Informer: serving.Configurations().Informer(), World: w, KeepStatus: true,
		Client: func(ns string) reconcile.Client[*servingv1.Configuration] {
			return w.Ebb.ServingV1().Configurations(ns)
		},
		Reconcile: func(ctx context.Context, config *servingv1.Configuration) (time.Duration, error) {
			of := labels.SelectorFromSet(labels.Set{names.ConfigurationLabel: config.Name})
			all, err := revisions.Revisions(config.Namespace).List(of)
			if err != nil {
				return 0, err
			}
			var failed []error
			for _, rev := range choose(config, all, w.Settings.Load().GC, w.Now()) {
				err := w.Ebb.ServingV1().Revisions(rev.Namespace).Delete(ctx, rev.Name,
					metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &rev.UID, ResourceVersion: &rev.ResourceVersion}})
				if err != nil && !apierrors.IsNotFound(err) {
					failed = append(failed, fmt.Errorf("delete revision %s/%s: %w", rev.Namespace, rev.Name, err))
				}
			}
			return interval, errors.Join(failed...)
		},
	}.Controller()
	c.Workers = 2
	return c
}
