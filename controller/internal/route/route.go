// Package route programs the gateways with Routes and reports when the gateways follow.
//
// Owns: a Route's status, its HTTPRoutes, its placeholder Services. Reads: Routes, Configurations,
// Revisions, the public Services of revisions, settings; the gateways, by probes. Writes: what it
// owns. Never: routes to a revision that was never Ready; reports Ready before every gateway pod
// follows the plan.
package route

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/settings"
)

// reasonUninitialized is the reason of IngressReady until the gateways follow a plan.
const reasonUninitialized = "Uninitialized"

type reconciler struct {
	kube           kubernetes.Interface
	gateways       gatewayclient.Interface
	settings       *settings.Store
	clusterDomain  string
	configurations listers.ConfigurationLister
	revisions      listers.RevisionLister
	services       corelisters.ServiceLister // placeholders
	public         corelisters.ServiceLister // of revisions
	httpRoutes     gatewaylisters.HTTPRouteLister
	hosts          gateway.Hosts
	certificates   *certificate.Keeper
	listeners      *gateway.Listeners
	prober         *ready.Prober
	now            func() time.Time
	system         string // the namespace of Ebb
	grants         *grants
}

// byTarget indexes Routes by the Configurations and Revisions that they name.
const byTarget = "target"

func configurationTarget(namespace, name string) string {
	return "configuration " + namespace + "/" + name
}
func revisionTarget(namespace, name string) string { return "revision " + namespace + "/" + name }

func targetsOf(object any) ([]string, error) {
	route, ok := object.(*servingv1.Route)
	if !ok {
		return nil, nil
	}
	var out []string
	for _, t := range route.Spec.Traffic {
		if t.RevisionName != "" {
			out = append(out, revisionTarget(route.Namespace, t.RevisionName))
		} else {
			out = append(out, configurationTarget(route.Namespace, t.ConfigurationName))
		}
	}
	return out, nil
}

// New returns the reconciler of Routes.
func New(w *reconcile.World) *reconcile.Controller {
	serving := w.EbbInformers.Serving().V1()
	placeholders := w.Kubernetes("", names.RouteLabel).Core().V1().Services()
	public := w.Kubernetes("", names.ServerlessServiceLabel).Core().V1().Services()
	httpRoutes := w.GatewayInformers.Gateway().V1().HTTPRoutes()
	routes := serving.Routes().Informer()
	r := &reconciler{
		kube: w.Kube, gateways: w.Gateways, settings: w.Settings, clusterDomain: w.ClusterDomain,
		configurations: serving.Configurations().Lister(), revisions: serving.Revisions().Lister(),
		services: placeholders.Lister(), public: public.Lister(), httpRoutes: httpRoutes.Lister(), now: w.Now,
		system: w.SystemNamespace, grants: &grants{client: w.Gateways, system: w.SystemNamespace, now: w.Now, made: map[string]time.Time{}},
	}
	if err := routes.AddIndexers(cache.Indexers{byTarget: targetsOf}); err != nil {
		panic(fmt.Sprintf("index Routes by target: %v", err)) // only a started informer refuses
	}
	c := reconcile.Kind[*servingv1.Route]{
		Name: "route", Informer: routes, World: w,
		Client:    func(ns string) reconcile.Client[*servingv1.Route] { return w.Ebb.ServingV1().Routes(ns) },
		Reconcile: r.reconcile, Gone: func(key reconcile.Key) { r.prober.Forget(key) },
		// Once there is a plan, its traffic and the progress of a rollout are shown at once.
		MayHold: func(before, _ *servingv1.Route) bool { return len(before.Status.Traffic) == 0 },
	}.Controller()
	r.certificates = certificate.NewKeeper(w, c, certificate.Concerns(routes, "Route"))
	r.listeners = gateway.NewListeners(w, c, "Route")
	r.hosts = gateway.NewHosts(w, r.listeners)
	r.prober = gateway.NewProber(w, c)

	naming := func(targets ...string) (keys []reconcile.Key) {
		for _, t := range targets {
			found, err := routes.GetIndexer().ByIndex(byTarget, t)
			if err != nil {
				continue
			}
			for _, route := range found {
				keys = append(keys, reconcile.Self(route)...)
			}
		}
		return keys
	}
	c.Watch(serving.Configurations().Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return naming(configurationTarget(m.GetNamespace(), m.GetName()))
	})
	ofRevision := func(namespace, revision, configuration string) []reconcile.Key {
		return naming(revisionTarget(namespace, revision), configurationTarget(namespace, configuration))
	}
	c.Watch(serving.Revisions().Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return ofRevision(m.GetNamespace(), m.GetName(), m.GetLabels()[names.ConfigurationLabel])
	})
	c.Watch(public.Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		if m.GetLabels()[names.ServiceTypeLabel] != names.ServiceTypePublic {
			return nil
		}
		return ofRevision(m.GetNamespace(), m.GetName(), m.GetLabels()[names.ConfigurationLabel])
	})
	c.Watch(placeholders.Informer(), reconcile.Label(names.RouteLabel))
	c.Watch(httpRoutes.Informer(), r.ofSameHosts)
	return c
}

