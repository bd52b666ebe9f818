// Package revision reconciles Revisions. It resolves the digests of their images, keeps their
// Deployments and PodAutoscalers, and reports whether they can serve.
//
// Owns: a Revision's status; the Deployment, except for replicas; the PodAutoscaler's spec and
// metadata. Reads: Revisions, their Configurations, Deployments, PodAutoscalers and pods; the
// ConfigMaps with waiting pages and the Routes of fallback Services; HTTPRoutes; registries, for
// digests; the Events of pods that hang.
// Writes: Deployments and PodAutoscalers, which it also deletes, to park a Revision (park.go) or to
// try it anew (anew.go); Deployments that are put away (away.go); the annotation of parked
// Revisions. Never: replicas of an existing Deployment, pods, a PodAutoscaler's status.
package revision

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	autoscalinglisters "ebb.dev/ebb/api/client/listers/autoscaling/v1alpha1"
	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/certificate"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
)

// Selector is the label selector of the children of Revisions. It filters the caches.
const Selector = names.RevisionUIDLabel

type reconciler struct {
	mgr            *reconcile.Manager
	keys           *podKeys
	looker         *looker
	digests        *digest.Resolver
	deployments    appslisters.DeploymentLister
	autoscalers    autoscalinglisters.PodAutoscalerLister
	pods           reconcile.Index[*corev1.Pod] // by the revision's UID
	configurations listers.ConfigurationLister
	revisions      listers.RevisionLister
	services       corelisters.ServiceLister                   // of revisions
	slices         reconcile.Index[*discoveryv1.EndpointSlice] // of these, by the revision's name
	madeBy         reconcile.Index[*servingv1.Revision]        // by Configuration
	certificates   *certificate.Certificates                   // of queue-proxies
	led            gateway.Led                                 // by HTTPRoutes
	routes         listers.RouteLister                         // of fallback Services
	pages          corelisters.ConfigMapLister                 // with waiting pages
}

// New returns the reconciler of Revisions. Queue-proxies prove their revision by a token, which
// comes from the key that tokenKey returns.
func New(mgr *reconcile.Manager, tokenKey func() []byte, digests *digest.Resolver) *reconcile.Controller {
	serving, made, published := mgr.EbbInformers.Serving().V1(), mgr.Kubernetes("", Selector), mgr.Kubernetes("", names.ServerlessServiceLabel)
	services, slices := published.Core().V1().Services(), published.Discovery().V1().EndpointSlices()
	autoscalers := mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers()
	pages := mgr.Kubernetes("", PageSelector).Core().V1().ConfigMaps()
	httpRoutes := mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer()
	r := &reconciler{
		mgr: mgr, digests: digests, looker: newLooker(mgr.Kube, mgr.Now),
		keys: newPodKeys(mgr.Kube, tokenKey, mgr.Now, serving.Revisions().Lister(), func(ctx context.Context, namespace string) (bool, error) {
			list, err := mgr.Ebb.ServingV1().Revisions(namespace).List(ctx, metav1.ListOptions{Limit: 1})
			return err != nil || len(list.Items) > 0, err
		}),
		deployments: made.Apps().V1().Deployments().Lister(),
		autoscalers: autoscalers.Lister(),
		pods:        reconcile.IndexByLabel[*corev1.Pod](made.Core().V1().Pods().Informer(), names.RevisionUIDLabel),
		revisions:   serving.Revisions().Lister(), services: services.Lister(),
		slices:         reconcile.IndexByLabel[*discoveryv1.EndpointSlice](slices.Informer(), names.ServerlessServiceLabel),
		madeBy:         reconcile.IndexByLabel[*servingv1.Revision](serving.Revisions().Informer(), names.ConfigurationLabel),
		configurations: serving.Configurations().Lister(),
		led:            gateway.NewLed(httpRoutes, serving.Routes().Informer()),
		routes:         serving.Routes().Lister(), pages: pages.Lister(),
	}
	c := reconcile.Kind[*servingv1.Revision]{
		Name: "revision", Informer: serving.Revisions().Informer(), Manager: mgr,
		Client:    func(ns string) reconcile.Client[*servingv1.Revision] { return mgr.Ebb.ServingV1().Revisions(ns) },
		Reconcile: r.reconcile,
		// Once the Deployment has the digests, they must not be forgotten: the tag may move.
		MayHold: func(before, after *servingv1.Revision) bool {
			return len(before.Status.ContainerStatuses) == len(after.Status.ContainerStatuses) || digest.NotAsked(after)
		},
	}.Controller()
	r.certificates = certificate.New(mgr, c, inNamespace(serving.Revisions().Informer()))
	c.Background = func(ctx context.Context) {
		go r.keys.run(ctx)
		digests.Run(ctx, func(namespace, name string) { c.Enqueue(reconcile.Key{Namespace: namespace, Name: name}) })
	}
	r.watch(c)
	return c
}

