package endpoints

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

// needsPrivate reports whether a revision has a private Service. The Service goes with the
// Deployment and comes back with it (decisions 0025 and 0026): both are made when the status of the
// PodAutoscaler says that a pod is wanted, long before there is a pod.
//
//	the revision                                            has a private Service
//	any, without deployment-retention-period                yes
//	its pods are addressed by it, as in a mesh              yes
//	has a Deployment                                        yes
//	was never up, or another autoscaler scales it           yes
//	its autoscaler wants a pod, or has decided nothing yet  yes
//	has a pod, awake or asleep                              yes
//	none of these                                           no
func needsPrivate(pa *autoscalingv1alpha1.PodAutoscaler, deployment bool, private []*discoveryv1.EndpointSlice, s *settings.Snapshot) bool {
	status := &pa.Status
	switch {
	case s.Deployment.RetentionPeriod == 0, s.Network.MeshAddressing(), deployment:
		return true
	case pa.Annotations[names.InitializedAnnotation] != "true" && !status.IsScaleTargetInitialized(), pa.Class(s.Autoscaler.Class) != names.ClassKPA:
		return true
	case ptr.Deref(status.DesiredScale, -1) != 0, ptr.Deref(status.ActualScale, -1) != 0, ptr.Deref(status.AsleepReplicas, 0) > 0:
		return true
	}
	return slices.ContainsFunc(private, func(slice *discoveryv1.EndpointSlice) bool { return len(slice.Endpoints) > 0 })
}

// private makes the private Service exist, or deletes it with the Deployment.
func (r *reconciler) private(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler) error {
	_, deployment, err := apply.Found(r.deployments.Deployments(pa.Namespace).Get(names.Deployment(pa.Name)))
	if err != nil {
		return err
	}
	want := privateService(pa)
	if needsPrivate(pa, deployment, r.privateSlices(pa), r.needs.settings.Load()) {
		return r.service(ctx, pa, want)
	}
	have, found, err := apply.Found(r.services.Services(pa.Namespace).Get(want.Name))
	if err != nil || !found || !metav1.IsControlledBy(have, pa) {
		return err
	}
	// Caches that are behind by more than a first request takes would take it from pods that serve.
	now, found, err := apply.Found(r.needs.client.AutoscalingV1alpha1().PodAutoscalers(pa.Namespace).Get(ctx, pa.Name, metav1.GetOptions{}))
	if err != nil || !found {
		return err
	}
	if _, deployment, err = apply.Found(r.kube.AppsV1().Deployments(pa.Namespace).Get(ctx, names.Deployment(pa.Name), metav1.GetOptions{})); err != nil ||
		needsPrivate(now, deployment, nil, r.needs.settings.Load()) {
		return err
	}
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &have.UID}}
	return apply.Delete(ctx, r.kube.CoreV1().Services(pa.Namespace), "Service", have, options)
}

func (r *reconciler) privateSlices(pa *autoscalingv1alpha1.PodAutoscaler) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(r.slices.Of(pa.Namespace, pa.Name), func(slice *discoveryv1.EndpointSlice) bool {
		return slice.Labels[discoveryv1.LabelServiceName] != names.PrivateService(pa.Name)
	})
}

// watchDeployments reconciles a revision when its Deployment comes or goes.
func watchDeployments(mgr *reconcile.Manager, c *reconcile.Controller) appslisters.DeploymentLister {
	deployments := mgr.Kubernetes("", names.RevisionUIDLabel).Apps().V1().Deployments()
	moved := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		d, ok := object.(*appsv1.Deployment)
		if !ok || mgr.Settings.Load().Deployment.RetentionPeriod == 0 {
			return
		}
		if revision := d.Labels[names.RevisionLabel]; revision != "" {
			c.Enqueue(reconcile.Key{Namespace: d.Namespace, Name: revision})
		}
	}
	if _, err := deployments.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: moved, DeleteFunc: moved}); err != nil {
		panic(fmt.Sprintf("watch for Deployments: %v", err)) // only a stopped informer refuses
	}
	return deployments.Lister()
}
