package route

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/gateway"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/ready"
	"ebb.dev/ebb/ingress/resting"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/settings"
)

// turn is one reconcile of a Route whose hosts may rest.
type turn struct {
	*reconciler
	route  *servingv1.Route
	in     *plan.Input
	p      *plan.Plan
	s      *settings.Snapshot
	state  rollout.State
	byName map[string]string

	key    reconcile.Key
	course *course
	want   resting.Want
	// told is the plan in the status when the reconcile began, nil if there was none. changed says
	// that there is another one now, or none.
	told    *plan.Compact
	changed bool
}

// lead makes the gateways follow a plan, or the activators if the hosts rest, and reports in the
// status whether they do, and when to go on if nothing tells.
//
//	to be          is                   does
//	Apart          not told, no bridge  follow, as if nothing could rest
//	Busy or Apart  own                  follow; if Apart, then activators forget the plan
//	Rest           resting, or new      tells the activators and asks them
//	Rest           own                  follow, then as below
//	any            else                 the steps of package resting
func (t turn) lead(ctx context.Context, state rollout.State) (done bool, again time.Duration, err error) {
	t.state, t.key = state, reconcile.Key{Namespace: t.route.Namespace, Name: t.route.Name}
	if c, told := gateway.Told(t.route); told && c.UID != "" {
		t.told = c
	}
	own, bridges := t.have(), t.rests.bridges.Of(t.system, string(t.route.UID))
	apart := t.apart(t.route, t.in, t.p, t.s)
	if apart == "" && t.told == nil && len(own) == 0 && !t.mayBegin(t.p) {
		apart = "the gateways do not have the common HTTPRoutes yet, or which GRPCRoutes there are is not known"
	}
	if !t.s.Gateway.Resting && t.told == nil && len(bridges) == 0 {
		t.rests.forget(t.key)
		t.untell()
		done, err = t.follow(ctx)
		return done, 0, err
	}
	t.course = t.rests.course(t.key)
	served, err := t.served(t.p)
	if err != nil {
		return false, 0, err
	}
	t.course.look(served, t.now())
	if apart != "" && t.told == nil && len(bridges) == 0 {
		t.untell()
		done, err = t.follow(ctx)
		return done, 0, err
	}
	again = t.decide(apart, len(own) > 0 || len(bridges) > 0)
	t.tell()
	if t.route.Status.Annotations[names.PlanAnnotation] != "" {
		t.route.Status.Annotations[names.RolloutAnnotation] = state.String()
	}
	next, done, err := t.proceed(ctx, own, len(bridges) > 0)
	return done, reconcile.Sooner(again, next), err
}

// have returns the HTTPRoutes of the Route, as the cache has them.
func (t *turn) have() (out []*gatewayv1.HTTPRoute) {
	for _, h := range t.ownHTTPRoutes.Of(t.route.Namespace, t.route.Name) {
		if metav1.IsControlledBy(h, t.route) {
			out = append(out, h)
		}
	}
	return out
}

// decide sets what the Route is to be, and says when to decide again if nothing tells.
func (t *turn) decide(apart string, own bool) (again time.Duration) {
	if t.want = resting.Apart; apart == "" && t.changedTo() != nil { // else the plan is too long
		t.want, again = t.course.whatItShallBe(own, t.mayBegin(t.p), t.now())
	}
	t.course.want = t.want
	return again
}

// proceed goes on, by what the Route is to be and is.
func (t *turn) proceed(ctx context.Context, own []*gatewayv1.HTTPRoute, bridged bool) (again time.Duration, done bool, err error) {
	between := bridged || t.course.between
	switch {
	case t.want == resting.Rest && !between && len(own) == 0:
		return t.rest(ctx)
	case t.want == resting.Rest && !between && t.full(own):
		if done, err = t.follow(ctx); err != nil || !done || t.changed {
			return 0, done, err
		}
		if followed, _ := t.followed(); !followed || !t.mayBegin(t.p) || t.state.InProgress() {
			return 0, true, nil
		}
	case t.want != resting.Rest && !between && t.full(own):
		if done, err = t.follow(ctx); err != nil || !done || t.want != resting.Apart || t.told == nil {
			return 0, done, err
		}
		// The activators forget the plan when no gateway leads there any more. This is asked beside
		// what the Route's condition depends on.
		want := ready.Want{Hash: t.p.Hash(), Probes: probes(t.p, t.s.Gateway)}
		if answered, _ := t.rests.activators.Check(t.key, want); !answered {
			return 0, true, nil
		}
		if there, err := t.live(ctx); err != nil || !there.own() {
			return time.Second, true, err
		}
		t.untell()
		t.changed = true
		return 0, true, nil
	}
	return t.step(ctx)
}

// full reports whether requests match rules of an HTTPRoute for each target that activators were
// told of.
func (t *turn) full(own []*gatewayv1.HTTPRoute) bool {
	if len(own) == 0 {
		return false
	}
	for _, target := range t.targetsTold() {
		there := false
		for _, h := range own {
			if isFor(h, &target) {
				if !gatewayapi.Full(h) {
					return false
				}
				there = true
			}
		}
		if !there {
			return false
		}
	}
	return true
}

// isFor reports whether an HTTPRoute is for a target.
func isFor(h *gatewayv1.HTTPRoute, target *plan.Target) bool {
	return gatewayapi.Host(h) == gatewayapi.Name(*target) &&
		(h.Labels[names.VisibilityLabel] == names.VisibilityClusterLocal) == (target.Visibility == plan.ClusterLocal)
}

// rest reports whether the activators follow the plan of a Route that has no HTTPRoutes.
func (t *turn) rest(ctx context.Context) (again time.Duration, done bool, err error) {
	// Who was Ready before this process started, and has not changed, is so still.
	was := !t.changed && !t.rests.activators.Known(t.key) && t.route.Status.GetCondition(servingv1.RouteConditionIngressReady).IsTrue()
	if !was {
		if followed, why := t.followed(); !followed {
			t.route.Status.MarkIngressNotReady(reasonUninitialized, "Waiting for the activators: "+why+".")
			return 0, false, nil
		}
	}
	t.route.Status.MarkIngressReady()
	if err := t.release(ctx, t.route, nil); err != nil {
		return 0, true, err
	}
	// The gateways of a changed setting may not have the common HTTPRoutes yet.
	return 0, true, t.placeholders(ctx, t.route, t.byName, localGateway(t.s, t.clusterDomain), t.covered(t.p))
}

// followed reports whether every activator was seen to follow the plan in the status, as it is
// there, and if not, why.
func (t *turn) followed() (bool, string) {
	if t.told == nil || t.changed {
		return false, "they have just been told"
	}
	want := ready.Want{Hash: t.told.Answer()}
	for _, target := range t.targetsTold() {
		if target.Tag == "" {
			want.Probes = append(want.Probes, ready.Probe{Service: t.system + "/" + plan.Resting, Port: gateway.HTTP,
				Host: gatewayapi.Name(target), Resting: string(target.Visibility)})
		}
	}
	return t.rests.activators.Check(t.key, want)
}
