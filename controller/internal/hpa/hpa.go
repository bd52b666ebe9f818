// Package hpa serves the autoscaler class hpa.autoscaling.knative.dev. It translates PodAutoscalers
// to HorizontalPodAutoscalers, by which Kubernetes scales.
//
// Owns: the HorizontalPodAutoscaler of each PodAutoscaler of the class, and the status of those
// PodAutoscalers. Reads: PodAutoscalers, HorizontalPodAutoscalers, Deployments. Writes: what it
// owns; the scale of a Deployment that is at zero, or below its minimum before it was ever up,
// because a HorizontalPodAutoscaler leaves that. Never: changes a PodAutoscaler of another class,
// except that it deletes the HorizontalPodAutoscaler of its time in this class.
package hpa

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

const kind = "HorizontalPodAutoscaler"

// Selector is the label selector of the children of Revisions. It filters the caches.
const Selector = names.RevisionUIDLabel

type reconciler struct {
	kube        kubernetes.Interface
	hpas        autoscalinglisters.HorizontalPodAutoscalerLister
	deployments appslisters.DeploymentLister
	settings    *settings.Store
	refusals    *reconcile.Refusals
	now         func() time.Time
}

// New returns the reconciler of the class. Its keys are PodAutoscalers.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	made := mgr.Kubernetes("", Selector)
	hpas, deployments := made.Autoscaling().V2().HorizontalPodAutoscalers(), made.Apps().V1().Deployments()
	r := &reconciler{kube: mgr.Kube, hpas: hpas.Lister(), deployments: deployments.Lister(), settings: mgr.Settings, refusals: &mgr.Refusals, now: mgr.Now}
	c := reconcile.Kind[*autoscalingv1alpha1.PodAutoscaler]{
		Name: "hpa", Informer: mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Informer(), Manager: mgr,
		Client: func(ns string) reconcile.Client[*autoscalingv1alpha1.PodAutoscaler] {
			return mgr.Ebb.AutoscalingV1alpha1().PodAutoscalers(ns)
		},
		Reconcile: r.reconcile, Mine: r.mine, Leave: r.leave,
		Gone: func(key reconcile.Key) { mgr.Refusals.Note("hpa", key, nil) },
	}.Controller()
	c.Watch(hpas.Informer(), reconcile.ControllerOf("PodAutoscaler"))
	// A revision's Deployment and PodAutoscaler have one owner, and the PodAutoscaler has the
	// owner's name.
	all := mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Lister()
	c.Watch(deployments.Informer(), func(object any) (keys []reconcile.Key) {
		for _, key := range reconcile.ControllerOf("Revision")(object) {
			if pa, err := all.PodAutoscalers(key.Namespace).Get(key.Name); err == nil && r.mine(pa) {
				keys = append(keys, key)
			}
		}
		return keys
	})
	return c
}

func (r *reconciler) mine(pa *autoscalingv1alpha1.PodAutoscaler) bool {
	return pa.Class(r.settings.Load().Autoscaler.Class) == names.ClassHPA
}

// leave deletes the HorizontalPodAutoscaler of a PodAutoscaler that changed its class. Otherwise
// two would scale one Deployment.
func (r *reconciler) leave(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler) error {
	r.refusals.Note("hpa", reconcile.Key{Namespace: pa.Namespace, Name: pa.Name}, nil)
	have, found, err := apply.Found(r.hpas.HorizontalPodAutoscalers(pa.Namespace).Get(pa.Name))
	if err != nil || !found || !metav1.IsControlledBy(have, pa) {
		return err
	}
	return apply.Delete(ctx, r.kube.AutoscalingV2().HorizontalPodAutoscalers(pa.Namespace), kind, have,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}})
}

func (r *reconciler) reconcile(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler) (time.Duration, error) {
	c := r.settings.Load().Rules()
	pa.Status.InitializeConditions()
	have, found, err := apply.Found(r.hpas.HorizontalPodAutoscalers(pa.Namespace).Get(pa.Name))
	if err != nil {
		return 0, err
	}
	hpa, outcome, err := apply.Child(ctx, r.kube.AutoscalingV2().HorizontalPodAutoscalers(pa.Namespace), kind, pa, have, found, MakeHPA(pa, c),
		func(have, want *autoscalingv2.HorizontalPodAutoscaler) {
			apply.Metadata(have, want)
			if !equality.Semantic.DeepEqual(stored(have.Spec), stored(want.Spec)) {
				have.Spec = want.Spec
			}
		})
	r.refusals.Note("hpa", reconcile.Key{Namespace: pa.Namespace, Name: pa.Name}, err)
	switch {
	case apply.IsNotOwned(err):
		pa.Status.MarkResourceNotOwned(kind, pa.Name)
		return 0, reconcile.Foreign(err)
	case err != nil && outcome == apply.Created:
		pa.Status.MarkResourceFailedCreation(kind, pa.Name)
		return 0, err
	case err != nil:
		return 0, err
	}
	d, _, err := apply.Found(r.deployments.Deployments(pa.Namespace).Get(pa.Spec.ScaleTargetRef.Name))
	if err != nil {
		return 0, err
	}
	s, _ := names.ScalingOf(pa.Annotations, c)
	least, started := scales(pa, s, c.Autoscaling).Min, initialized(pa)
	setConditions(pa, hpa, d, least, metav1.NewMicroTime(r.now()))
	return 0, r.lift(ctx, d, least, started)
}

// lift scales a Deployment to where a HorizontalPodAutoscaler begins to work. That one ignores a
// Deployment at zero, and runs only every 15 s.
func (r *reconciler) lift(ctx context.Context, d *appsv1.Deployment, least int32, started bool) error {
	if d == nil || d.Spec.Replicas == nil || *d.Spec.Replicas > 0 && (started || *d.Spec.Replicas >= least) {
		return nil
	}
	wanted := max(least, 1)
	patch := fmt.Appendf(nil, `[{"op":"add","path":"/spec/replicas","value":%d}]`, wanted)
	if _, err := r.kube.AppsV1().Deployments(d.Namespace).Patch(ctx, d.Name, types.JSONPatchType, patch, metav1.PatchOptions{}, "scale"); err != nil {
		return fmt.Errorf("patch scale of %s/%s to %d: %w", d.Namespace, d.Name, wanted, err)
	}
	return nil
}