// watch names the Revisions that an event of another object is about, and forgets deleted ones.
func (r *reconciler) watch(c *reconcile.Controller) {
	mgr := r.mgr
	serving, made, published := mgr.EbbInformers.Serving().V1(), mgr.Kubernetes("", Selector), mgr.Kubernetes("", names.ServerlessServiceLabel)
	handle := func(informer cache.SharedIndexInformer, handler cache.ResourceEventHandlerFuncs) {
		if _, err := informer.AddEventHandler(handler); err != nil {
			panic(fmt.Sprintf("watch for the Revisions: %v", err)) // only a stopped informer refuses
		}
	}
	handle(serving.Revisions().Informer(), cache.ResourceEventHandlerFuncs{DeleteFunc: r.digests.ForgetDeleted})
	handle(serving.Revisions().Informer(), cache.ResourceEventHandlerFuncs{DeleteFunc: r.keys.deleted})
	handle(serving.Revisions().Informer(), cache.ResourceEventHandlerFuncs{DeleteFunc: r.looker.deleted})
	handle(serving.Configurations().Informer(), cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		for _, key := range r.ofChanged(before.(*servingv1.Configuration), after.(*servingv1.Configuration)) {
			c.Enqueue(key)
		}
	}})
	c.WatchNews(made.Apps().V1().Deployments().Informer(), reconcile.ControllerOf("Revision"), newsOfDeployment)
	c.Watch(mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Informer(), reconcile.ControllerOf("Revision"))
	c.WatchNews(made.Core().V1().Pods().Informer(), reconcile.Label(names.RevisionLabel), newsOfPod)
	c.Watch(published.Core().V1().Services().Informer(), r.parkedRevision)
	c.Watch(published.Discovery().V1().EndpointSlices().Informer(), r.parkedRevision)
	c.Watch(mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer(), r.revisionsLed)
	handle(serving.Routes().Informer(), cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		for _, name := range gateway.NoMore(before.(*servingv1.Route), after.(*servingv1.Route)) {
			c.Enqueue(reconcile.Key{Namespace: after.(*servingv1.Route).Namespace, Name: name})
		}
	}})
	mgr.Refusals.Tell(c.Enqueue)
	named := indexNamed(serving.Revisions().Informer())
	c.Watch(serving.Routes().Informer(), named(byFallback))
	c.Watch(mgr.Kubernetes("", PageSelector).Core().V1().ConfigMaps().Informer(), named(byPage))
}

// inNamespace maps the certificate of a namespace's queue-proxies to the Revisions in the
// namespace.
func inNamespace(revisions cache.SharedIndexInformer) func(object any) []reconcile.Key {
	return func(object any) (keys []reconcile.Key) {
		m := object.(metav1.Object)
		if m.GetName() != names.NamespaceCertificate {
			return nil
		}
		_ = cache.ListAllByNamespace(revisions.GetIndexer(), m.GetNamespace(), labels.Everything(), func(rev any) {
			keys = append(keys, reconcile.Self(rev)...)
		})
		return keys
	}
}

func (r *reconciler) reconcile(ctx context.Context, rev *servingv1.Revision) (time.Duration, error) {
	before := rev.Status.DeepCopy()
	manager := rev.GetConditionSet().Manage(&rev.Status)
	manager.InitializeConditions()
	s := r.mgr.Settings.Load()
	// No revision begins without the key of its pods, and none that is up waits for it.
	keyless := r.keys.ensure(ctx, rev.Namespace)
	if keyless != nil && !before.GetCondition(servingv1.RevisionConditionResourcesAvailable).IsTrue() {
		return 0, r.refused(rev, keyless)
	}
	wait, err := r.follow(ctx, rev, before, s)
	return wait, errors.Join(err, keyless)
}

