// Package route programs the gateways with Routes and reports when the gateways follow.
//
// Owns: a Route's status, its HTTPRoutes and bridges, its placeholder Services, its mark on the
// public Services of revisions, which it makes if need be where hosts may rest. Reads: Routes,
// Configurations, Revisions, the public Services of revisions and their EndpointSlices,
// PodAutoscalers, DomainMappings, settings; the gateways and activators, by probes; how requests
// ended, from the autoscaler. Writes: what it owns, and on a Revision that it went back. Never:
// routes to a revision that was never Ready; reports Ready before every gateway pod, or every
// activator, follows the plan.
package route

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/endpoints"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	shared "ebb.dev/ebb/controller/internal/resting"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/settings"
)

// reasonUninitialized is the reason of IngressReady until the gateways follow a plan.
const reasonUninitialized = "Uninitialized"

type reconciler struct {
	kube            kubernetes.Interface
	gateways        gatewayclient.Interface
	settings        *settings.Store
	clusterDomain   string
	configurations  listers.ConfigurationLister
	revisions       listers.RevisionLister
	services        corelisters.ServiceLister                   // placeholders
	ownPlaceholders reconcile.Index[*corev1.Service]            // by Route
	public          corelisters.ServiceLister                   // of revisions
	needed          reconcile.Index[*corev1.Service]            // of these, by the Routes whose mark they have
	endpoints       reconcile.Index[*discoveryv1.EndpointSlice] // by revision
	httpRoutes      gatewaylisters.HTTPRouteLister
	ownHTTPRoutes   reconcile.Index[*gatewayv1.HTTPRoute]
	hosts           gateway.Hosts
	certificates    *certificate.Certificates
	listeners       *gateway.Listeners
	prober          *ready.Prober
	now             func() time.Time
	system          string // the namespace of Ebb
	grants          *grants
	ebb             ebb.Interface
	events          record.EventRecorder
	trials          trials
	asks            asks
	namespaces      corelisters.NamespaceLister
	rests           *rests
	// heard is asks.take: how a Service's requests ended, for the judge of a Route.
	heard func(key reconcile.Key, service string) *answer
}

