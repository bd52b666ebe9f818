package route

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	autoscalinglisters "ebb.dev/ebb/api/client/listers/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	shared "ebb.dev/ebb/controller/internal/resting"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/ingress/resting"
	"ebb.dev/ebb/settings"
)

// This file decides whether the hosts of a Route rest (decision 20). All of them do, or none.

const (
	// busyFor is how long a revision is served past the activators before its Route gets HTTPRoutes
	// of its own, and quietFor how long none is before it loses them. Both come after the time for
	// which the autoscaler keeps a mode.
	busyFor  = 10 * time.Second
	quietFor = 5 * time.Minute
	// switchesAtOnce bounds the Routes that are between, and thereby what gateways are told.
	switchesAtOnce = 16
	// coveredWithin is the time in which all Routes are reconciled after gateways came to have the
	// common HTTPRoutes, or lost them.
	coveredWithin = 5 * time.Second
)

// rests is what the reconciler needs for hosts that rest.
type rests struct {
	seen        *shared.Seen
	activators  *ready.Prober // asks activators whether they follow plans
	bridges     reconcile.Index[*gatewayv1.HTTPRoute]
	foreign     gateway.Foreign
	autoscalers autoscalinglisters.PodAutoscalerLister
	mappings    reconcile.Index[*v1beta1.DomainMapping] // by the name that they refer to

	mutex   sync.Mutex
	courses map[reconcile.Key]*course
}

// course is what is remembered of a Route from one reconcile to the next. Who has lost it waits
// longer. Only the reconcile of the Route uses it, but for between.
type course struct {
	busy, quiet time.Time // since when a revision is served past the activators, and since when none
	want        resting.Want
	// between says that the Route comes to rest, or to have HTTPRoutes of its own. The caches may
	// not know yet.
	between bool
}

func (r *rests) course(key reconcile.Key) *course {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.courses[key] == nil {
		r.courses[key] = &course{}
	}
	return r.courses[key]
}

// begin reports whether a Route may be between.
func (r *rests) begin(c *course) bool {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	n := 0
	for _, other := range r.courses {
		if other.between && other != c {
			n++
		}
	}
	c.between = c.between || n < switchesAtOnce
	return c.between
}

func (r *rests) end(c *course) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	c.between = false
}

// forget drops what is remembered of a Route that is gone, or another replica's.
func (r *rests) forget(key reconcile.Key) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.courses, key)
	r.activators.Forget(key)
}

func newRests(mgr *reconcile.Manager, c *reconcile.Controller, seen *shared.Seen) *rests {
	seen.Tell(func() { c.EnqueueAll(coveredWithin) })
	r := &rests{
		seen:        seen,
		activators:  ready.New(gateway.NewFinder(mgr.Kube, mgr.Now), func(key types.NamespacedName) { c.Enqueue(key) }),
		bridges:     reconcile.IndexByLabel[*gatewayv1.HTTPRoute](mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer(), names.BridgeLabel),
		foreign:     gateway.NewForeign(mgr),
		autoscalers: mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Lister(),
		mappings:    gateway.Mappings(mgr.EbbInformers.Serving().V1beta1().DomainMappings().Informer()),
		courses:     map[reconcile.Key]*course{},
	}
	if mgr.ToGateways != nil {
		r.activators.Through(mgr.ToGateways)
	}
	return r
}

// watchRests reconciles the Routes for which something changed that decides whether they rest.
func watchRests(c *reconcile.Controller, mgr *reconcile.Manager, naming func(targets ...string) []reconcile.Key) {
	on := func() bool { return mgr.Settings.Load().Gateway.Resting }
	c.WatchNews(mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Informer(), func(object any) []reconcile.Key {
		pa, ok := object.(*autoscalingv1alpha1.PodAutoscaler)
		if !ok || !on() {
			return nil
		}
		return naming(revisionTarget(pa.Namespace, pa.Name), configurationTarget(pa.Namespace, pa.Labels[names.ConfigurationLabel]))
	}, whetherServed)
	c.Watch(mgr.EbbInformers.Serving().V1beta1().DomainMappings().Informer(), func(object any) []reconcile.Key {
		dm, ok := object.(*v1beta1.DomainMapping)
		if !ok || !on() {
			return nil
		}
		return []reconcile.Key{{Namespace: dm.Namespace, Name: dm.Spec.Ref.Name}}
	})
	// Which Routes the HTTPRoutes of others concern, their hosts do not tell: they may be
	// wildcards.
	gateway.NewForeign(mgr).Watch(c, func() {
		if on() {
			c.EnqueueAll(coveredWithin)
		}
	})
	c.Watch(mgr.GatewayInformers.Gateway().V1().HTTPRoutes().Informer(), func(object any) []reconcile.Key {
		if h, ok := object.(*gatewayv1.HTTPRoute); ok && h.Namespace == mgr.SystemNamespace && h.Labels[names.BridgeLabel] != "" {
			key, _ := shared.Route(h)
			return []reconcile.Key{key}
		}
		return nil
	})
}

