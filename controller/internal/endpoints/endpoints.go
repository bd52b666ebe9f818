// Package endpoints keeps the two Services of a revision and the endpoints of the public one.
//
// Owns: Service <revision> and its EndpointSlices, Service <revision>-private. Reads:
// PodAutoscalers (mode and number of activators), the EndpointSlices of the private Services and of
// activator-service, which nodes autoscalers call silent, and where hosts may rest, who needs a
// public Service. Writes: what it owns. Never: a PodAutoscaler's status; an EndpointSlice without
// addresses while a pod or an activator could take a request; deletes a Service with the mark of a
// Route.
package endpoints

import (
	"context"
	"errors"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	corev1 "k8s.io/api/core/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
)

type reconciler struct {
	kube       kubernetes.Interface
	system     string
	services   corelisters.ServiceLister
	slices     reconcile.Index[*discoveryv1.EndpointSlice] // of both Services of a revision, by its name
	activators discoverylisters.EndpointSliceLister
	silent     func() sets.Set[string]
	security   *security
	// deployments are those of revisions.
	deployments appslisters.DeploymentLister
	needs       *needs
	refusals    *reconcile.Refusals
}

// New returns the reconciler of the Services and EndpointSlices of revisions. Its keys are
// PodAutoscalers.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	ofRevisions := mgr.Kubernetes("", names.ServerlessServiceLabel)
	ofActivators := mgr.Kubernetes(mgr.SystemNamespace, discoveryv1.LabelServiceName+"="+names.ActivatorService)
	services, slices := ofRevisions.Core().V1().Services(), ofRevisions.Discovery().V1().EndpointSlices()
	r := &reconciler{
		kube: mgr.Kube, system: mgr.SystemNamespace, services: services.Lister(),
		slices:     reconcile.IndexByLabel[*discoveryv1.EndpointSlice](slices.Informer(), names.ServerlessServiceLabel),
		activators: ofActivators.Discovery().V1().EndpointSlices().Lister(), refusals: &mgr.Refusals,
		silent: mgr.SilentNodes,
	}
	autoscalers := mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers()
	c := reconcile.Kind[*autoscalingv1alpha1.PodAutoscaler]{
		Name: "endpoints", Informer: autoscalers.Informer(), Manager: mgr,
		Client: func(ns string) reconcile.Client[*autoscalingv1alpha1.PodAutoscaler] {
			return mgr.Ebb.AutoscalingV1alpha1().PodAutoscalers(ns)
		},
		Reconcile: r.reconcile, KeepStatus: true,
		Gone: func(key reconcile.Key) { r.note(key, nil, nil); r.needs.forget(key) },
	}.Controller()
	r.needs, r.deployments = newNeeds(mgr, c, services.Informer()), watchDeployments(mgr, c)
	c.Watch(services.Informer(), reconcile.ControllerOf("PodAutoscaler"))
	c.Watch(slices.Informer(), reconcile.Label(names.ServerlessServiceLabel))
	r.security = newSecurity(mgr, c, reconcile.AllOf(autoscalers.Informer()))
	c.WatchForAll(ofActivators.Discovery().V1().EndpointSlices().Informer(), func() []reconcile.Key {
		return proxiedFirst(r.published(autoscalers.Informer().GetStore().List()))
	})
	c.WatchForAll(mgr.Silent().Informer(), func() []reconcile.Key {
		return proxiedLast(r.published(autoscalers.Informer().GetStore().List()))
	})
	return c
}

// published leaves out the PodAutoscalers of revisions without a public Service: nobody lists
// activators or pods for them. all is changed.
func (r *reconciler) published(all []any) []any {
	if !r.needs.settings.Load().Gateway.Resting {
		return all
	}
	return slices.DeleteFunc(all, func(object any) bool {
		pa := object.(*autoscalingv1alpha1.PodAutoscaler)
		_, found, err := apply.Found(r.services.Services(pa.Namespace).Get(names.PublicService(pa.Name)))
		return err == nil && !found
	})
}

// proxiedFirst lists all keys, first those whose gateways send requests to activators now.
func proxiedFirst(all []any) []reconcile.Key {
	var first, then []reconcile.Key
	for _, object := range all {
		if object.(*autoscalingv1alpha1.PodAutoscaler).Status.Mode == autoscalingv1alpha1.ModeServe {
			then = append(then, reconcile.Self(object)...)
		} else {
			first = append(first, reconcile.Self(object)...)
		}
	}
	return append(first, then...)
}

// proxiedLast lists all keys, first those whose gateways send requests to pods now. Activators try
// another pod by themselves.
func proxiedLast(all []any) []reconcile.Key {
	keys := proxiedFirst(all)
	slices.Reverse(keys)
	return keys
}

