package route

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	viewv1alpha1 "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/judge"
)

// This file lets package judge decide about gradual rollouts (decision 19).

// trials are the rollouts that are judged, by Route. A new leader goes on from the records that are
// in the annotation with the shares.
type trials struct {
	mutex sync.Mutex
	all   map[reconcile.Key]*judge.Trial
}

// of returns the trial of a rollout to a revision, from its record if this process has none. Only
// the reconcile of its Route uses it.
func (t *trials) of(key reconcile.Key, revision string, record json.RawMessage, now time.Time) *judge.Trial {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if one := t.all[key]; one != nil && one.Revision == revision {
		return one
	}
	if t.all == nil {
		t.all = map[reconcile.Key]*judge.Trial{}
	}
	one := judge.Resume(revision, record, now)
	t.all[key] = &one
	return &one
}

// forget drops what this process knows of the rollout of a Route.
func (r *reconciler) forget(key reconcile.Key) {
	r.trials.end(key)
	r.asks.end(key)
}

func (t *trials) end(key reconcile.Key) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.all, key)
}

// judged has the rollout of a Route judged, if one is under way, and holds it or lets it go. reason
// is what the condition is to say; again is when to look next, 0 if nothing is judged.
func (r *reconciler) judged(ctx context.Context, route *servingv1.Route, m manner, state rollout.State) (_ rollout.State, reason string, again time.Duration, err error) {
	key := reconcile.Key{Namespace: route.Namespace, Name: route.Name}
	at := underWay(state)
	if at < 0 || !m.guard.On() {
		r.trials.end(key)
		for i := range state.Configurations { // the guard may have been removed in the middle
			state.Configurations[i].Judge = rollout.Judge{}
		}
		return state, "", 0, nil
	}
	c, now := &state.Configurations[at], r.now()
	newest := c.Revisions[len(c.Revisions)-1].Revision
	trial := r.trials.of(key, newest, c.Judged, now)
	var found judge.Finding
	*trial, found = trial.Look(m.guard, r.sight(route, m, c, now), now)
	c.Held, c.Suspect = trial.Held, trial.Suspect
	if found.Back {
		err = r.convict(ctx, route, newest, found.Reason)
	} else if found.Write {
		c.Judged = trial.Encode()
	}
	return state, found.Reason, found.Again, err
}

// sight is what the judge of a rollout sees.
func (r *reconciler) sight(route *servingv1.Route, m manner, c *rollout.Configuration, now time.Time) judge.Sight {
	newest := c.Revisions[len(c.Revisions)-1]
	stage, _ := c.At(m.stages)
	s := judge.Sight{Share: int(newest.Percent), Due: c.Step.Size > 0 && now.UnixNano() >= c.Step.Next, Last: c.LastStep(), Least: stage.Requests,
		Held: c.Held, Recorded: c.Judged != nil}
	service := route.Labels[names.ServiceLabel]
	if s.Cannot = m.unjudged(newest.Revision, service); s.Cannot != "" {
		return s
	}
	heard := r.heard(reconcile.Key{Namespace: route.Namespace, Name: route.Name}, service)
	if s.Heard = heard != nil; s.Heard && heard.err == nil {
		s.Figures = figures(heard.view, c.Revisions)
	}
	return s
}

// unjudged says why nobody judges the rollout to a revision of a Service, "" if somebody does.
func (m *manner) unjudged(revision, service string) string {
	switch {
	case revision == m.promoted:
		return "it was promoted by hand, so nobody judges it"
	case m.unseen != "":
		return m.unseen
	case service == "":
		return "only rollouts of Services are judged"
	}
	return ""
}

// underWay is the place of the target whose rollout can be judged, or -1.
func underWay(s rollout.State) int {
	return slices.IndexFunc(s.Configurations, func(c rollout.Configuration) bool { return c.Tag == "" && len(c.Revisions) > 1 })
}

// expect asks how requests end before the first one goes to a new revision, while the gateways are
// prepared for it: the autoscaler counts from the first question on, and takes two rounds for the
// first second. It stops that once there is nothing to judge.
func (r *reconciler) expect(route *servingv1.Route, m manner, before, now rollout.State) {
	key, service := reconcile.Key{Namespace: route.Namespace, Name: route.Name}, route.Labels[names.ServiceLabel]
	switch {
	case !m.guard.On() || underWay(now) < 0:
		r.asks.end(key)
	case underWay(before) < 0 && service != "":
		r.heard(key, service)
	}
}

// unseen says which revision of a rollout the autoscaler does not know, because somebody else
// scales it. Nobody tells how its requests end, now or later.
func (r *reconciler) unseen(namespace string, state rollout.State) string {
	for _, c := range state.Configurations {
		for _, share := range c.Revisions {
			revision, err := r.revisions.Revisions(namespace).Get(share.Revision)
			if err != nil {
				continue // GiveBack sees to it
			}
			if class := cmp.Or(revision.Annotations[names.ClassAnnotation], r.settings.Load().Autoscaler.Class); class != names.ClassKPA {
				return fmt.Sprintf("%s has the autoscaler class %s, and only the requests of %s are counted", share.Revision, class, names.ClassKPA)
			}
		}
	}
	return ""
}