// follow makes what the revision consists of be as it says, and tells how that goes.
func (r *reconciler) follow(ctx context.Context, rev *servingv1.Revision, before *servingv1.RevisionStatus, s *settings.Snapshot) (time.Duration, error) {
	if rev.Annotations[names.ParkedAnnotation] != "" {
		return 0, r.refused(rev, r.parked(ctx, rev, s)) // its status is what it was, but for a refusal
	}

	if err := r.resolveColdReferences(rev); err != nil {
		return 0, err
	}
	if !r.resolve(rev, s) {
		return 0, nil
	}
	o, err := r.observe(rev, s)
	if err != nil {
		return 0, err
	}
	if !o.away {
		if o.deployment, err = r.deployment(ctx, rev, s, o.autoscaler, false); err != nil {
			setConditions(rev, o, s)
			return 0, r.refused(rev, err)
		}
	}
	var look time.Duration
	o.news, look = r.looker.look(ctx, rev, o)
	o.hint = hint(rev, hanging(o), o.news)
	neverStarted := couldNotStart(before, o, s)
	// If somebody deleted the PodAutoscaler, the Revision's status still tells that the revision
	// was up.
	wasUp := before.GetCondition(servingv1.RevisionConditionResourcesAvailable).IsTrue()
	if o.autoscaler, err = r.autoscaler(ctx, rev, o.autoscaler, neverStarted, wasUp); err != nil {
		setConditions(rev, o, s)
		return 0, r.refused(rev, err)
	}
	setConditions(rev, o, s)
	r.unreachable(rev, o.autoscaler)
	if !reconcile.IsNew(rev) && reconcile.BecameReady(before.Conditions, rev.Status.Conditions) {
		r.mgr.Events.Event(rev, corev1.EventTypeNormal, "RevisionReady", "Revision becomes ready upon all resources being ready")
	}
	if wait, ok := anewAfter(rev, o, s, r.mgr.Now()); ok && wait > 0 {
		return wait, nil
	} else if ok {
		return 0, r.anew(ctx, rev, o)
	}
	if o.initialized() && !o.wantsPods() && !shown(&rev.Status).none() {
		look = o.rests()
	}
	if !equality.Semantic.DeepEqual(before, &rev.Status) { // the write of the status causes the next reconcile
		return look, nil
	}
	return r.retire(ctx, rev, o, s, look)
}

// observe reads what there is of a revision in the caches.
func (r *reconciler) observe(rev *servingv1.Revision, s *settings.Snapshot) (o observation, err error) {
	o = observation{template: &rev.Spec.PodSpec, now: r.mgr.Now(), reserve: rev.RoutingState() == names.RoutingReserve}
	if o.newest, err = r.newest(rev); err != nil {
		return o, err
	}
	o.pods = r.pods.Of(rev.Namespace, string(rev.UID))
	if o.autoscaler, _, err = apply.Found(r.autoscalers.PodAutoscalers(rev.Namespace).Get(names.PodAutoscaler(rev.Name))); err != nil {
		return o, err
	}
	o.away, err = r.withoutDeployment(rev, o, s)
	return o, err
}

// retire parks a revision, or puts its Deployment away, if it is time for that. look is after what
// time the revision is looked at anyway.
func (r *reconciler) retire(ctx context.Context, rev *servingv1.Revision, o observation, s *settings.Snapshot, look time.Duration) (time.Duration, error) {
	if wait, ok := parkable(rev, o, s, r.mgr.Now()); ok && wait > 0 {
		return wait, nil
	} else if ok {
		return 0, r.park(ctx, rev, o.initialized())
	}
	wait, ok := awayAfter(rev, o, s)
	if ok && wait == 0 && !o.away {
		return look, r.putAway(ctx, rev, o, s.Deployment.RetentionPeriod)
	}
	return reconcile.Sooner(look, wait), nil
}

// newest reports whether the Configuration of a revision has made no other one since.
func (r *reconciler) newest(rev *servingv1.Revision) (bool, error) {
	config, found, err := apply.Found(r.configurations.Configurations(rev.Namespace).Get(rev.Labels[names.ConfigurationLabel]))
	return found && config.Status.LatestCreatedRevisionName == rev.Name, err
}

// couldNotStart reports whether the revision fails and never was up. That stays so after its pods
// are gone, or its minimum scale would create them again, to fail again, forever. A pod that
// becomes ready ends it, and a request can start one.
func couldNotStart(before *servingv1.RevisionStatus, o observation, s *settings.Snapshot) bool {
	if o.initialized() || readyPods(o.current()) > 0 {
		return false
	}
	return !o.lasting(before, s).none() || len(o.current()) == 0 &&
		(before.GetCondition(servingv1.RevisionConditionContainerHealthy).IsFalse() ||
			before.GetCondition(servingv1.RevisionConditionResourcesAvailable).GetReason() == reasonNoProgress)
}