func (r *reconciler) reconcile(ctx context.Context, route *servingv1.Route) (time.Duration, error) {
	route.Status.InitializeConditions()
	before := route.Status.DeepCopy()
	if before.ObservedGeneration != route.Generation {
		unfollowed(route)
	}
	s := r.settings.Load()
	if err := r.yield(ctx, route, s); err != nil {
		return 0, err
	}
	targets, ok, err := resolve(route, r.configurations, r.revisions)
	if err != nil || !ok {
		return 0, err
	}
	duration, err := rolloutDuration(route, s)
	if err != nil {
		route.Status.MarkIngressFailed("InvalidAnnotation", err.Error())
		return 0, reconcile.Permanent(err)
	}
	targets, state, again, err := r.rolledOut(route, targets, duration)
	if err != nil {
		return 0, err
	}
	in := input(route, s, r.clusterDomain)
	in.Async = r.async(route, s)
	in.Targets = shares(targets)
	for _, list := range in.Targets {
		for i := range list {
			list[i].TLS = r.securely(route.Namespace, list[i].Revision)
		}
	}
	byName, err := targetNames(&in)
	if err == nil {
		if in.Local, err = r.localTags(route, byName); err != nil {
			return 0, err
		}
		err = r.mayHave(ctx, route, s, &in)
	}
	taken := new(hostTaken)
	if errors.As(err, &taken) {
		err = nil // no certificate is asked for
	} else if err == nil {
		err = r.secure(ctx, route, s, &in)
	}
	if bad := new(apis.FieldError); errors.As(err, &bad) {
		route.Status.MarkIngressFailed("InvalidAnnotation", bad.Error())
		return 0, reconcile.Permanent(err)
	}
	if err == nil {
		err = r.describe(route, s, &in, targets)
	}
	if err == nil && taken.by.Host != "" {
		return givenUp(route, taken)
	}
	if !equality.Semantic.DeepEqual(before.RouteStatusFields, route.Status.RouteStatusFields) {
		unfollowed(route)
	}
	var p *plan.Plan
	var unsupported error
	if err == nil {
		p, unsupported = plan.Make(in)
		err = unsupported
	}
	if bad := new(plan.ConfigError); errors.As(err, &bad) {
		route.Status.MarkErrorConfig(bad.Error())
		return 0, reconcile.Permanent(fmt.Errorf("route %s/%s: %w", route.Namespace, route.Name, err))
	} else if unsupported != nil {
		route.Status.MarkTrafficAssigned()
		route.Status.MarkIngressFailed("Unsupported", err.Error())
		return 0, reconcile.Permanent(err)
	} else if err != nil {
		return 0, refused(route, err)
	}
	route.Status.MarkTrafficAssigned()

	alias := localGateway(s, r.clusterDomain)
	if err := r.placeholders(ctx, route, byName, alias, false); err != nil {
		return 0, refused(route, err)
	}
	followed := func() error { return r.placeholders(ctx, route, byName, alias, true) }
	if missing, err := r.missingBackend(p); err != nil {
		return 0, err
	} else if missing != "" {
		// Gateways answer 500 for a Service that does not exist. Its creation causes the next
		// reconcile.
		message := fmt.Sprintf("Service %q does not exist yet.", missing)
		if rev, err := r.revisions.Revisions(route.Namespace).Get(missing); err == nil { // it has the revision's name
			if c := rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable); c.IsFalse() {
				message = fmt.Sprintf("Service %q does not exist yet: %s", missing, c.GetMessage())
			}
		}
		route.Status.MarkIngressNotReady(reasonUninitialized, message)
		return 0, nil
	}
	if in.Async != nil {
		if err := r.grants.allow(ctx, route.Namespace); err != nil {
			return 0, err
		}
	}
	live, err := r.follow(ctx, route, p, s, state, followed)
	if err != nil {
		return 0, refused(route, err)
	}
	if !live || !state.InProgress() {
		return again, nil
	}
	route.Status.MarkIngressRolloutInProgress()
	if paced, first := rollout.Observe(state, duration, r.now()); first {
		if _, err := r.follow(ctx, route, p, s, paced, followed); err != nil {
			return 0, refused(route, err)
		}
		return time.Millisecond, nil
	}
	return again, nil
}

