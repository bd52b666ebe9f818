// Package domainmapping maps users' domains to services.
//
// Owns: a DomainMapping's status and HTTPRoutes, the ClusterDomainClaims that it created. Reads:
// DomainMappings, ClusterDomainClaims, the objects that mappings refer to, the HTTPRoutes of
// Routes, Namespaces, the metadata of the Secrets that mappings name; the gateways, by probes.
// Writes: what it owns. Never: maps a domain that another namespace has claimed, or that the
// settings give to a Route there; routes to another namespace.
package domainmapping

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	"knative.dev/pkg/kmeta"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	gatewaylisters "sigs.k8s.io/gateway-api/pkg/client/listers/apis/v1"

	networkinglisters "ebb.dev/ebb/api/client/listers/networking/v1alpha1"
	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/settings"
)

type reconciler struct {
	kube          kubernetes.Interface
	ebb           ebb.Interface
	gateways      gatewayclient.Interface
	settings      *settings.Store
	clusterDomain string
	services      listers.ServiceLister
	routes        listers.RouteLister
	claims        networkinglisters.ClusterDomainClaimLister
	httpRoutes    gatewaylisters.HTTPRouteLister
	ofRoute       reconcile.Index[*gatewayv1.HTTPRoute] // by name
	ofMapping     reconcile.Index[*gatewayv1.HTTPRoute] // by UID
	certificates  *certificate.Certificates
	listeners     *gateway.Listeners
	hosts         gateway.Hosts
	namespaces    corelisters.NamespaceLister
	prober        *ready.Prober
}

// Indexes of DomainMappings: by the object that they refer to, and by their own name in any
// namespace.
const (
	byReference = "reference"
	byDomain    = "domain"
)

// New returns the reconciler of DomainMappings.
func New(mgr *reconcile.Manager) *reconcile.Controller {
	serving := mgr.EbbInformers.Serving().V1()
	mappings := mgr.EbbInformers.Serving().V1beta1().DomainMappings().Informer()
	claims := mgr.EbbInformers.Networking().V1alpha1().ClusterDomainClaims()
	httpRoutes := mgr.GatewayInformers.Gateway().V1().HTTPRoutes()
	r := &reconciler{
		kube: mgr.Kube, ebb: mgr.Ebb, gateways: mgr.Gateways, settings: mgr.Settings, clusterDomain: mgr.ClusterDomain,
		services: serving.Services().Lister(), routes: serving.Routes().Lister(), claims: claims.Lister(), httpRoutes: httpRoutes.Lister(),
		ofRoute:    reconcile.IndexByLabel[*gatewayv1.HTTPRoute](httpRoutes.Informer(), names.RouteLabel),
		ofMapping:  reconcile.IndexByLabel[*gatewayv1.HTTPRoute](httpRoutes.Informer(), names.DomainMappingUIDLabel),
		namespaces: mgr.Kubernetes("", "").Core().V1().Namespaces().Lister(),
	}
	err := mappings.AddIndexers(cache.Indexers{
		byReference: func(object any) ([]string, error) {
			dm := object.(*v1beta1.DomainMapping)
			return []string{dm.Namespace + "/" + dm.Spec.Ref.Name}, nil
		},
		byDomain: func(object any) ([]string, error) { return []string{object.(metav1.Object).GetName()}, nil },
	})
	if err != nil {
		panic(fmt.Sprintf("index DomainMappings: %v", err)) // only a started informer refuses
	}
	c := reconcile.Kind[*v1beta1.DomainMapping]{
		Name: "domainmapping", Informer: mappings, Manager: mgr,
		Client: func(ns string) reconcile.Client[*v1beta1.DomainMapping] {
			return mgr.Ebb.ServingV1beta1().DomainMappings(ns)
		},
		Reconcile: r.reconcile, Finalizer: names.DomainMappingFinalizer, Finalize: r.finalize,
		Gone: func(key reconcile.Key) { r.prober.Forget(key) },
	}.Controller()
	r.certificates = certificate.New(mgr, c, certificate.Concerns(mappings, "DomainMapping"))
	r.listeners = gateway.NewListeners(mgr, c, "DomainMapping")
	r.hosts = gateway.NewHosts(mgr, r.listeners)
	r.prober = gateway.NewProber(mgr, c)
	c.Watch(httpRoutes.Informer(), reconcile.ControllerOf("DomainMapping"))
	watchOthers(c, mgr, mappings.GetIndexer())
	return c
}

