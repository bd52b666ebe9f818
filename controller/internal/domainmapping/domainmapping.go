// Package domainmapping gives services the domains that users map to them.
//
// Owns: a DomainMapping's status and HTTPRoutes, the ClusterDomainClaims it made itself. Reads: DomainMappings,
// ClusterDomainClaims, whatever a mapping refers to, the HTTPRoutes of Routes; the gateways, by probes. Writes: what it owns.
// Never: maps a domain that another namespace has claimed; leads out of the mapping's namespace.
package domainmapping

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
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
	networkingv1alpha1 "ebb.dev/ebb/api/networking/v1alpha1"
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

type prober interface {
	Check(key types.NamespacedName, want ready.Want) (live bool, why string)
	Known(key types.NamespacedName) bool
}

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
	certificates  *certificate.Keeper
	listeners     *gateway.Listeners
	prober        prober
}

// Indexes of DomainMappings: by what they refer to, and by their own name across namespaces.
const (
	byReference = "reference"
	byDomain    = "domain"
)

// New is the reconciler of DomainMappings.
func New(w *reconcile.World) *reconcile.Controller {
	serving := w.EbbInformers.Serving().V1()
	mappings := w.EbbInformers.Serving().V1beta1().DomainMappings().Informer()
	claims := w.EbbInformers.Networking().V1alpha1().ClusterDomainClaims()
	httpRoutes := w.GatewayInformers.Gateway().V1().HTTPRoutes()
	r := &reconciler{
		kube: w.Kube, ebb: w.Ebb, gateways: w.Gateways, settings: w.Settings, clusterDomain: w.ClusterDomain,
		services: serving.Services().Lister(), routes: serving.Routes().Lister(), claims: claims.Lister(), httpRoutes: httpRoutes.Lister(),
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
		Name: "domainmapping", Informer: mappings, Events: w.Events,
		Client: func(ns string) reconcile.Client[*v1beta1.DomainMapping] {
			return w.Ebb.ServingV1beta1().DomainMappings(ns)
		},
		Reconcile: r.reconcile, Finalizer: names.DomainMappingFinalizer, Finalize: r.finalize,
	}.Controller()
	r.certificates = certificate.NewKeeper(w, c, certificate.Concerns(mappings, "DomainMapping"))
	r.listeners = gateway.NewListeners(w, c, "DomainMapping")
	p := ready.New(gateway.NewFinder(w.Kube, w.Now), func(key types.NamespacedName) { c.Enqueue(key) })
	r.prober, c.Background = p, p.Run
	frame := c.Reconcile
	c.Reconcile = func(ctx context.Context, key reconcile.Key) (time.Duration, error) {
		if _, exists, err := mappings.GetStore().GetByKey(key.String()); err == nil && !exists {
			p.Forget(key)
		}
		return frame(ctx, key)
	}

	find := func(index, value string) (keys []reconcile.Key) {
		found, err := mappings.GetIndexer().ByIndex(index, value)
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
	c.Watch(claims.Informer(), func(object any) []reconcile.Key { return find(byDomain, object.(metav1.Object).GetName()) })
	// A listener on a Gateway itself belongs to the mapping of its host, which takes it away when it needs it no more.
	c.Watch(w.GatewayInformers.Gateway().V1().Gateways().Informer(), func(object any) (keys []reconcile.Key) {
		gateway, _ := object.(*gatewayv1.Gateway)
		for _, l := range gateway.Spec.Listeners {
			if l.Hostname != nil {
				keys = append(keys, find(byDomain, string(*l.Hostname))...)
			}
		}
		return keys
	})
	c.Watch(httpRoutes.Informer(), reconcile.ControllerOf("DomainMapping"))
	c.Watch(httpRoutes.Informer(), func(object any) []reconcile.Key {
		m := object.(metav1.Object)
		if route := m.GetLabels()[names.RouteLabel]; route != "" {
			return find(byReference, m.GetNamespace()+"/"+route)
		}
		return nil
	})
	return c
}

func (r *reconciler) reconcile(ctx context.Context, dm *v1beta1.DomainMapping) (time.Duration, error) {
	status := &dm.Status
	status.InitializeConditions()
	s := r.settings.Load()

	claimed, err := r.claim(ctx, dm, s)
	if err != nil || !claimed {
		return 0, err
	}
	status.MarkDomainClaimed()

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
	return again, r.expose(ctx, dm, mapping, s)
}

// claim makes sure that the domain belongs to the mapping's namespace.
func (r *reconciler) claim(ctx context.Context, dm *v1beta1.DomainMapping, s *settings.Snapshot) (bool, error) {
	claim, err := r.claims.Get(dm.Name)
	if apierrors.IsNotFound(err) {
		if !s.Network.AutoCreateClusterDomainClaims {
			dm.Status.MarkDomainClaimMissing(dm.Namespace, dm.Name)
			return false, nil
		}
		claim = &networkingv1alpha1.ClusterDomainClaim{ObjectMeta: metav1.ObjectMeta{Name: dm.Name},
			Spec: networkingv1alpha1.ClusterDomainClaimSpec{Namespace: dm.Namespace}}
		api := r.ebb.NetworkingV1alpha1().ClusterDomainClaims()
		made, err := api.Create(ctx, claim, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			made, err = api.Get(ctx, dm.Name, metav1.GetOptions{}) // somebody was faster: what counts is for whom
		}
		if err != nil {
			dm.Status.MarkDomainClaimFailed(fmt.Sprintf("The ClusterDomainClaim cannot be made: %v", err))
			return false, fmt.Errorf("create ClusterDomainClaim %s: %w", dm.Name, err)
		}
		claim = made
	} else if err != nil {
		return false, err
	}
	if claim.Spec.Namespace != dm.Namespace {
		dm.Status.MarkDomainClaimNotOwned()
		return false, nil
	}
	return true, nil
}

// finalize gives the domain back if claims are made, and so removed, by themselves.
func (r *reconciler) finalize(ctx context.Context, dm *v1beta1.DomainMapping) error {
	s := r.settings.Load()
	if err := gateway.Unlisten(ctx, r.gateways, r.listeners.Holding(s.Gateway.External, dm.Name), dm.Name); err != nil {
		return err
	}
	if !s.Network.AutoCreateClusterDomainClaims {
		return nil
	}
	claim, err := r.claims.Get(dm.Name)
	if apierrors.IsNotFound(err) || err == nil && claim.Spec.Namespace != dm.Namespace {
		return nil
	} else if err != nil {
		return err
	}
	err = r.ebb.NetworkingV1alpha1().ClusterDomainClaims().Delete(ctx, dm.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete ClusterDomainClaim %s: %w", dm.Name, err)
	}
	return nil
}

// rules are those that the Route of the target has for it inside the cluster. waiting means that there is such a Route and it is
// not at the gateways yet. No rules and no waiting means that the target is a Service of somebody else.
func (r *reconciler) rules(dm *v1beta1.DomainMapping, target string) (rules []gatewayv1.HTTPRouteRule, waiting bool, err error) {
	name := dm.Spec.Ref.Name
	list, err := r.httpRoutes.HTTPRoutes(dm.Namespace).List(labels.SelectorFromSet(labels.Set{names.RouteLabel: name}))
	if err != nil {
		return nil, false, err
	}
	slices.SortFunc(list, func(a, b *gatewayv1.HTTPRoute) int { return strings.Compare(a.Name, b.Name) })
	for _, have := range list {
		if slices.Contains(have.Spec.Hostnames, gatewayv1.Hostname(target)) {
			rules = append(rules, have.Spec.Rules...)
		}
	}
	if len(rules) > 0 {
		return rules, false, nil
	}
	_, err = r.routes.Routes(dm.Namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	return nil, err == nil, err
}

// expose writes the HTTPRoutes of the mapping and says whether the gateways follow them.
func (r *reconciler) expose(ctx context.Context, dm *v1beta1.DomainMapping, m gatewayapi.Mapping, s *settings.Snapshot) error {
	meta := gatewayapi.Meta{Owner: *kmeta.NewControllerRef(dm), Annotations: maps.Clone(dm.Annotations), Labels: mine(dm)}
	delete(meta.Annotations, names.LastAppliedAnnotation)
	g := r.listeners.Usable(s.Gateway)
	sets, err := r.listen(ctx, dm, m, g, meta)
	if err != nil {
		return err
	}
	routes, hash := gatewayapi.Map(m, g, meta)
	changed, err := gateway.Apply(ctx, r.gateways, r.httpRoutes, dm, routes,
		labels.Set{names.DomainMappingUIDLabel: string(dm.UID)})
	if err != nil {
		if notOwned := new(apply.NotOwnedError); errors.As(err, &notOwned) {
			dm.Status.MarkIngressFailed(servingv1.ReasonNotOwned, notOwned.Error())
			return reconcile.Permanent(err)
		}
		return err
	}
	if err := r.listeners.Prune(ctx, dm, sets, mine(dm)); err != nil {
		return err
	}
	if err := r.unlisten(ctx, m, g); err != nil {
		return err
	}
	key := types.NamespacedName{Namespace: dm.Namespace, Name: dm.Name}
	if !changed && !r.prober.Known(key) && dm.Status.GetCondition(v1beta1.DomainMappingConditionIngressReady).IsTrue() {
		return nil
	}
	live, why := r.prober.Check(key, ready.Want{Hash: hash, Probes: probes(m, s.Gateway)})
	if live {
		dm.Status.MarkIngressReady()
	} else {
		dm.Status.MarkIngressNotReady("Uninitialized", waiting(why, r.listeners.Refused(sets)))
	}
	return nil
}

func probes(m gatewayapi.Mapping, g settings.Gateway) (out []ready.Probe) {
	// A Service of somebody else does not answer probes; that the host is known and something answers has to do.
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