// unfollowed takes IngressReady back: the gateways were seen to do what the Route said before, not
// what it says now.
func unfollowed(route *servingv1.Route) {
	if route.Status.GetCondition(servingv1.RouteConditionIngressReady).IsTrue() {
		route.Status.MarkIngressNotConfigured()
	}
}

// refused turns an error about an object that a Route needs into a condition if a retry alone does
// not help.
func refused(route *servingv1.Route, err error) error {
	notOwned := new(apply.NotOwnedError)
	switch {
	case errors.As(err, &notOwned):
		if notOwned.Kind == "Service" {
			route.Status.MarkServiceNotOwned(notOwned.Name)
		} else {
			route.Status.MarkIngressNotOwned(notOwned.Kind, notOwned.Name)
		}
		return reconcile.Foreign(err)
	case apply.IsRefused(err):
		route.Status.MarkIngressFailed(string(apierrors.ReasonForError(err)), err.Error())
	}
	return err
}

// input returns the part of a plan's input that does not depend on spec.traffic.
func input(route *servingv1.Route, s *settings.Snapshot, clusterDomain string) plan.Input {
	return plan.Input{
		Namespace: route.Namespace, Name: route.Name, Labels: route.Labels, Annotations: route.Annotations,
		Domain: s.Domain.Lookup(route.Labels, clusterDomain), ClusterDomain: clusterDomain,
		DomainTemplate: s.Network.DomainTemplate, TagTemplate: s.Network.TagTemplate,
		AllLocal:  route.Labels[names.VisibilityLabel] == names.VisibilityClusterLocal,
		TagHeader: s.Features.Enabled(rules.KeyTagHeaderBasedRouting),
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
	address := func(tag string) (string, error) {
		host, err := in.Host(tag)
		scheme := "http"
		if in.TLS[host] != "" {
			scheme = "https"
		} else if !in.IsLocal(tag) {
			scheme = s.Network.DefaultExternalScheme
		}
		return scheme + "://" + host, err
	}
	text, err := address("")
	if err != nil {
		return err
	}
	if route.Status.URL, err = parseURL(text); err != nil {
		return err
	}
	local := &apis.URL{Scheme: "http", Host: in.LocalHost(in.Name)}
	if in.TLS[local.Host] != "" {
		local.Scheme = "https"
	}
	route.Status.Address = &duckv1.Addressable{URL: local}
	route.Status.Traffic, err = statusTraffic(targets, address)
	return err
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

// missingBackend returns the name of a Service in the plan that does not exist yet, or "".
func (r *reconciler) missingBackend(p *plan.Plan) (string, error) {
	for _, t := range p.Targets {
		for _, rule := range t.Rules {
			for _, b := range rule.Backends {
				if b.Namespace != "" {
					continue // the courier's, whose Service is there or is not
				}
				if _, err := r.public.Services(p.Namespace).Get(b.Service); apierrors.IsNotFound(err) {
					return b.Service, nil
				} else if err != nil {
					return "", err
				}
			}
		}
	}
	return "", nil
}