// New returns the reconciler of Routes. seen tells which hosts may rest.
func New(mgr *reconcile.Manager, seen *shared.Seen) *reconcile.Controller {
	serving := mgr.EbbInformers.Serving().V1()
	placeholders := mgr.Kubernetes("", names.RouteLabel).Core().V1().Services()
	public := mgr.Kubernetes("", names.ServerlessServiceLabel).Core().V1().Services()
	slices := mgr.Kubernetes("", names.ServerlessServiceLabel).Discovery().V1().EndpointSlices().Informer()
	httpRoutes := mgr.GatewayInformers.Gateway().V1().HTTPRoutes()
	routes := serving.Routes().Informer()
	r := &reconciler{
		kube: mgr.Kube, gateways: mgr.Gateways, settings: mgr.Settings, clusterDomain: mgr.ClusterDomain,
		configurations: serving.Configurations().Lister(), revisions: serving.Revisions().Lister(),
		services: placeholders.Lister(), public: public.Lister(), needed: reconcile.IndexBy(public.Informer(), names.NeededByAnnotation, endpoints.NeededBy), httpRoutes: httpRoutes.Lister(), now: mgr.Now,
		endpoints:       reconcile.IndexByLabel[*discoveryv1.EndpointSlice](slices, names.ServerlessServiceLabel),
		ownPlaceholders: reconcile.IndexByLabel[*corev1.Service](placeholders.Informer(), names.RouteLabel),
		ownHTTPRoutes:   reconcile.IndexByLabel[*gatewayv1.HTTPRoute](httpRoutes.Informer(), names.RouteLabel),
		system:          mgr.SystemNamespace, grants: &grants{client: mgr.Gateways, system: mgr.SystemNamespace, now: mgr.Now, made: map[string]time.Time{}},
		ebb: mgr.Ebb, events: mgr.Events,
	}
	r.asks.view, r.heard = askView(mgr.Kube), r.asks.take
	if err := routes.AddIndexers(cache.Indexers{byTarget: targetsOf}); err != nil {
		panic(fmt.Sprintf("index Routes by target: %v", err)) // only a started informer refuses
	}
	c := reconcile.Kind[*servingv1.Route]{
		Name: "route", Informer: routes, Manager: mgr,
		Client:    func(ns string) reconcile.Client[*servingv1.Route] { return mgr.Ebb.ServingV1().Routes(ns) },
		Reconcile: r.reconcile, Gone: func(key reconcile.Key) { r.prober.Forget(key); r.forget(key); r.rests.forget(key) },
		MayHold: mayHold,
	}.Controller()
	r.certificates = certificate.New(mgr, c, certificate.Concerns(routes, "Route"))
	r.listeners = gateway.NewListeners(mgr, c, "Route")
	r.hosts = gateway.NewHosts(mgr, r.listeners)
	r.prober = gateway.NewProber(mgr, c)
	r.asks.wake = c.Enqueue
	r.namespaces = mgr.Kubernetes("", "").Core().V1().Namespaces().Lister()
	probe, others := c.Background, c.Others
	r.rests = newRests(mgr, c, seen)
	c.Background = func(ctx context.Context) {
		var asking sync.WaitGroup
		asking.Go(func() { r.asks.run(ctx) })
		asking.Go(func() { r.rests.activators.Run(ctx) })
		probe(ctx)
		asking.Wait()
	}
	c.Others = func(key reconcile.Key) { others(key); r.forget(key); r.rests.forget(key) }
	watchTargets(c, routes.GetIndexer(), serving, public.Informer(), slices)
	c.Watch(placeholders.Informer(), reconcile.Label(names.RouteLabel))
	c.Watch(httpRoutes.Informer(), r.ofSameHosts)
	c.Watch(routes, r.withSameHosts)
	watchRests(c, mgr, naming(routes.GetIndexer()))
	return c
}

// mayHold reports whether a status can wait. Once there is a plan, its traffic and the progress of
// a rollout are shown at once, and activators are told at once. Whom the Route waits for may change
// with each answer of a gateway or activator.
func mayHold(before, after *servingv1.Route) bool {
	if len(before.Status.Traffic) == 0 {
		return before.Status.Annotations[names.PlanAnnotation] == after.Status.Annotations[names.PlanAnnotation]
	}
	next := after.Status.DeepCopy()
	for i := range next.Conditions {
		if was := before.Status.GetCondition(next.Conditions[i].Type); was != nil {
			next.Conditions[i].Message, next.Conditions[i].LastTransitionTime = was.Message, was.LastTransitionTime
		}
	}
	return equality.Semantic.DeepEqual(&before.Status, next)
}