// figures are what a view tells of the revisions of a rollout. Of a new one without a share they
// are those of its tag.
func figures(v *viewv1alpha1.ServiceView, shares []rollout.Share) []judge.Figures {
	out := make([]judge.Figures, len(shares))
	for i, share := range shares {
		out[i].Name = share.Revision
		at := slices.IndexFunc(v.Revisions, func(r viewv1alpha1.RevisionView) bool { return r.Name == share.Revision })
		if at < 0 || v.Revisions[at].Judged == nil {
			continue
		}
		told := v.Revisions[at].Judged
		out[i].Uncounted, out[i].Ready = told.Uncounted > 0, v.Revisions[at].Now.Replicas.Ready > 0
		out[i].Starts = time.Duration(told.StartingSeconds * float64(time.Second))
		for k := range told.Seconds {
			out[i].Seconds = append(out[i].Seconds, judge.Second{At: told.Seconds[k].At, Counts: counts(&told.Seconds[k], i == len(shares)-1 && share.Percent == 0)})
		}
	}
	return out
}

// counts are those of a second of a revision, or of a preview, which has the requests of a tag.
func counts(s *viewv1alpha1.Second, preview bool) (c judge.Counts) {
	if preview {
		c.Requests, c.Errors = s.Tagged[0]+s.Tagged[1], s.Tagged[1]
		return c
	}
	c.Requests, c.Errors, c.Latency = s.Good+s.Failed, s.Failed, s.Latency()
	for drawer, n := range s.Senders[:min(len(s.Senders), len(c.Senders))] {
		c.Senders[drawer] = judge.Tally{Requests: n[0] + n[1], Errors: n[1]}
	}
	return c
}

// convict writes on a Revision that it went back, and why. From then on this is the truth: a Route
// that follows the latest Revision takes the newest one without it (see resolve).
func (r *reconciler) convict(ctx context.Context, route *servingv1.Route, name, why string) error {
	revision, found, err := apply.Found(r.revisions.Revisions(route.Namespace).Get(name))
	if err != nil {
		return fmt.Errorf("go back from Revision %s/%s: %w", route.Namespace, name, err)
	}
	if !found || revision.WentBack() != "" {
		return nil
	}
	if err := r.mark(ctx, revision, why); err != nil {
		return fmt.Errorf("go back from Revision %s/%s: %w", route.Namespace, name, err)
	}
	r.events.Eventf(route, corev1.EventTypeWarning, servingv1.ReasonWentBack, "Revision %q goes back: %s", name, why)
	return nil
}

// mark writes why a Revision went back, or with nil that it did not.
func (r *reconciler) mark(ctx context.Context, revision *servingv1.Revision, why any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": revision.ResourceVersion, "annotations": map[string]any{names.WentBackAnnotation: why}}})
	if err != nil {
		return err
	}
	_, err = r.ebb.ServingV1().Revisions(revision.Namespace).Patch(ctx, revision.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// sentBack is why a Revision went back that a person sent back.
const sentBack = "it was sent back by hand"

// overruled takes a person's word about the Revision that a target of the Route follows. A word
// about another one is old, and means nothing. It returns the Revision that is promoted.
func (r *reconciler) overruled(ctx context.Context, route *servingv1.Route) (promoted string, err error) {
	word, fault := names.RolloutOverrule(route.Annotations)
	if fault != nil {
		return "", fmt.Errorf("rollout of Route %s/%s: %w", route.Namespace, route.Name, fault)
	}
	revision, found, err := apply.Found(r.revisions.Revisions(route.Namespace).Get(word.Revision))
	if err != nil || !found {
		return "", err
	}
	configuration, found, err := apply.Found(r.configurations.Configurations(route.Namespace).Get(revision.Labels[names.ConfigurationLabel]))
	if err != nil || !found || configuration.Status.LatestReadyRevisionName != revision.Name {
		return "", err
	}
	if !slices.ContainsFunc(route.Spec.Traffic, func(t servingv1.TrafficTarget) bool {
		return t.RevisionName == "" && t.ConfigurationName == configuration.Name
	}) {
		return "", nil
	}
	if word.Back {
		all, err := r.revisions.Revisions(route.Namespace).List(labels.SelectorFromSet(labels.Set{names.ConfigurationLabel: configuration.Name}))
		if err != nil || route.LastGood(revision, all) == nil {
			return "", err // it keeps its requests, so the mark would be wrong, and the next rollout no rollout
		}
		return "", r.convict(ctx, route, revision.Name, sentBack)
	}
	if revision.WentBack() != "" {
		if err := r.mark(ctx, revision, nil); err != nil {
			return "", fmt.Errorf("promote Revision %s/%s: %w", route.Namespace, revision.Name, err)
		}
	}
	return revision.Name, nil
}

// lost reports whether a Revision has no share of a rollout any more: it went back, or was deleted.
func (r *reconciler) lost(namespace string) func(revision string) bool {
	return func(name string) bool {
		revision, err := r.revisions.Revisions(namespace).Get(name)
		return apierrors.IsNotFound(err) || err == nil && revision.WentBack() != ""
	}
}

// askView asks the API view.ebb.dev for a Service, and has its requests counted for a judge.
func askView(kube kubernetes.Interface) func(ctx context.Context, namespace, service string) (*viewv1alpha1.ServiceView, error) {
	return func(ctx context.Context, namespace, service string) (*viewv1alpha1.ServiceView, error) {
		raw, err := kube.Discovery().RESTClient().Get().
			AbsPath("/apis", viewv1alpha1.Group, viewv1alpha1.Version, "namespaces", namespace, viewv1alpha1.Resource, service).
			Param(viewv1alpha1.QueryJudge, "true").Do(ctx).Raw()
		if err != nil {
			return nil, fmt.Errorf("ask how Service %s/%s does: %w", namespace, service, err)
		}
		v := &viewv1alpha1.ServiceView{}
		if err := json.Unmarshal(raw, v); err != nil {
			return nil, fmt.Errorf("read how Service %s/%s does: %w", namespace, service, err)
		}
		return v, nil
	}
}
