package route

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/endpoints"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
)

// This file sees to it that what a plan leads to is there: always the PodAutoscaler of a revision,
// and its public Service, with endpoints, before an HTTPRoute names it. Where hosts may rest,
// nobody else makes that Service (package endpoints, needed.go).

// makesServices reports whether this reconciler makes the public Services that a Route needs. It
// does so for a Route that has a plan, too: that one rested until the setting changed.
func makesServices(route *servingv1.Route, s *settings.Snapshot) bool {
	return s.Gateway.Resting || route.Status.Annotations[names.PlanAnnotation] != ""
}

// revisionsOf returns the revisions that a plan leads to.
func revisionsOf(p *plan.Plan) map[string]bool {
	out := map[string]bool{}
	if p == nil {
		return out
	}
	for _, t := range p.Targets {
		for _, rule := range t.Rules {
			for _, b := range rule.Backends {
				if b.Namespace == "" { // else the courier's, whose Service is there or is not
					out[b.Service] = true
				}
			}
		}
	}
	return out
}

// missingBackend reports, in the status too, whether something that a plan leads to does not exist
// yet. Gateways answer 500 for a Service, and activators wake nobody without a PodAutoscaler; its
// creation causes the next reconcile.
func (r *reconciler) missingBackend(route *servingv1.Route, p *plan.Plan, s *settings.Snapshot) (bool, error) {
	for name := range revisionsOf(p) {
		if makesServices(route, s) {
			if pa, err := r.autoscalerOf(p.Namespace, name); err != nil {
				return false, err
			} else if pa == nil {
				route.Status.MarkIngressNotReady(reasonUninitialized, r.whyMissing(p.Namespace, name, anAutoscaler))
				return true, nil
			}
			continue
		}
		if _, err := r.public.Services(p.Namespace).Get(name); apierrors.IsNotFound(err) {
			route.Status.MarkIngressNotReady(reasonUninitialized, r.whyMissing(p.Namespace, name, aService))
			return true, nil
		} else if err != nil {
			return false, err
		}
	}
	return false, nil
}

// autoscalerOf returns the PodAutoscaler of a revision, nil if there is none that stays.
func (r *reconciler) autoscalerOf(namespace, revision string) (*autoscalingv1alpha1.PodAutoscaler, error) {
	pa, found, err := apply.Found(r.rests.autoscalers.PodAutoscalers(namespace).Get(names.PodAutoscaler(revision)))
	if err != nil || !found || !pa.DeletionTimestamp.IsZero() {
		return nil, err
	}
	return pa, nil
}

// lack is what is not there of a revision, so that nobody can be led to it.
type lack uint8

const (
	nothing lack = iota
	anAutoscaler
	aService
	itsEndpoints
)

// whyMissing says what is not there yet of a revision, whose name it has, and what the revision
// says of it.
func (r *reconciler) whyMissing(namespace, name string, lacks lack) string {
	why := "."
	if c := r.resources(namespace, name); !c.IsUnknown() && c.Message != "" {
		why = ": " + c.Message
	}
	switch lacks {
	case anAutoscaler:
		return fmt.Sprintf("PodAutoscaler %q does not exist yet%s", name, why)
	case aService:
		return fmt.Sprintf("Service %q does not exist yet%s", name, why)
	}
	return fmt.Sprintf("Service %q has no endpoints yet%s", name, why)
}

// resources returns the condition in which a revision says what its objects lack, also if it serves
// all the same. It may be nil.
func (r *reconciler) resources(namespace, name string) *apis.Condition {
	revision, err := r.revisions.Revisions(namespace).Get(name)
	if err != nil {
		return nil
	}
	return revision.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable)
}

// need makes the public Services exist to which a plan leads, with the mark of the Route. It is
// called before an HTTPRoute names them. It reports, in the status too, whether the caller has to
// wait until they have endpoints.
func (r *reconciler) need(ctx context.Context, route *servingv1.Route, p *plan.Plan, s *settings.Snapshot) (waits bool, err error) {
	if !makesServices(route, s) {
		return false, nil
	}
	revision, lacks, err := r.makeServices(ctx, route, p, s)
	if lacks != nothing {
		route.Status.MarkIngressNotReady(reasonUninitialized, r.whyMissing(p.Namespace, revision, lacks))
	}
	return lacks != nothing, err
}

// makeServices is need without the status. It returns what a revision lacks, if one does.
func (r *reconciler) makeServices(ctx context.Context, route *servingv1.Route, p *plan.Plan, s *settings.Snapshot) (revision string, lacks lack, err error) {
	for _, name := range slices.Sorted(maps.Keys(revisionsOf(p))) {
		one, err := r.needOne(ctx, route, name, s.Gateway.Resting)
		if err != nil {
			return revision, lacks, err
		}
		if one != nothing {
			revision, lacks = name, one
		}
	}
	return revision, lacks, nil
}