func (r *reconciler) reconcile(ctx context.Context, route *servingv1.Route) (time.Duration, error) {
	route.Status.InitializeConditions()
	if route.Status.ObservedGeneration != route.Generation {
		unfollowed(route)
	}
	s := r.settings.Load()
	if err := r.yield(ctx, route, s); err != nil {
		return 0, err
	}
	promoted, err := r.overruled(ctx, route)
	if err != nil {
		return conditionOf(route, err)
	}
	targets, ok, err := resolve(route, r.configurations, r.revisions)
	if err != nil || !ok {
		return 0, err
	}
	m, err := mannerOf(route, s)
	if err != nil {
		return conditionOf(route, err)
	}
	m.promoted = promoted
	targets, state, again, err := r.rolledOut(ctx, route, targets, m)
	if err != nil {
		return 0, err
	}
	in := r.input(route, s, targets, m)
	p, byName, err := r.plan(ctx, route, s, &in, targets)
	if err != nil {
		return conditionOf(route, err)
	}
	assigned(route, targets)
	if err := r.placeholders(ctx, route, byName, localGateway(s, r.clusterDomain), false); err != nil {
		return conditionOf(route, err)
	}
	if missing, err := r.missingBackend(route, p, s); err != nil || missing {
		return 0, err
	}
	if in.Async != nil {
		if err := r.grants.allow(ctx, route.Namespace); err != nil {
			return 0, err
		}
	}
	t := turn{reconciler: r, route: route, in: &in, p: p, s: s, byName: byName}
	live, next, err := t.lead(ctx, state.State)
	if err != nil {
		return conditionOf(route, err)
	}
	again = reconcile.Sooner(again, next)
	if !live || !state.InProgress() {
		return again, nil
	}
	state.show(route)
	paced, first := rollout.Observe(state.State, m.duration, r.now())
	if !first {
		return again, nil
	}
	if _, _, err := t.lead(ctx, paced); err != nil {
		return conditionOf(route, err)
	}
	return time.Millisecond, nil // at once, as 0 is never: from now on it is known when the first step is due
}

// assigned says that each target has its revision, or which one does not have its latest.
func assigned(route *servingv1.Route, targets []target) {
	route.Status.MarkTrafficAssigned()
	for _, t := range targets {
		if t.wentBack != "" {
			route.Status.MarkWentBack(t.wentBack, t.revision, t.why)
			return
		}
	}
}

// unfollowed takes IngressReady back: the gateways were seen to do what the Route said before, not
// what it says now.
func unfollowed(route *servingv1.Route) {
	if route.Status.GetCondition(servingv1.RouteConditionIngressReady).IsTrue() {
		route.Status.MarkIngressNotConfigured()
	}
}

// unsupported is the error of a plan that no gateway can follow.
type unsupported struct{ error }

// conditionOf is the one place where an error of a step becomes a condition, and tells whether a
// retry can help.
//
//	error               condition                              next reconcile
//	unsupported         IngressReady False, Unsupported        when something changes
//	plan.ConfigError    AllTrafficAssigned False, ErrorConfig  when something changes
//	apis.FieldError     IngressReady False, InvalidAnnotation  when something changes
//	hostTaken           IngressReady False, HostTaken          after hostAgain
//	apply.NotOwned      IngressReady False, NotOwned           after reconcile.ForeignAgain
//	refused by the API  IngressReady False, the API's reason   a retry
//	any other           as it was                              a retry
func conditionOf(route *servingv1.Route, err error) (time.Duration, error) {
	var cannot unsupported
	var config *plan.ConfigError
	var field *apis.FieldError
	var taken *hostTaken
	var notOwned *apply.NotOwnedError
	switch {
	case errors.As(err, &cannot):
		route.Status.MarkTrafficAssigned()
		route.Status.MarkIngressFailed("Unsupported", err.Error())
		return 0, reconcile.Permanent(cannot.error)
	case errors.As(err, &config):
		route.Status.MarkErrorConfig(config.Error())
		return 0, reconcile.Permanent(fmt.Errorf("route %s/%s: %w", route.Namespace, route.Name, err))
	case errors.As(err, &field):
		route.Status.MarkIngressFailed("InvalidAnnotation", err.Error())
		return 0, reconcile.Permanent(err)
	case errors.As(err, &taken):
		taken.report(route)
		return hostAgain, nil
	case errors.As(err, &notOwned):
		if notOwned.Kind == "Service" {
			route.Status.MarkServiceNotOwned(notOwned.Name)
		} else {
			route.Status.MarkIngressNotOwned(notOwned.Kind, notOwned.Name)
		}
		return 0, reconcile.Foreign(err)
	case apply.IsRefused(err):
		route.Status.MarkIngressFailed(string(apierrors.ReasonForError(err)), err.Error())
	}
	return 0, err
}

