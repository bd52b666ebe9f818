package route

import (
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/settings"
)

// rolloutDuration returns the time in which requests move to a new latest revision: the Route's
// annotation, or the setting if there is none or it is 0.
func rolloutDuration(route *servingv1.Route, s *settings.Snapshot) (time.Duration, error) {
	own, fault := names.RolloutDuration(route.Annotations)
	if fault != nil {
		return 0, fmt.Errorf("rollout of Route %s/%s: %w", route.Namespace, route.Name, fault)
	}
	if own != nil && *own > 0 {
		return *own, nil
	}
	return s.Network.RolloutDuration, nil
}

// rolledOut replaces each target that follows a latest revision by the revisions that share its
// requests now. The state of the rollout is an annotation of the Route's cluster-local HTTPRoute,
// which every Route has.
func (r *reconciler) rolledOut(route *servingv1.Route, targets []target, duration time.Duration) ([]target, rollout.State, time.Duration, error) {
	before := rollout.State{}
	own := (&plan.Input{Namespace: route.Namespace, ClusterDomain: r.clusterDomain}).LocalHost(route.Name)
	have, found, err := apply.Found(r.httpRoutes.HTTPRoutes(route.Namespace).Get(own))
	if err != nil {
		return nil, before, 0, err
	} else if found {
		before = rollout.Parse(have.Annotations[names.RolloutAnnotation])
	}
	want := rollout.State{}
	for _, t := range targets {
		if _, twice := want.Find(t.configuration, t.tag); t.latest && !twice {
			want.Configurations = append(want.Configurations, rollout.Configuration{Name: t.configuration, Tag: t.tag, Percent: t.percent,
				Revisions: []rollout.Share{{Revision: t.revision, Percent: t.percent}}})
		}
	}
	now, again := rollout.Advance(before, want, duration, r.now())
	var out []target
	seen := map[string]bool{}
	for _, t := range targets {
		c, ok := now.Find(t.configuration, t.tag)
		if !t.latest || !ok || seen[t.configuration+"/"+t.tag] || len(c.Revisions) < 2 {
			out = append(out, t)
			continue
		}
		seen[t.configuration+"/"+t.tag] = true
		orphaned := int64(0)
		for i, share := range c.Revisions {
			revision, err := r.revisions.Revisions(route.Namespace).Get(share.Revision)
			if apierrors.IsNotFound(err) { // deleted during the rollout; the last one gets its share
				orphaned += share.Percent
				continue
			} else if err != nil {
				return nil, before, 0, err
			}
			part := t
			part.revision, part.percent = share.Revision, share.Percent
			if i == len(c.Revisions)-1 {
				part.percent += orphaned
			}
			part.h2c = revision.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C
			out = append(out, part)
		}
	}
	return out, now, again, nil
}