// watchOthers reconciles the mappings that refer to what changes, or that have its host.
func watchOthers(c *reconcile.Controller, mgr *reconcile.Manager, mappings cache.Indexer) {
	serving, httpRoutes := mgr.EbbInformers.Serving().V1(), mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer()
	find := func(index, value string) (keys []reconcile.Key) {
		found, err := mappings.ByIndex(index, value)
		if err != nil {
			return nil
		}
		for _, dm := range found {
			keys = append(keys, reconcile.Self(dm)...)
		}
		return keys
	}
	referring := func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		return find(byReference, m.GetNamespace()+"/"+m.GetName())
	}
	c.Watch(serving.Services().Informer(), referring)
	c.Watch(serving.Routes().Informer(), referring)
	c.Watch(mgr.EbbInformers.Networking().V1alpha1().ClusterDomainClaims().Informer(), func(object any) []reconcile.Key { return find(byDomain, object.(metav1.Object).GetName()) })
	// A listener of the Gateway itself belongs to the mapping of its host, which removes it when it
	// is not needed any more.
	c.Watch(mgr.GatewayInformers.Gateway().V1().Gateways().Informer(), func(object any) (keys []reconcile.Key) {
		gateway, _ := object.(*gatewayv1.Gateway)
		for _, l := range gateway.Spec.Listeners {
			if l.Hostname != nil {
				keys = append(keys, find(byDomain, string(*l.Hostname))...)
			}
		}
		return keys
	})
	c.Watch(httpRoutes, func(object any) (keys []reconcile.Key) {
		if h, ok := object.(*gatewayv1.HTTPRoute); ok {
			for _, host := range h.Spec.Hostnames {
				keys = append(keys, find(byDomain, string(host))...)
			}
		}
		return keys
	})
	c.Watch(httpRoutes, func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		if route := m.GetLabels()[names.RouteLabel]; route != "" {
			return find(byReference, m.GetNamespace()+"/"+route)
		}
		return nil
	})
}

func (r *reconciler) reconcile(ctx context.Context, dm *v1beta1.DomainMapping) (time.Duration, error) {
	status := &dm.Status
	status.InitializeConditions()
	if status.ObservedGeneration != dm.Generation && status.GetCondition(v1beta1.DomainMappingConditionIngressReady).IsTrue() {
		// The gateways were seen to do what the mapping said before.
		status.MarkIngressNotConfigured()
	}
	s := r.settings.Load()

	if yielded, err := r.yield(ctx, dm, s); err != nil || yielded {
		return 0, err
	}
	claimed, again, err := r.claim(ctx, dm, s)
	if err != nil || !claimed {
		return again, err
	}
	status.MarkDomainClaimed()
	if c := status.GetCondition(v1beta1.DomainMappingConditionIngressReady); c.GetReason() == gateway.ReasonHostTaken ||
		c.GetReason() == v1beta1.ReasonDomainAlreadyClaimed {
		status.MarkIngressNotConfigured() // the domain is the mapping's again
	}

	secret, redirect, err := r.secure(ctx, dm, s)
	if bad := new(apis.FieldError); errors.As(err, &bad) {
		status.MarkIngressFailed("InvalidAnnotation", bad.Error())
		return 0, reconcile.Permanent(err)
	} else if err != nil {
		return 0, err
	}
	scheme := "http"
	if secret != "" {
		scheme = "https"
	}
	url := apis.URL{Scheme: scheme, Host: dm.Name}
	status.URL, status.Address = url.DeepCopy(), &duckv1.Addressable{URL: url.DeepCopy()}

	target, again, err := r.resolve(ctx, dm)
	if bad := new(notResolved); errors.As(err, &bad) {
		status.MarkReferenceNotResolved(bad.message)
		return again, nil
	} else if err != nil {
		return 0, err
	}
	status.MarkReferenceResolved()

	rules, waiting, err := r.rules(dm, target)
	if err != nil {
		return 0, err
	}
	if waiting {
		status.MarkIngressNotConfigured()
		return again, nil
	}
	mapping := gatewayapi.Mapping{Host: dm.Name, Namespace: dm.Namespace, Target: target, Service: dm.Spec.Ref.Name, Rules: rules,
		TLSSecret: secret, Redirect: redirect}
	wait, err := r.expose(ctx, dm, mapping, s)
	return cmp.Or(wait, again), err
}

// rules returns the rules that the Route of the target has for it inside the cluster. waiting means
// that there is a Route without HTTPRoutes. Without rules and waiting, the target is a Service that
// is not Ebb's.
func (r *reconciler) rules(dm *v1beta1.DomainMapping, target string) (rules []gatewayv1.HTTPRouteRule, waiting bool, err error) {
	name := dm.Spec.Ref.Name
	list := r.ofRoute.Of(dm.Namespace, name)
	slices.SortFunc(list, func(a, b *gatewayv1.HTTPRoute) int { return strings.Compare(a.Name, b.Name) })
	for _, have := range list {
		// While Knative Serving is moved, its plugin's HTTPRoutes may have the label, too.
		owner := metav1.GetControllerOfNoCopy(have)
		if owner == nil || owner.Kind != "Route" || !slices.Contains(have.Spec.Hostnames, gatewayv1.Hostname(target)) {
			continue
		}
		if !gatewayapi.Full(have) {
			return nil, true, nil // the Route's hosts come to have HTTPRoutes of their own
		}
		rules = append(rules, have.Spec.Rules...)
	}
	if len(rules) > 0 {
		return rules, false, nil
	}
	_, waiting, err = apply.Found(r.routes.Routes(dm.Namespace).Get(name))
	return nil, waiting, err
}