// plan completes the input and makes the plan of it, and sets the Route's addresses and traffic. It
// also returns the tags by the names of their placeholders.
func (r *reconciler) plan(ctx context.Context, route *servingv1.Route, s *settings.Snapshot, in *plan.Input, targets []target) (*plan.Plan, map[string]string, error) {
	byName, err := targetNames(in)
	if err != nil {
		return nil, nil, err
	}
	if in.Local, err = r.localTags(route, byName); err != nil {
		return nil, nil, err
	}
	taken, err := r.taken(ctx, route, s, in)
	if err == nil && taken == nil { // else no certificate is asked for
		err = r.secure(ctx, route, s, in)
	}
	if err == nil {
		err = r.describe(route, s, in, targets)
	}
	if err == nil && taken != nil {
		err = taken
	}
	if err != nil {
		return nil, nil, err
	}
	p, err := plan.Make(*in)
	if config := new(plan.ConfigError); err != nil && !errors.As(err, &config) {
		err = unsupported{err}
	}
	return p, byName, err
}

// input returns the part of a plan's input that needs no other objects than revisions.
func (r *reconciler) input(route *servingv1.Route, s *settings.Snapshot, targets []target, m manner) plan.Input {
	return plan.Input{
		Namespace: route.Namespace, Name: route.Name, Labels: route.Labels, Annotations: route.Annotations,
		Domain: s.Domain.Lookup(route.Labels, r.clusterDomain), ClusterDomain: r.clusterDomain,
		DomainTemplate: s.Network.DomainTemplate, TagTemplate: s.Network.TagTemplate,
		AllLocal:  route.Labels[names.VisibilityLabel] == names.VisibilityClusterLocal,
		TagHeader: s.Features.Enabled(rules.KeyTagHeaderBasedRouting),
		Async:     r.async(route, s), Targets: r.shares(route.Namespace, targets), Judged: m.guard.On(),
	}
}

// targetNames maps the name of each target to its tag.
func targetNames(in *plan.Input) (map[string]string, error) {
	byName := map[string]string{}
	for tag := range in.Targets {
		name, err := in.TargetName(tag)
		if err != nil {
			return nil, err
		}
		byName[name] = tag
	}
	return byName, nil
}

// describe sets the addresses and the traffic in the status.
func (r *reconciler) describe(route *servingv1.Route, s *settings.Snapshot, in *plan.Input, targets []target) error {
	address := func(tag string) (*apis.URL, error) {
		host, err := in.Host(tag)
		if err != nil {
			return nil, err
		}
		scheme := "http"
		if in.TLS[host] != "" {
			scheme = "https"
		} else if !in.IsLocal(tag) {
			scheme = s.Network.DefaultExternalScheme
		}
		return parseURL(scheme + "://" + host)
	}
	url, err := address("")
	if err != nil {
		return err
	}
	traffic, err := statusTraffic(targets, address)
	if err != nil {
		return err
	}
	local := &apis.URL{Scheme: "http", Host: in.LocalHost(in.Name)}
	if in.TLS[local.Host] != "" {
		local.Scheme = "https"
	}
	next := servingv1.RouteStatusFields{URL: url, Address: &duckv1.Addressable{URL: local}, Traffic: traffic}
	if !equality.Semantic.DeepEqual(route.Status.RouteStatusFields, next) {
		unfollowed(route)
	}
	route.Status.RouteStatusFields = next
	return nil
}

func parseURL(text string) (*apis.URL, error) {
	u, err := apis.ParseURL(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not an address: %w", text, err)
	}
	return u, nil
}

// localGateway returns the name of the Service of the cluster-local gateway.
func localGateway(s *settings.Snapshot, clusterDomain string) string {
	if len(s.Gateway.Local) == 0 {
		return ""
	}
	g := s.Gateway.Local[0]
	return g.ServiceName() + "." + g.ServiceNamespace() + ".svc." + clusterDomain
}
