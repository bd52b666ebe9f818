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

// lookAgain is when a judge looks without an answer of the autoscaler. With one it looks at once.
const lookAgain = 2 * time.Second

// memory is what the judge of a rollout remembers. It is in the annotation with the shares as it
// was when the split or the verdict last changed. A new leader goes on from there: it has lost
// evidence, so it is slower and not wrong.
type memory struct {
	Revision string      `json:"revision"` // the new one
	State    judge.State `json:"state"`
	Until    time.Time   `json:"until"` // the newest second that was counted
	Rule     string      `json:"rule,omitempty"`
	Reason   string      `json:"reason,omitempty"`
}

func (m *memory) encode() json.RawMessage {
	raw, err := json.Marshal(m)
	if err != nil {
		return nil // numbers, times and texts always encode
	}
	return raw
}

// trials are the rollouts that are judged, by Route.
type trials struct {
	mutex sync.Mutex
	all   map[reconcile.Key]*trial
}

// trial is one of them. Only the reconcile of its Route uses it.
type trial struct {
	memory
	looked time.Time
	held   bool
	// suspect says that something speaks against the revision while it is held.
	suspect bool
	cannot  string // why the newest answer said that it cannot be judged
}

// of returns the trial of a rollout to a revision, from its memory if this process has none.
func (t *trials) of(key reconcile.Key, revision string, stored json.RawMessage, now time.Time) *trial {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	one := t.all[key]
	if one != nil && one.Revision == revision {
		return one
	}
	one = &trial{}
	if json.Unmarshal(stored, &one.memory) != nil || one.Revision != revision {
		// What came before the first percent is no draw between the two revisions.
		one.memory = memory{Revision: revision, Until: now}
	}
	if t.all == nil {
		t.all = map[reconcile.Key]*trial{}
	}
	t.all[key] = one
	return one
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

// verdictOf judges the rollout of a Route, if one is under way, and holds it or lets it go. reason
// is what the condition is to say; again is when to look next, 0 if nothing is judged.
func (r *reconciler) verdictOf(ctx context.Context, route *servingv1.Route, m manner, before rollout.State) (state rollout.State, reason string, again time.Duration, err error) {
	key := reconcile.Key{Namespace: route.Namespace, Name: route.Name}
	at := underWay(before)
	if at < 0 || !m.guard.On() {
		r.trials.end(key)
		for i := range before.Configurations { // the guard may have been removed in the middle
			before.Configurations[i].Judge = rollout.Judge{}
		}
		return before, "", 0, nil
	}
	c, now := &before.Configurations[at], r.now()
	newest := c.Revisions[len(c.Revisions)-1].Revision
	t := r.trials.of(key, newest, c.Judged, now)
	var heard *answer
	service := route.Labels[names.ServiceLabel]
	cannot := m.unjudged(newest, service)
	if cannot == "" {
		heard = r.heard(key, service)
	}
	// A step that is due is judged when it is due, because it may need more than those before.
	due := c.Step.Size > 0 && now.UnixNano() >= c.Step.Next
	if next := lookAgain - now.Sub(t.looked); next > 0 && heard == nil && !due {
		c.Held, c.Suspect = t.held, t.suspect
		return before, t.Reason, next, nil
	}
	t.looked = now
	all := t.inputs(heard, c, due, m.stages)
	if cannot == "" {
		cannot = t.cannot
	}
	rule, why := "", cannot
	t.held, t.suspect = false, false
	if cannot == "" {
		var d judge.Decision
		for i := range all {
			d, t.State = judge.Decide(m.guard, t.State, all[i], now.Add(-time.Duration(len(all)-1-i)*time.Second))
		}
		if d.Verdict == judge.GoBack {
			// What follows comes with the news of the annotation. Until then no step is due.
			t.held, t.suspect, c.Held, c.Suspect = true, true, true, true
			return before, d.Reason(), lookAgain, r.convict(ctx, route, newest, d.Reason())
		}
		t.held, t.suspect, rule, why = d.Verdict == judge.Wait, d.Suspects(), d.Rule, d.Reason()
	}
	// A write for each look would be one each second, to the gateways and into the status.
	if c.Held != t.held || c.Judged == nil || t.Rule != rule || cannot != "" && t.Reason != cannot || due && !t.held {
		t.Rule, t.Reason = rule, why
		c.Held, c.Judged = t.held, t.encode()
	}
	c.Suspect = t.suspect
	return before, t.Reason, lookAgain, nil
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

// inputs is what the judge gets, at least one. due says that a step is.
func (t *trial) inputs(heard *answer, c *rollout.Configuration, due bool, stages []rollout.Stage) (all []judge.Input) {
	if heard != nil && heard.err == nil {
		// The judge says for how long nobody told. The autoscaler's log says why.
		all, t.cannot = t.read(heard.view, *c)
	}
	if len(all) == 0 {
		share := c.Revisions[len(c.Revisions)-1].Percent
		all = []judge.Input{{Share: int(share), Preview: share == 0}}
	}
	if due {
		last := &all[len(all)-1]
		at, _ := c.At(stages)
		last.Last, last.Least = c.LastStep(), at.Requests
	}
	return all
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

// read takes the seconds that are told of all revisions and were not counted yet, oldest first.
// cannot says why a rollout cannot be judged at all; it goes by the clock then. Told by two
// replicas, those of two revisions end at different moments; what is left over comes with the next
// look.
func (t *trial) read(v *viewv1alpha1.ServiceView, c rollout.Configuration) (all []judge.Input, cannot string) {
	last, ready := len(c.Revisions)-1, false
	told := make([]*viewv1alpha1.Judged, len(c.Revisions))
	var until time.Time
	for i, share := range c.Revisions {
		at := slices.IndexFunc(v.Revisions, func(r viewv1alpha1.RevisionView) bool { return r.Name == share.Revision })
		if at < 0 || v.Revisions[at].Judged == nil {
			return nil, ""
		}
		j := v.Revisions[at].Judged
		switch n := len(j.Seconds); {
		case n == 0 && j.Uncounted > 0:
			return nil, fmt.Sprintf("the pods of %s are of a version of Ebb that does not count how requests end", share.Revision)
		case n == 0:
			return nil, ""
		case until.IsZero() || j.Seconds[n-1].At.Before(until):
			until = j.Seconds[n-1].At
		}
		told[i], ready = j, v.Revisions[at].Now.Replicas.Ready > 0 // of the last one, which is the new one
	}
	if !until.After(t.Until) {
		return nil, ""
	}
	seconds := make([][]viewv1alpha1.Second, len(told))
	for i, j := range told {
		for _, s := range j.Seconds {
			if s.At.After(t.Until) && !s.At.After(until) {
				seconds[i] = append(seconds[i], s)
			}
		}
	}
	t.Until = until
	// What is judged together counts as one moment, so a look that comes late must not put seconds
	// together, unless it is unknown which of one revision is which of another.
	n := len(seconds[0])
	if slices.ContainsFunc(seconds, func(s []viewv1alpha1.Second) bool { return len(s) != n }) {
		n = 1
	}
	all = make([]judge.Input, n)
	for i, j := range told {
		for k := range seconds[i] {
			in := &all[min(k, n-1)]
			into := &in.Old
			if i == last {
				into = &in.New
			}
			count(into, &seconds[i][k], i == last && c.Revisions[last].Percent == 0)
		}
		starts := &all[n-1].OldStarts
		if i == last {
			starts = &all[n-1].NewStarts
		}
		*starts = max(*starts, time.Duration(j.StartingSeconds*float64(time.Second)))
	}
	for i := range all {
		all[i].Told, all[i].Share, all[i].Preview = true, int(c.Revisions[last].Percent), c.Revisions[last].Percent == 0
		all[i].NewReady = ready
	}
	return all, ""
}

// count adds a second of a revision, or of a preview, which has the requests of a tag.
func count(into *judge.Counts, s *viewv1alpha1.Second, preview bool) {
	if preview {
		into.Requests += s.Tagged[0] + s.Tagged[1]
		into.Errors += s.Tagged[1]
		return
	}
	into.Requests += s.Good + s.Failed
	into.Errors += s.Failed
	latency := s.Latency()
	into.Latency.Merge(&latency)
	for drawer, n := range s.Senders[:min(len(s.Senders), len(into.Senders))] {
		into.Senders[drawer].Requests += n[0] + n[1]
		into.Senders[drawer].Errors += n[1]
	}
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