// haveServices reports whether the API server has them, with the mark and with endpoints.
func (r *reconciler) haveServices(ctx context.Context, route *servingv1.Route, p *plan.Plan, s *settings.Snapshot) (bool, error) {
	for name := range revisionsOf(p) {
		have, found, err := apply.Found(r.kube.CoreV1().Services(route.Namespace).Get(ctx, name, metav1.GetOptions{}))
		if err != nil {
			return false, fmt.Errorf("read Service %s/%s: %w", route.Namespace, name, err)
		}
		if !found || s.Gateway.Resting && !marked(have, route) {
			return false, nil
		}
		if ok, err := r.haveEndpoints(ctx, route.Namespace, name); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

// haveEndpoints reports whether a public Service has endpoints. What the cache has may be of a
// Service that was deleted since, so the API server is asked.
func (r *reconciler) haveEndpoints(ctx context.Context, namespace, revision string) (bool, error) {
	for _, cached := range r.endpoints.Of(namespace, revision) {
		if cached.Labels[names.ServiceTypeLabel] != names.ServiceTypePublic {
			continue
		}
		have, found, err := apply.Found(r.kube.DiscoveryV1().EndpointSlices(namespace).Get(ctx, cached.Name, metav1.GetOptions{}))
		if err != nil {
			return false, fmt.Errorf("read EndpointSlice %s/%s: %w", namespace, cached.Name, err)
		}
		if found && len(have.Endpoints) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// needOne makes one public Service, or marks it. It returns what is missing before gateways can be
// led there. What HTTPRoutes name already may be as the cache has it. What they do not name yet is
// read from the API server: the cache may show a mark that was taken away. Where no host may rest,
// no Service is deleted, and none has a mark.
func (r *reconciler) needOne(ctx context.Context, route *servingv1.Route, revision string, mark bool) (lacks lack, err error) {
	cached, found, err := apply.Found(r.public.Services(route.Namespace).Get(revision))
	if err != nil {
		return nothing, err
	}
	if found && (!mark || marked(cached, route)) && r.leads(route, revision) {
		return nothing, nil
	}
	if !found || mark {
		pa, err := r.autoscalerOf(route.Namespace, revision)
		if err != nil || pa == nil {
			return anAutoscaler, err // its creation causes the next reconcile
		}
		api := r.kube.CoreV1().Services(route.Namespace)
		have, found, err := apply.Found(api.Get(ctx, names.PublicService(revision), metav1.GetOptions{}))
		if err != nil {
			return nothing, fmt.Errorf("read Service %s/%s: %w", route.Namespace, revision, err)
		}
		if !found {
			if left, err := r.left(ctx, route.Namespace, revision); err != nil || left {
				return aService, err // their end causes the next reconcile
			}
		}
		if _, _, err := apply.Child(ctx, api, "Service", pa, have, found, endpoints.Public(pa, route.Name),
			func(have, _ *corev1.Service) {
				if mark {
					endpoints.Mark(have, route.Name)
				}
			}); err != nil {
			return nothing, err
		}
	}
	if ok, err := r.haveEndpoints(ctx, route.Namespace, revision); err != nil || !ok {
		return itsEndpoints, err
	}
	return nothing, nil
}

// left reports whether EndpointSlices of a public Service are there that is gone. They list what
// was there then (package endpoints, takeAway).
func (r *reconciler) left(ctx context.Context, namespace, revision string) (bool, error) {
	list, err := r.kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + names.PublicService(revision) + "," + discoveryv1.LabelManagedBy + "=" + endpoints.ManagedBy})
	if err != nil {
		return false, fmt.Errorf("list the EndpointSlices of Service %s/%s: %w", namespace, revision, err)
	}
	return len(list.Items) > 0, nil
}

func marked(service *corev1.Service, route *servingv1.Route) bool {
	return slices.Contains(endpoints.NeededBy(service), route.Name)
}

// leads reports whether an HTTPRoute of the Route names the public Service of a revision, as the
// cache has it.
func (r *reconciler) leads(route *servingv1.Route, revision string) bool {
	for _, h := range r.ownHTTPRoutes.Of(route.Namespace, route.Name) {
		if metav1.IsControlledBy(h, route) && gateway.Services(h)[revision] {
			return true
		}
	}
	return false
}

// release takes the mark of the Route off the public Services that it does not need any more: no
// HTTPRoute of it names them, and none will for the plan, which may be nil, or for the one that
// activators have while there are HTTPRoutes. No gateway may lead there any more. The HTTPRoutes
// are read from the API server, as the cache may not have them yet.
func (r *reconciler) release(ctx context.Context, route *servingv1.Route, p *plan.Plan) error {
	needs := revisionsOf(p)
	if c, told := gateway.Told(route); told && p != nil {
		maps.Copy(needs, gateway.Revisions(c))
	}
	var free []*corev1.Service
	for _, service := range r.needed.Of(route.Namespace, route.Name) {
		if !needs[service.Name] {
			free = append(free, service)
		}
	}
	if len(free) == 0 {
		return nil
	}
	list, err := r.gateways.GatewayV1().HTTPRoutes(route.Namespace).List(ctx, metav1.ListOptions{LabelSelector: names.RouteLabel + "=" + route.Name})
	if err != nil {
		return fmt.Errorf("list the HTTPRoutes of Route %s/%s: %w", route.Namespace, route.Name, err)
	}
	for i := range list.Items {
		if h := &list.Items[i]; metav1.IsControlledBy(h, route) {
			for name := range gateway.Services(h) {
				needs[name] = true
			}
		}
	}
	for _, service := range free {
		if needs[service.Name] {
			continue
		}
		next := service.DeepCopy()
		endpoints.Unmark(next, route.Name)
		if _, err := r.kube.CoreV1().Services(route.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take the mark of Route %s off Service %s/%s: %w", route.Name, route.Namespace, service.Name, err)
		}
	}
	return nil
}
