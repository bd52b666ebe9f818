package route

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
)

// target is one entry of spec.traffic, resolved.
type target struct {
	tag, configuration, revision string
	percent                      int64
	latest, h2c                  bool
	// wentBack is the latest revision if this target follows it no further, and why says the
	// reason.
	wentBack, why string
}

// resolve finds the revision of every entry of spec.traffic. If one cannot take requests, resolve
// sets the status and returns ok = false. Then the gateways are left as they are, so a Route never
// replaces a revision that serves by one that does not.
func resolve(route *servingv1.Route, configurations listers.ConfigurationLister, revisions listers.RevisionLister) (out []target, ok bool, err error) {
	for _, entry := range route.Spec.Traffic {
		t, ok, err := resolveOne(route, entry, configurations, revisions)
		if !ok || err != nil {
			return nil, false, err
		}
		out = append(out, t)
	}
	if len(out) == 0 {
		route.Status.MarkUnknownTrafficError("The Route has no traffic targets.")
		return nil, false, nil
	}
	return out, true, nil
}

// resolveOne is resolve for one entry.
func resolveOne(route *servingv1.Route, entry servingv1.TrafficTarget, configurations listers.ConfigurationLister, revisions listers.RevisionLister) (t target, ok bool, err error) {
	service := route.Labels[names.ServiceLabel]
	t = target{tag: entry.Tag, configuration: entry.ConfigurationName, revision: entry.RevisionName,
		percent: ptr.Deref(entry.Percent, 0), latest: entry.RevisionName == ""}
	if t.latest {
		if ok, err := t.latestReady(route, configurations); !ok {
			return t, false, err
		}
		// A tag without a part of the requests shows the latest revision to who asks for it. It did
		// before any judge had a word, and is where to look for what is wrong.
		if t.tag == "" || t.percent > 0 {
			if err := t.goBack(route, revisions); err != nil {
				return t, false, err
			}
		}
	}
	revision, err := revisions.Revisions(route.Namespace).Get(t.revision)
	switch {
	case apierrors.IsNotFound(err):
		route.Status.MarkMissingTrafficTarget("Revision", t.revision)
		return t, false, nil
	case err != nil:
		return t, false, err
	case service != "" && revision.Labels[names.ServiceLabel] != service:
		route.Status.MarkRevisionNotOwned(t.revision)
		return t, false, nil
	// The latest ready revision may not be Ready at the moment, but there is none better.
	case !t.latest && !revision.IsReady() && !route.Serves(t.revision):
		if revision.IsFailed() {
			route.Status.MarkRevisionFailed(t.revision, revision.Status.GetCondition(servingv1.RevisionConditionReady).GetMessage())
		} else {
			route.Status.MarkRevisionNotReady(t.revision)
		}
		return t, false, nil
	}
	// A revision in reserve may be parked at any time, until the labeler has seen this Route and
	// made it active (decision 0007).
	if revision.RoutingState() == names.RoutingReserve || revision.Annotations[names.ParkedAnnotation] != "" {
		route.Status.MarkRevisionParked(t.revision)
		return t, false, nil
	}
	if !t.latest {
		t.configuration = revision.Labels[names.ConfigurationLabel]
	}
	t.h2c = revision.Spec.Protocol() == autoscalingv1alpha1.ProtocolH2C
	return t, true, nil
}

// latestReady takes the latest ready revision of the target's Configuration.
func (t *target) latestReady(route *servingv1.Route, configurations listers.ConfigurationLister) (ok bool, err error) {
	configuration, err := configurations.Configurations(route.Namespace).Get(t.configuration)
	switch {
	case apierrors.IsNotFound(err) && route.Labels[names.ServiceLabel] != "" && reconcile.IsNew(route):
		// Its Service made it before the Route, and another cache shows it.
		route.Status.MarkConfigurationNotReady(t.configuration)
		return false, nil
	case apierrors.IsNotFound(err):
		route.Status.MarkMissingTrafficTarget("Configuration", t.configuration)
		return false, nil
	case err != nil:
		return false, err
	}
	t.revision = configuration.Status.LatestReadyRevisionName
	switch {
	case t.revision != "":
		return true, nil
	case configuration.IsFailed():
		route.Status.MarkConfigurationFailed(t.configuration)
	default:
		route.Status.MarkConfigurationNotReady(t.configuration)
	}
	return false, nil
}

// goBack replaces a revision that went back by the last good one. If there is none, the requests
// have nowhere else to go.
func (t *target) goBack(route *servingv1.Route, revisions listers.RevisionLister) error {
	latest, found, err := apply.Found(revisions.Revisions(route.Namespace).Get(t.revision))
	if err != nil || !found || latest.WentBack() == "" {
		return err // resolve says that it is missing
	}
	all, err := revisions.Revisions(route.Namespace).List(labels.SelectorFromSet(labels.Set{names.ConfigurationLabel: t.configuration}))
	if err != nil {
		return err
	}
	if good := route.LastGood(latest, all); good != nil {
		t.revision, t.wentBack, t.why = good.Name, latest.Name, latest.WentBack()
	}
	return nil
}

// shares groups the targets by tag. The Route's own hosts split requests by percent; a tag's host
// sends all of them to its target.
func (r *reconciler) shares(namespace string, targets []target) map[string][]plan.Share {
	out := map[string][]plan.Share{}
	for _, t := range targets {
		share := plan.Share{Revision: t.revision, Percent: t.percent, H2C: t.h2c, TLS: r.securely(namespace, t.revision)}
		out[""] = append(out[""], share)
		if t.tag != "" {
			share.Percent = 100
			out[t.tag] = append(out[t.tag], share)
		}
	}
	return out
}

// statusTraffic returns spec.traffic with the revisions and the address of each tag.
func statusTraffic(targets []target, url func(tag string) (*apis.URL, error)) (out []servingv1.TrafficTarget, err error) {
	for _, t := range targets {
		entry := servingv1.TrafficTarget{Tag: t.tag, RevisionName: t.revision, LatestRevision: ptr.To(t.latest), Percent: ptr.To(t.percent)}
		if t.tag != "" {
			if entry.URL, err = url(t.tag); err != nil {
				return nil, fmt.Errorf("address of tag %q: %w", t.tag, err)
			}
		}
		out = append(out, entry)
	}
	return out, nil
}