// expose writes the HTTPRoutes of the mapping and reports in the status whether the gateways follow
// them, and when to look again if nothing tells of a change.
func (r *reconciler) expose(ctx context.Context, dm *v1beta1.DomainMapping, m gatewayapi.Mapping, s *settings.Snapshot) (time.Duration, error) {
	meta := gatewayapi.Meta{Owner: *kmeta.NewControllerRef(dm), Annotations: maps.Clone(dm.Annotations), Labels: mine(dm),
		ListenerSets: r.listeners.Of(dm, mine(dm))}
	delete(meta.Annotations, names.LastAppliedAnnotation)
	g := r.listeners.Usable(s.Gateway)
	sets, err := r.listen(ctx, dm, m, g, meta)
	if err != nil {
		return 0, err
	}
	routes, hash := gatewayapi.Map(m, g, meta)
	have := r.have(dm)
	beside, retained := gatewayapi.RetainParents(have, routes)
	changed, err := gateway.Apply(ctx, r.gateways, r.httpRoutes, dm, beside, r.ownHTTPRoutes(dm))
	if err != nil {
		if notOwned := new(apply.NotOwnedError); errors.As(err, &notOwned) {
			dm.Status.MarkIngressFailed(servingv1.ReasonNotOwned, notOwned.Error())
			return 0, reconcile.Foreign(err)
		}
		return 0, err
	}
	if !retained {
		if err := r.tidy(ctx, dm, m, g, sets); err != nil {
			return 0, err
		}
	}
	key := types.NamespacedName{Namespace: dm.Namespace, Name: dm.Name}
	if changed {
		r.prober.Forget(key)
	}
	if changed || retained || r.prober.Known(key) || !dm.Status.GetCondition(v1beta1.DomainMappingConditionIngressReady).IsTrue() {
		live, why := r.prober.Check(key, ready.Want{Hash: hash, Probes: probes(m, s.Gateway)})
		if live {
			why = gatewayapi.Unaccepted(have, routes)
		}
		if why != "" {
			if r.secretMissing(ctx, dm) {
				dm.Status.MarkSecretNotFound(dm.Spec.TLS.SecretName)
				return secretAgain, nil
			}
			dm.Status.MarkIngressNotReady("Uninitialized", waiting(why, r.listeners.Refused(sets)))
			return 0, nil
		}
	}
	dm.Status.MarkIngressReady()
	if !retained {
		return 0, nil
	}
	if _, err := gateway.Write(ctx, r.gateways, r.httpRoutes, dm, routes); err != nil {
		return 0, err
	}
	return 0, r.tidy(ctx, dm, m, g, sets)
}

// tidy removes the listeners that the mapping's HTTPRoutes do not use any more.
func (r *reconciler) tidy(ctx context.Context, dm *v1beta1.DomainMapping, m gatewayapi.Mapping, g settings.Gateway, sets []*unstructured.Unstructured) error {
	if err := r.listeners.Prune(ctx, dm, sets, mine(dm)); err != nil {
		return err
	}
	return r.unlisten(ctx, m, g)
}

// have returns the HTTPRoutes of the mapping by their names.
func (r *reconciler) have(dm *v1beta1.DomainMapping) map[string]*gatewayv1.HTTPRoute {
	out := map[string]*gatewayv1.HTTPRoute{}
	for _, h := range r.ownHTTPRoutes(dm) {
		if metav1.IsControlledBy(h, dm) {
			out[h.Name] = h
		}
	}
	return out
}

func (r *reconciler) ownHTTPRoutes(dm *v1beta1.DomainMapping) []*gatewayv1.HTTPRoute {
	return r.ofMapping.Of(dm.Namespace, string(dm.UID))
}

func probes(m gatewayapi.Mapping, g settings.Gateway) (out []ready.Probe) {
	// A Service that is not Ebb's does not answer probes. Any answer for the host is enough then.
	foreign := len(m.Rules) == 0
	for _, on := range g.External {
		out = append(out, ready.Probe{Service: on.Service, Port: gateway.HTTP, Host: m.Host,
			Redirect: m.Redirect && m.TLSSecret != "", AnyAnswer: foreign})
		if m.TLSSecret != "" {
			out = append(out, ready.Probe{Service: on.Service, Port: gateway.HTTPS, Host: m.Host, TLS: true, AnyAnswer: foreign})
		}
	}
	return out
}