// whetherServed leaves out a change of a PodAutoscaler after which gateways send requests of the
// revision where they did before.
func whetherServed(before, after any) reconcile.Urgency {
	a, ok1 := before.(*autoscalingv1alpha1.PodAutoscaler)
	b, ok2 := after.(*autoscalingv1alpha1.PodAutoscaler)
	if ok1 && ok2 && a.UID == b.UID && a.DeletionTimestamp.Equal(b.DeletionTimestamp) && a.Status.Mode == b.Status.Mode {
		return reconcile.Never
	}
	return reconcile.AtOnce
}

// apart says why a Route must have HTTPRoutes of its own whatever its load is, "" if it need not.
func (r *reconciler) apart(route *servingv1.Route, in *plan.Input, p *plan.Plan, s *settings.Snapshot) string {
	if why := r.rests.seen.Hindrance(); why != "" {
		return why
	}
	if value, there := route.Annotations[names.RestingAnnotation]; there && !strings.EqualFold(value, "enabled") {
		return fmt.Sprintf("the annotation %s is %q", names.RestingAnnotation, value)
	}
	disabled, _ := names.TLSDisabled(route.Annotations) // what is wrong with it is said elsewhere
	switch {
	case in.Async != nil:
		return "the Route leads calls to the courier"
	case len(in.TLS) > 0, s.Network.ExternalDomainTLS && !disabled, s.Network.ClusterLocalDomainTLS:
		return "a host has a certificate, or wants one"
	case len(r.rests.mappings.Of(route.Namespace, route.Name)) > 0:
		return "a DomainMapping leads to the Route"
	}
	for _, shares := range in.Targets {
		for _, share := range shares {
			if share.H2C || share.TLS {
				return fmt.Sprintf("gateways speak another protocol with revision %q than with activators", share.Revision)
			}
		}
	}
	return r.takenFromCommon(p, s)
}

// takenFromCommon says which HTTPRoute or GRPCRoute of somebody else takes a host of the plan from
// the common HTTPRoute, or some of its requests, "" if none does.
func (r *reconciler) takenFromCommon(p *plan.Plan, s *settings.Snapshot) string {
	for _, t := range p.Targets {
		on := s.Gateway.External
		if t.Visibility == plan.ClusterLocal {
			on = s.Gateway.Local
		}
		for _, host := range t.Hosts {
			if by := r.rests.foreign.Takes(host, r.rests.seen.Wildcard(t.Visibility, host), on); by != "" {
				return fmt.Sprintf("%s takes requests for %s", by, host)
			}
		}
	}
	return ""
}

// served reports whether gateways send requests of the plan to pods.
func (r *reconciler) served(p *plan.Plan) (bool, error) {
	for i := range p.Targets {
		for j := range p.Targets[i].Rules {
			for _, b := range p.Targets[i].Rules[j].Backends {
				pa, found, err := apply.Found(r.rests.autoscalers.PodAutoscalers(p.Namespace).Get(names.PodAutoscaler(b.Service)))
				if err != nil {
					return false, err
				}
				if b.Namespace == "" && found && pa.Status.Mode == autoscalingv1alpha1.ModeServe {
					return true, nil
				}
			}
		}
	}
	return false, nil
}

// covered reports whether every gateway pod leads all hosts to activators where they have no
// HTTPRoute of their own.
func (r *reconciler) covered(p *plan.Plan) bool {
	return !slices.ContainsFunc(p.Targets, func(t plan.Target) bool { return !r.rests.seen.Covers(t.Visibility, gatewayapi.Name(t)) })
}

// mayBegin reports whether a Route that does not rest may come to.
func (r *reconciler) mayBegin(p *plan.Plan) bool { return r.covered(p) && !r.rests.foreign.Unknown() }

// look notes whether gateways send requests to pods.
func (c *course) look(served bool, now time.Time) {
	if served {
		if c.quiet = (time.Time{}); c.busy.IsZero() {
			c.busy = now
		}
	} else if c.busy = (time.Time{}); c.quiet.IsZero() {
		c.quiet = now
	}
}

// whatItShallBe decides by the load, with hysteresis, and says when to look again. own says that
// the Route has HTTPRoutes, or bridges.
//
//	between  own  served past the activators  ->
//	no       no   for busyFor                 Busy
//	no       no   else                        Rest
//	no       yes  not for quietFor            Rest, if mayBegin
//	no       yes  else                        Busy
//	yes           as above for one of both times, else as before
func (c *course) whatItShallBe(own, mayBegin bool, now time.Time) (want resting.Want, again time.Duration) {
	served := !c.busy.IsZero()
	toBusy, toQuiet := c.busy.Add(busyFor).Sub(now), c.quiet.Add(quietFor).Sub(now)
	busy, quiet := served && toBusy <= 0, !served && toQuiet <= 0
	switch {
	case busy:
		return resting.Busy, 0
	case quiet && mayBegin:
		return resting.Rest, 0
	case c.between && c.want == resting.Rest:
	case c.between || own:
		want = resting.Busy
	}
	switch {
	case served:
		again = toBusy
	case !quiet && want != resting.Rest:
		again = toQuiet
	}
	return want, again
}