func (r *reconciler) reconcile(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler) (time.Duration, error) {
	public := publicService(pa)
	have, found, err := apply.Found(r.services.Services(pa.Namespace).Get(public.Name))
	if err != nil {
		return 0, err
	}
	if !found {
		have = nil
	}
	wait, unneeded := r.needs.unneeded(pa, have)
	key := reconcile.Key{Namespace: pa.Namespace, Name: pa.Name}
	// If one Service fails, the other is created all the same: requests may need it.
	private := r.private(ctx, pa)
	if unneeded && wait == 0 {
		err := r.takeAway(ctx, pa, have)
		r.note(key, private, err)
		return 0, errors.Join(private, err)
	}
	secure, again, insecure := r.secure(ctx, pa, public.Name)
	if secure {
		public = overTLS(public, pa)
	}
	if have == nil && len(r.own(pa)) > 0 { // of an earlier Service
		if err = r.publish(ctx, pa); err == nil {
			err = r.service(ctx, pa, public)
		}
	} else {
		err = errors.Join(r.service(ctx, pa, public), r.publish(ctx, pa))
	}
	r.note(key, private, err)
	return reconcile.Sooner(again, wait), errors.Join(private, err, insecure)
}

// note keeps for the Revision what is refused of both Services.
func (r *reconciler) note(key reconcile.Key, private, public error) {
	r.refusals.Note(reconcile.OfPods, key, private)
	r.refusals.Note("endpoints", key, public)
}

// secure reports whether gateways reach the revision over TLS.
func (r *reconciler) secure(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler, service string) (bool, time.Duration, error) {
	have, err := r.services.Services(pa.Namespace).Get(service)
	before := err == nil && have.Annotations[names.SystemTLSAnnotation] != ""
	all, err := r.activators.EndpointSlices(r.system).List(labels.Everything())
	if err != nil {
		return before, 0, err
	}
	var activators []string
	for _, list := range standing(all, ready) {
		for _, e := range list {
			activators = append(activators, e.Addresses[0])
		}
	}
	return r.security.ready(ctx, pa, activators, before)
}

// service writes a Service as wanted. Where hosts may rest, the version that is written keeps its
// marks: the cache may not have shown that one, nor that a Route has made the Service.
func (r *reconciler) service(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler, want *corev1.Service) error {
	have, found, err := apply.Found(r.services.Services(pa.Namespace).Get(want.Name))
	if err != nil {
		return err
	}
	gone, err := r.needs.gone(ctx, have)
	if err != nil {
		return err
	}
	_, _, err = apply.Child(ctx, r.kube.CoreV1().Services(pa.Namespace), "Service", pa, have, found, want,
		func(have, want *corev1.Service) {
			marks := NeededBy(have)
			apply.Metadata(have, want)
			if r.needs.settings.Load().Gateway.Resting {
				setMarks(have, slices.DeleteFunc(marks, func(route string) bool { return slices.Contains(gone, route) }))
			}
			have.Spec.Ports, have.Spec.Selector = want.Spec.Ports, want.Spec.Selector
		})
	return err
}

// publish writes the EndpointSlices of the public Service, as choose decides. New slices are
// created before old ones are deleted.
func (r *reconciler) publish(ctx context.Context, pa *autoscalingv1alpha1.PodAutoscaler) error {
	all := r.slices.Of(pa.Namespace, pa.Name)
	activators, err := r.activators.EndpointSlices(r.system).List(labels.Everything())
	if err != nil {
		return err
	}
	var private []*discoveryv1.EndpointSlice
	have := map[string]*discoveryv1.EndpointSlice{}
	api := r.kube.DiscoveryV1().EndpointSlices(pa.Namespace)
	for _, slice := range all {
		switch {
		case slice.Labels[discoveryv1.LabelServiceName] == names.PrivateService(pa.Name):
			private = append(private, slice)
		case slice.Labels[discoveryv1.LabelManagedBy] == managedBy:
			have[slice.Name] = slice
		}
	}
	addresses, _ := choose(pa.Name, pa.Status.Mode, pa.Status.NumActivators, private, activators, r.silent())
	for _, want := range makeSlices(pa, addresses) {
		cached, found := have[want.Name]
		delete(have, want.Name)
		_, _, err := apply.Child(ctx, api, "EndpointSlice", pa, cached, found, want,
			func(have, want *discoveryv1.EndpointSlice) {
				apply.Metadata(have, want)
				if !equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) {
					have.Endpoints = want.Endpoints
				}
				have.Ports = want.Ports
			})
		if err != nil {
			return err
		}
	}
	for _, superfluous := range have {
		if err := apply.Delete(ctx, api, "EndpointSlice", superfluous, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}
