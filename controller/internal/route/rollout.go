package route

import (
	"context"
	"fmt"
	"time"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/judge"
	"ebb.dev/ebb/settings"
)

// manner is how the rollouts of a Route go.
type manner struct {
	duration time.Duration
	guard    judge.Guard
	stages   []rollout.Stage
	promoted string // the latest revision if a person wants it, whatever its judge says
	unseen   string // why nobody sees how requests end; "" if somebody does
}

// guarded is how long a rollout takes that has a guard or steps and no duration. Without any,
// there would be nothing to judge.
const guarded = 2 * time.Minute

// mannerOf reads the annotations. The duration is the setting's if there is none or it is 0.
func mannerOf(route *servingv1.Route, s *settings.Snapshot) (m manner, err error) {
	own, fault := names.RolloutDuration(route.Annotations)
	guard, badGuard := names.RolloutGuard(route.Annotations)
	steps, badSteps := names.RolloutSteps(route.Annotations)
	if fault = fault.Also(badGuard).Also(badSteps); fault != nil {
		return m, fmt.Errorf("rollout of Route %s/%s: %w", route.Namespace, route.Name, fault)
	}
	m.duration, m.guard = s.Network.RolloutDuration, guard
	if own != nil && *own > 0 {
		m.duration = *own
	}
	if m.duration == 0 && (guard.On() || len(steps) > 0) {
		m.duration = guarded
	}
	for _, step := range steps {
		if step.For == 0 {
			step.For = m.duration / time.Duration(len(steps))
		}
		m.stages = append(m.stages, rollout.Stage(step))
	}
	return m, nil
}

// rolledOut replaces each target that follows a latest revision by the revisions that share its
// requests now. The state of the rollout is an annotation of the Route's cluster-local HTTPRoute,
// and of its status if activators follow its plan: then it may have no HTTPRoute.
func (r *reconciler) rolledOut(ctx context.Context, route *servingv1.Route, targets []target, m manner) ([]target, rolling, time.Duration, error) {
	before := rollout.State{}
	own := (&plan.Input{Namespace: route.Namespace, ClusterDomain: r.clusterDomain}).LocalHost(route.Name)
	have, found, err := apply.Found(r.httpRoutes.HTTPRoutes(route.Namespace).Get(own))
	if err != nil {
		return nil, rolling{}, 0, err
	}
	stored := route.Status.Annotations[names.RolloutAnnotation]
	if stored == "" && found {
		stored = have.Annotations[names.RolloutAnnotation]
	}
	if stored != "" {
		before = rollout.GiveBack(rollout.Parse(stored), r.lost(route.Namespace))
	}
	m.unseen = r.unseen(route.Namespace, before)
	before, reason, look, err := r.judged(ctx, route, m, before)
	if err != nil {
		return nil, rolling{}, 0, err
	}
	now, again := rollout.Advance(before, goal(targets, m), m.duration, r.now())
	r.expect(route, m, before, now)
	var out []target
	seen := map[string]bool{}
	for _, t := range targets {
		c, ok := now.Find(t.configuration, t.tag)
		if !t.latest || !ok || seen[t.configuration+"/"+t.tag] || len(c.Revisions) < 2 {
			out = append(out, t)
			continue
		}
		seen[t.configuration+"/"+t.tag] = true
		for _, share := range c.Revisions {
			if share.Percent == 0 {
				continue // a preview has the requests of its tag, whose target follows it at once
			}
			revision, err := r.revisions.Revisions(route.Namespace).Get(share.Revision)
			if err != nil {
				return nil, rolling{}, 0, err
			}
			part := t
			part.revision, part.percent = share.Revision, share.Percent
			part.h2c = revision.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C
			out = append(out, part)
		}
	}
	return out, rolling{now, reason}, reconcile.Sooner(again, look), nil
}

// goal is what the targets say. With a guard it has the revision, too, that a target names for all
// requests: who goes back by naming one, and follows the latest again, has that one judged. status
// cannot tell that, because it says what is wanted before the gateways get it.
func goal(targets []target, m manner) (want rollout.State) {
	add := func(t target, tag string) {
		if _, twice := want.Find(t.configuration, tag); !twice {
			want.Configurations = append(want.Configurations, rollout.Configuration{Name: t.configuration, Tag: tag, Percent: t.percent, Stages: m.stages,
				Named: !t.latest, Revisions: []rollout.Share{{Revision: t.revision, Percent: t.percent}}})
		}
	}
	for _, t := range targets {
		if !t.latest && t.percent == 100 && m.guard.On() {
			add(t, "")
		}
	}
	for _, t := range targets {
		if t.latest {
			add(t, t.tag)
		}
	}
	return want
}

// rolling is the state of a rollout, and what its judge says of it.
type rolling struct {
	rollout.State
	reason string
}

// show puts a rollout that is in progress into the status.
func (s *rolling) show(route *servingv1.Route) {
	switch {
	case s.reason == "":
		route.Status.MarkIngressRolloutInProgress()
	case s.Held():
		route.Status.MarkIngressRolloutHeld(s.reason)
	default:
		route.Status.MarkIngressRolloutJudged(s.reason)
	}
}