// resolve sets the digests of the images and reports whether the revision can be deployed.
func (r *reconciler) resolve(rev *servingv1.Revision, s *settings.Snapshot) bool {
	if len(rev.Status.ContainerStatuses) == len(rev.Spec.Containers) {
		r.digests.Forget(rev)
		return true
	}
	manager := rev.GetConditionSet().Manage(&rev.Status)
	answer := r.digests.Resolve(rev, digest.Settings{
		Skip: s.Deployment.RegistriesSkippingDigests, Trusted: s.Deployment.TrustedRegistries, Timeout: s.Deployment.DigestResolutionTimeout})
	switch {
	case answer.Missing != nil:
		manager.MarkFalse(servingv1.RevisionConditionContainerHealthy, reasonContainerMissing, "%s", answer.Missing)
		manager.MarkUnknown(servingv1.RevisionConditionResourcesAvailable, reasonResolvingDigests, "")
		return false
	case answer.Containers == nil:
		manager.MarkUnknown(servingv1.RevisionConditionContainerHealthy, reasonResolvingDigests, "")
		manager.MarkUnknown(servingv1.RevisionConditionResourcesAvailable, reasonResolvingDigests, "")
		return false
	}
	rev.Status.ContainerStatuses, rev.Status.InitContainerStatuses = answer.Containers, answer.InitContainers
	if answer.Unresolved != nil {
		manager.SetCondition(apis.Condition{Type: digest.Resolved, Status: corev1.ConditionFalse,
			Severity: apis.ConditionSeverityInfo, Reason: "ResolutionFailed", Message: answer.Unresolved.Error()})
		r.mgr.Events.Event(rev, corev1.EventTypeWarning, "DigestResolutionFailed", answer.Unresolved.Error())
	}
	return true
}

func (r *reconciler) inputs(rev *servingv1.Revision, s *settings.Snapshot) Inputs {
	return Inputs{
		Settings: s, SystemNamespace: r.mgr.SystemNamespace, ClusterDomain: r.mgr.ClusterDomain,
		// A pod does not start before the Secret that it mounts exists.
		TLS:     s.Network.SystemInternalTLS && r.certificates.Ready(rev.Namespace, names.NamespaceCertificate),
		KeyName: r.keys.name(rev.Namespace),
	}
}

// refused turns an error of the API server into a condition if a retry alone does not help, because
// somebody has to act.
func (r *reconciler) refused(rev *servingv1.Revision, err error) error {
	manager := rev.GetConditionSet().Manage(&rev.Status)
	switch {
	case apply.IsNotOwned(err):
		manager.MarkFalse(servingv1.RevisionConditionResourcesAvailable, reasonNotOwned, "%s", err)
		return reconcile.Foreign(fmt.Errorf("revision %s/%s: %w", rev.Namespace, rev.Name, err))
	case apply.IsRefused(err):
		manager.MarkFalse(servingv1.RevisionConditionResourcesAvailable, reasonRefused, "%s", err)
	}
	return err
}

// unreachable tells that the API server refuses what leads to the revision, what lists its pods, or
// what scales it. What was up goes on serving, by its public Service or by activators that follow a
// plan, unless its private Service is not there: activators forget pods that are not listed.
func (r *reconciler) unreachable(rev *servingv1.Revision, pa *autoscalingv1alpha1.PodAutoscaler) {
	key := reconcile.Key{Namespace: rev.Namespace, Name: names.PodAutoscaler(rev.Name)}
	why := r.mgr.Refusals.Of(key)
	if why == "" || pa == nil {
		return
	}
	there, err := r.reachable(pa)
	if err != nil {
		return
	}
	there = there || r.led.ByPlan(rev.Namespace, rev.Name)
	listed, err := r.listed(pa)
	if err != nil {
		return
	}
	manager := rev.GetConditionSet().Manage(&rev.Status)
	switch up := (observation{autoscaler: pa}).initialized(); {
	case !up || !there || !listed && r.mgr.Refusals.By(reconcile.OfPods, key) != "":
		manager.MarkFalse(servingv1.RevisionConditionResourcesAvailable, reasonRefused, "%s", why)
	case manager.GetCondition(servingv1.RevisionConditionResourcesAvailable).IsTrue():
		manager.MarkTrueWithReason(servingv1.RevisionConditionResourcesAvailable, reasonRefused, "%s", why)
	}
}
