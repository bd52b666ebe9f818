package route

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	viewv1alpha1 "ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/rollout"
	"ebb.dev/ebb/judge"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var views = schema.GroupResource{Group: viewv1alpha1.Group, Resource: viewv1alpha1.Resource}

// told is a view in which each revision has seconds such as "1:90/2": in the second that ended at
// 1, 90 requests were good and 2 failed.
func told(seconds map[string]string) *viewv1alpha1.ServiceView {
	v := &viewv1alpha1.ServiceView{}
	for name, text := range seconds {
		j := &viewv1alpha1.Judged{}
		for _, word := range strings.Fields(text) {
			var at int64
			s := viewv1alpha1.Second{FirstBucket: 10}
			if _, err := fmt.Sscanf(word, "%d:%d/%d", &at, &s.Good, &s.Failed); err != nil {
				panic(err)
			}
			s.At, s.Buckets = time.Unix(at, 0), []uint64{s.Good}
			j.Seconds = append(j.Seconds, s)
		}
		v.Revisions = append(v.Revisions, viewv1alpha1.RevisionView{Name: name, Judged: j})
	}
	return v
}

func TestAViewIsReadForEachRevision(t *testing.T) {
	v := told(map[string]string{"a": "1:9/1", "b": "2:60/3 3:7/0"})
	for i := range v.Revisions {
		if r := &v.Revisions[i]; r.Name == "b" {
			r.Judged.Uncounted, r.Judged.StartingSeconds, r.Now.Replicas.Ready = 2, 70, 1
			r.Judged.Seconds[0].Tagged = [2]uint64{4, 2}
		}
	}
	for _, row := range []struct {
		behaviour string
		shares    []rollout.Share
		want      string
	}{
		{"in the order of the split, with nothing of one that is not told of", []rollout.Share{{Revision: "d", Percent: 5}, {Revision: "b", Percent: 5}, {Revision: "a", Percent: 90}},
			"d: starts 0s; b: 2 60+3 (60 timed), 3 7+0 (7 timed), uncounted, starts 1m10s, ready; a: 1 9+1 (9 timed), starts 0s"},
		{"a preview has the requests of its tag", []rollout.Share{{Revision: "a", Percent: 100}, {Revision: "b"}},
			"a: 1 9+1 (9 timed), starts 0s; b: 2 4+2 (0 timed), 3 0+0 (0 timed), uncounted, starts 1m10s, ready"},
	} {
		var all []string
		for _, f := range figures(v, row.shares) {
			var one []string
			for _, s := range f.Seconds {
				one = append(one, fmt.Sprintf("%d %d+%d (%d timed)", s.At.Unix(), s.Requests-s.Errors, s.Errors, s.Latency[10]))
			}
			if f.Uncounted {
				one = append(one, "uncounted")
			}
			one = append(one, fmt.Sprintf("starts %v", f.Starts))
			if f.Ready {
				one = append(one, "ready")
			}
			all = append(all, f.Name+": "+strings.Join(one, ", "))
		}
		if got := strings.Join(all, "; "); got != row.want {
			t.Errorf("%s: %s, want %s", row.behaviour, got, row.want)
		}
	}
}

// Drawers that this release does not know are not read.
func TestSendersAreReadByDrawer(t *testing.T) {
	s := viewv1alpha1.Second{Good: 30, Failed: 3, Senders: [][2]uint64{1: {3, 1}, 3: {0, 2}, 40: {9, 9}}}
	want := [wire.SenderDrawers]judge.Tally{1: {Requests: 4, Errors: 1}, 3: {Requests: 2, Errors: 2}}
	if got := counts(&s, false); got.Senders != want {
		t.Errorf("got %v", got.Senders)
	}
}

// looks is a reconciler that judges the rollout of one Route.
type looks struct {
	*reconciler
	clock time.Time
	view  func() (*viewv1alpha1.ServiceView, error) // nil while there is no answer
	route *servingv1.Route
	state rollout.State
	// stages are those of the goal.
	stages []rollout.Stage
}

func newLooks() *looks {
	l := &looks{clock: time.Unix(1000, 0), route: &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello", Labels: map[string]string{names.ServiceLabel: "hello"}}},
		state: rollout.State{Configurations: []rollout.Configuration{{Name: "hello", Percent: 100, Revisions: []rollout.Share{{Revision: "a", Percent: 99}, {Revision: "b", Percent: 1}}}}}}
	l.reconciler = &reconciler{now: func() time.Time { return l.clock }, heard: func(reconcile.Key, string) *answer {
		if l.view == nil {
			return nil
		}
		v, err := l.view()
		return &answer{v, err}
	}}
	return l
}

// look takes one look, and reports what the state and the reason became.
func (l *looks) look(t *testing.T, guard string) string {
	t.Helper()
	g, err := judge.Parse(guard)
	if err != nil {
		t.Fatal(err)
	}
	state, reason, again, err := l.judged(t.Context(), l.route, manner{guard: g, stages: l.stages}, rollout.Parse(l.state.String()))
	if err != nil {
		t.Fatal(err)
	}
	l.state = state
	c := state.Configurations[0]
	return fmt.Sprintf("held %v, remembers %v, again %v: %s", c.Held, c.Judged != nil, again, reason)
}

func TestARolloutStandsStillWhileNobodyTells(t *testing.T) {
	l := newLooks()
	away := func() (*viewv1alpha1.ServiceView, error) { return nil, errors.New("it is away") }
	l.view = away
	if got, want := l.look(t, "errors<1%"), "held false, remembers true, again 2s: 0 of 0 requests"; !strings.HasPrefix(got, want) {
		t.Errorf("at first: %s, want %s", got, want)
	}
	first := l.state.String()
	l.clock = l.clock.Add(300 * time.Millisecond)
	l.view = nil
	if got := l.look(t, "errors<1%"); !strings.Contains(got, "again 1.7s") || l.state.String() != first {
		t.Errorf("without an answer: %s", got)
	}
	for i := range 8 { // nothing changes, so nothing is to be written
		if l.view = nil; i%2 == 0 {
			l.view = away
		}
		l.clock = l.clock.Add(time.Second)
		if l.look(t, "errors<1%"); l.state.String() != first {
			t.Fatalf("the state changed from %s to %s", first, l.state)
		}
	}
	l.view = nil // the question hangs
	l.clock = l.clock.Add(2 * time.Second)
	if got, want := l.look(t, "errors<1%"), "held true, remembers true, again 2s: no figures of the revisions came for 10s"; got != want {
		t.Errorf("after 10 s: %s, want %s", got, want)
	}
	l.view = func() (*viewv1alpha1.ServiceView, error) {
		at := l.clock.Unix()
		return told(map[string]string{"a": fmt.Sprintf("%d:99/0", at), "b": fmt.Sprintf("%d:1/0", at)}), nil
	}
	l.clock = l.clock.Add(time.Second)
	if got := l.look(t, "errors<1%"); !strings.HasPrefix(got, "held false, remembers true, again 2s: 0 of 1 requests to the new revision failed") {
		t.Errorf("once it tells: %s", got)
	}
	if got := l.look(t, "off"); got != "held false, remembers false, again 0s: " {
		t.Errorf("without a guard: %s", got)
	}
}

// A rollout may wait for many things. The newest revision is suspected only if something speaks
// against it, also while nobody tells.
func TestWhoIsSuspected(t *testing.T) {
	const guard = "errors<1%, requests>1000"
	for behaviour, row := range map[string]struct {
		failed  uint64
		waits   string
		suspect bool
	}{
		"it fails":              {20, "20 of 20 requests to the new revision failed, 0 of 99 to the old one, which may be chance", true},
		"it needs its requests": {0, "the new revision has answered 20 of the 1000 requests", false},
	} {
		l := newLooks()
		l.view = func() (*viewv1alpha1.ServiceView, error) {
			at := l.clock.Unix()
			return told(map[string]string{"a": fmt.Sprintf("%d:99/0", at), "b": fmt.Sprintf("%d:%d/%d", at, 20-row.failed, row.failed)}), nil
		}
		l.look(t, guard) // the rollout begins
		look := func(want string) {
			t.Helper()
			if got := l.look(t, guard); !strings.HasPrefix(got, "held true") || !strings.Contains(got, want) || l.state.Configurations[0].Suspect != row.suspect {
				t.Errorf("%s: %s, suspected: %v", behaviour, got, l.state.Configurations[0].Suspect)
			}
		}
		l.clock = l.clock.Add(time.Second)
		l.state.Configurations[0].Step = rollout.Step{Start: 1, Next: 1, Size: 99, Duration: 1}
		look(row.waits)
		l.view, l.clock = nil, l.clock.Add(100*time.Millisecond)
		l.state.Configurations[0].Step.Next = l.clock.Add(time.Hour).UnixNano()
		look(row.waits) // no answer came since
		l.clock = l.clock.Add(time.Minute)
		look("no figures of the revisions came")
	}
}

// The last step may need more than those before, so it is not taken on an older verdict.
func TestTheLastStepWaitsForItsRequests(t *testing.T) {
	l := newLooks()
	l.view = func() (*viewv1alpha1.ServiceView, error) {
		at := l.clock.Unix()
		return told(map[string]string{"a": fmt.Sprintf("%d:99/0", at), "b": fmt.Sprintf("%d:20/0", at)}), nil
	}
	const guard = "errors<1%, requests>100"
	l.look(t, guard) // the rollout begins
	l.clock = l.clock.Add(time.Second)
	if got := l.look(t, guard); !strings.HasPrefix(got, "held false") {
		t.Errorf("before the last step: %s", got)
	}
	l.view = nil // a moment later it is due, and there is no further answer
	l.clock = l.clock.Add(100 * time.Millisecond)
	l.state.Configurations[0].Step = rollout.Step{Start: 1, Next: l.clock.UnixNano(), Size: 99, Duration: 1}
	if got, want := l.look(t, guard), "held true, remembers true, again 2s: the new revision has answered 20 of the 100 requests"; !strings.HasPrefix(got, want) {
		t.Errorf("when it is due: %s, want %s", got, want)
	}
}

func TestAStepWaitsForItsRequests(t *testing.T) {
	l := newLooks()
	l.stages = []rollout.Stage{{Percent: 1, For: time.Second, Requests: 50}, {Percent: 10}}
	l.view = func() (*viewv1alpha1.ServiceView, error) {
		at := l.clock.Unix()
		return told(map[string]string{"a": fmt.Sprintf("%d:99/0", at), "b": fmt.Sprintf("%d:20/0", at)}), nil
	}
	l.look(t, "errors<1%") // the rollout begins
	for _, want := range []string{
		"held true, remembers true, again 2s: the new revision has answered 20 of the 50 requests that it needs at this step",
		"held true, remembers true, again 2s: the new revision has answered 20 of the 50 requests that it needs at this step", // as first written
		"held false, remembers true, again 2s: 0 of 60 requests to the new revision failed",
	} {
		l.clock = l.clock.Add(time.Second)
		l.state.Configurations[0].Step = rollout.Step{Start: 1, Next: 1, Size: 9, Duration: 1}
		if got := l.look(t, "errors<1%"); !strings.HasPrefix(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A preview is judged by the requests of its tag alone. With its first share the judge begins anew,
// with those of the split.
func TestAPreviewIsJudgedByTheRequestsOfItsTag(t *testing.T) {
	l := newLooks()
	l.stages = []rollout.Stage{{For: time.Second, Requests: 50}, {Percent: 1}}
	l.state.Configurations[0].Revisions = []rollout.Share{{Revision: "a", Percent: 100}, {Revision: "b"}}
	failed := uint64(0)
	l.view = func() (*viewv1alpha1.ServiceView, error) {
		at := l.clock.Unix()
		v := told(map[string]string{"a": fmt.Sprintf("%d:90/10", at), "b": fmt.Sprintf("%d:1/7", at)})
		for i := range v.Revisions {
			v.Revisions[i].Judged.Seconds[0].Tagged = [2]uint64{20 - failed, failed}
		}
		return v, nil
	}
	l.look(t, "errors<1%") // the rollout begins
	for _, row := range []struct {
		failed uint64
		want   string
	}{
		{0, "held true, remembers true, again 2s: the new revision has answered 20 of the 50 requests by its tag"},
		{0, "held true, remembers true, again 2s: the new revision has answered 20 of the 50 requests by its tag"}, // as first written
		{0, "held false, remembers true, again 2s: 0 of 60 requests by the tag of the new revision failed"},
		{20, "held true, remembers true, again 2s: 20 of 80 requests by the tag of the new revision failed, more than it may"},
	} {
		l.clock, failed = l.clock.Add(time.Second), row.failed
		l.state.Configurations[0].Step = rollout.Step{Start: 1, Next: 1, Size: 1, Duration: 1}
		if got := l.look(t, "errors<1%"); !strings.HasPrefix(got, row.want) {
			t.Errorf("%s, want %s", got, row.want)
		}
	}
	l.clock = l.clock.Add(time.Second)
	l.state.Configurations[0].Revisions = []rollout.Share{{Revision: "a", Percent: 99}, {Revision: "b", Percent: 1}}
	if got, want := l.look(t, "errors<1%"), "held true, remembers true, again 2s: 7 of 8 requests to the new revision failed, 10 of 100 to the old one"; !strings.HasPrefix(got, want) {
		t.Errorf("with a share: %s, want %s", got, want)
	}
}

// A new leader has the memory of the last change.
func TestANewLeaderGoesOn(t *testing.T) {
	l := newLooks()
	l.view = func() (*viewv1alpha1.ServiceView, error) {
		at := l.clock.Unix()
		return told(map[string]string{"a": fmt.Sprintf("%d:99/0", at), "b": fmt.Sprintf("%d:20/0", at)}), nil
	}
	l.clock = l.clock.Add(time.Second)
	l.look(t, "errors<1%")
	l.clock = l.clock.Add(time.Second)
	l.state.Configurations[0].Step = rollout.Step{Start: 1, Next: 1, Size: 10, Duration: 1} // a step is due
	l.look(t, "errors<1%")
	next := newLooks()
	next.clock, next.view, next.state = l.clock, l.view, l.state
	if got := next.look(t, "errors<1%"); !strings.Contains(got, "0 of 20 requests") {
		t.Errorf("a new leader that knows all: %s", got)
	}
	kept := next.trials.all[reconcile.Key{Namespace: "ns", Name: "hello"}]
	if kept.State.New.Requests != 20 || !kept.Until.Equal(l.clock) {
		t.Errorf("it goes on from %+v", kept.Record)
	}
	next.state.Configurations[0].Revisions[1].Revision = "d"
	next.clock = next.clock.Add(time.Second)
	next.look(t, "errors<1%")
	if kept = next.trials.all[reconcile.Key{Namespace: "ns", Name: "hello"}]; kept.Revision != "d" || kept.State.New.Requests != 0 {
		t.Errorf("another revision begins with %+v", kept.Record)
	}
}

func TestWhatCannotBeJudgedGoesByTheClock(t *testing.T) {
	old := newLooks()
	old.view = func() (*viewv1alpha1.ServiceView, error) {
		v := told(map[string]string{"a": "", "b": ""})
		v.Revisions[0].Judged.Uncounted, v.Revisions[1].Judged.Uncounted = 1, 1
		return v, nil
	}
	first := old.look(t, "errors<1%")
	if !strings.HasPrefix(first, "held false") || !strings.Contains(first, "does not count") {
		t.Errorf("pods that do not count: %s", first)
	}
	old.view = nil
	old.clock = old.clock.Add(time.Minute)
	if got := old.look(t, "errors<1%"); got != first {
		t.Errorf("and no answer: %s, want %s", got, first)
	}
	l := newLooks()
	l.route.Labels = nil
	if got := l.look(t, "on"); got != "held false, remembers true, again 2s: only rollouts of Services are judged" {
		t.Errorf("a Route of no Service: %s", got)
	}
}

// judged puts a Service's Route with three revisions, of which the first serves, and plays the
// autoscaler: fails says how many of 100 requests to each revision fail.
func (s *stage) judged(annotations map[string]string, targets []string, fails func(revision string) uint64) {
	s.t.Helper()
	for i, name := range []string{"hello-00001", "hello-00002", "hello-00003"} {
		r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Generation: 1, Labels: map[string]string{
			names.ConfigurationLabel: "hello", names.ServiceLabel: "hello", names.ConfigurationGenerationLabel: fmt.Sprint(i + 1)}}}
		r.Spec.Containers = []corev1.Container{{Image: "i"}}
		r.Status.ObservedGeneration = 1
		r.Status.Conditions = duckv1.Conditions{{Type: "Ready", Status: corev1.ConditionTrue}}
		s.put(revisions, "serving.knative.dev/v1", "Revision", r)
		s.service(name)
	}
	s.configuration("hello-00001")
	s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns",
		Labels: map[string]string{names.ServiceLabel: "hello"}, Annotations: annotations}})
	s.route(targets...)
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	ctx, stop := context.WithCancel(s.t.Context())
	telling := make(chan struct{})
	go func() {
		defer close(telling)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		var all [3]viewv1alpha1.Judged
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				v := &viewv1alpha1.ServiceView{}
				for i := range all {
					name := fmt.Sprintf("hello-%05d", i+1)
					failed := fails(name)
					all[i].Seconds = append(all[i].Seconds, viewv1alpha1.Second{At: now.UTC(), Good: 100 - failed, Failed: failed, Tagged: [2]uint64{100 - failed, failed}})
					if len(all[i].Seconds) > viewv1alpha1.MaxSeconds {
						all[i].Seconds = all[i].Seconds[1:]
					}
					v.Revisions = append(v.Revisions, viewv1alpha1.RevisionView{Name: name, Judged: &all[i]})
				}
				raw, _ := json.Marshal(v)
				content := map[string]any{}
				if err := json.Unmarshal(raw, &content); err != nil {
					s.t.Error(err)
				}
				content["apiVersion"], content["kind"] = viewv1alpha1.GroupVersion.String(), viewv1alpha1.Kind
				content["metadata"] = map[string]any{"namespace": "ns", "name": "hello"}
				s.store.Put(views, &unstructured.Unstructured{Object: content})
			}
		}
	}()
	s.t.Cleanup(func() { stop(); <-telling })
}

func nobody(string) uint64 { return 0 }

// shown are the shares in a status, such as "hello-00001=100".
func shown(r *servingv1.Route) string {
	var out []string
	for _, t := range r.Status.Traffic {
		out = append(out, fmt.Sprintf("%s%s=%d", t.Tag, t.RevisionName, *t.Percent))
	}
	return strings.Join(out, " ")
}

// A revision that fails is back at nothing, and stays there until the next template. No gateway
// loses the one that serves.
func TestARevisionThatFailsGoesBack(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%"}, []string{"latest=100"},
		func(revision string) uint64 { return map[string]uint64{"hello-00002": 100}[revision] })
	s.configuration("hello-00002")
	s.until("the rollout is judged", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && strings.Contains(r.Status.GetCondition("IngressReady").Message, "requests")
	})
	r := s.until("it goes back", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "False WentBack" && condition(r, "IngressReady") == "True " && condition(r, "Ready") == "False WentBack"
	})
	if got := shown(r); got != "hello-00001=100" {
		t.Errorf("requests go to %s", got)
	}
	if spec := r.Spec.Traffic; len(spec) != 1 || spec[0].RevisionName != "" || *spec[0].Percent != 100 {
		t.Errorf("the spec was written: %+v", spec)
	}
	bad := &servingv1.Revision{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.store.Get(revisions, "ns", "hello-00002").Object, bad); err != nil {
		t.Fatal(err)
	}
	if why := bad.Annotations[names.WentBackAnnotation]; !strings.Contains(why, "requests to the new revision failed") || !strings.Contains(r.Status.GetCondition("AllTrafficAssigned").Message, why) {
		t.Errorf("it went back because %q", why)
	}
	s.configuration("hello-00003")
	s.until("the next template begins anew", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "True " && shown(r) == "hello-00001=99 hello-00003=1"
	})
}

// The next one that fails goes back to the same good revision, also where the target has a part of
// the requests only, beside a named one and one with a tag.
func TestTwoThatFailGoBackToTheLastGoodOne(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%"},
		[]string{"latest=60", "hello-00001=40", "preview:latest=0"},
		func(revision string) uint64 {
			return map[string]uint64{"hello-00002": 100, "hello-00003": 100}[revision]
		})
	for _, bad := range []string{"hello-00002", "hello-00003"} {
		s.configuration(bad)
		s.until("a rollout to "+bad, func(r *servingv1.Route) bool {
			return shown(r) == fmt.Sprintf("hello-00001=59 %s=1 hello-00001=40 preview%s=0", bad, bad)
		})
		s.until(bad+" goes back", func(r *servingv1.Route) bool {
			return condition(r, "AllTrafficAssigned") == "False WentBack" && condition(r, "IngressReady") == "True " &&
				shown(r) == fmt.Sprintf("hello-00001=60 hello-00001=40 preview%s=0", bad)
		})
	}
}

// Who looks for what is wrong finds the revision that went back at its tag. A tag that has a part
// of the requests, or all, is no place to look.
func TestATagWithoutAPartStaysOnTheRevisionThatWentBack(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutOverruleAnnotation: "back hello-00002"}, []string{"current:latest=100", "next:latest=0"}, nobody)
	s.configuration("hello-00002")
	s.until("it goes back", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "False WentBack" && condition(r, "IngressReady") == "True " &&
			shown(r) == "currenthello-00001=100 nexthello-00002=0"
	})
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "promote hello-00002"})
	s.until("it is promoted", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "currenthello-00002=100 nexthello-00002=0"
	})
}

// The autoscaler has to know of a rollout before requests go to the new revision, or it misses the
// first of them.
func TestTheAutoscalerIsAskedBeforeTheFirstPercent(t *testing.T) {
	var asked atomic.Int32
	s := setThrough(t, func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.URL.Path, "/apis/"+viewv1alpha1.Group+"/") {
				asked.Add(1)
			}
			return next.RoundTrip(r)
		})
	})
	s.judged(map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%"}, []string{"latest=100"}, nobody)
	if n := asked.Load(); n != 0 {
		t.Errorf("asked %d times without a rollout", n)
	}
	s.lag.Store(true)
	s.configuration("hello-00002")
	eventually.True(t, "it is asked twice", func() bool { return asked.Load() >= 2 })
	for name := range s.store.Versions(httpRoutes, labels.Everything()) {
		namespace, short, _ := strings.Cut(name, "/")
		if state := s.store.Get(httpRoutes, namespace, short).GetAnnotations()[names.RolloutAnnotation]; strings.Contains(state, "hello-00002") {
			t.Errorf("%s has the new revision already: %s", name, state)
		}
	}
	s.lag.Store(false)
	s.until("the rollout is judged", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "requests to the new revision failed") && shown(r) == "hello-00001=99 hello-00002=1"
	})
}

// A guard without a duration takes one. A good revision gets there.
func TestAGuardWithoutADurationHasOne(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutGuardAnnotation: "on"}, []string{"latest=100"}, nobody)
	s.configuration("hello-00002")
	s.until("the rollout is under way", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && shown(r) == "hello-00001=99 hello-00002=1"
	})
	snapshot, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": ""}})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		own, guard, steps string
		setting           time.Duration
		want              string
	}{
		{"0s", "off", "", 0, "0s []"},
		{"0s", "on", "", 0, "2m0s []"},
		{"0s", "on", "", time.Minute, "1m0s []"},
		{"1h", "on", "", time.Minute, "1h0m0s []"},
		{"0s", "off", "1% 30s, 10%", 0, "2m0s [{1 30s 0} {10 1m0s 0}]"},
		{"10m", "on", "10% requests>7, 50%", 0, "10m0s [{10 5m0s 7} {50 5m0s 0}]"},
		{"10m", "off", "10%, 50%", 0, "10m0s [{10 5m0s 0} {50 5m0s 0}]"},
		{"10m", "on", "0% 1h requests>7, 50%", 0, "10m0s [{0 1h0m0s 7} {50 5m0s 0}]"},
	} {
		snapshot.Network.RolloutDuration = row.setting
		route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			names.RolloutDurationAnnotation: row.own, names.RolloutGuardAnnotation: row.guard, names.RolloutStepsAnnotation: row.steps}}}
		if row.steps == "" {
			delete(route.Annotations, names.RolloutStepsAnnotation)
		}
		if m, err := mannerOf(route, snapshot); err != nil || fmt.Sprint(m.duration, " ", m.stages) != row.want {
			t.Errorf("%+v: %v %v, %v", row, m.duration, m.stages, err)
		}
	}
}

func TestAGoodRevisionGetsAllAndADeletedOneHoldsNothingUp(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "4s", names.RolloutGuardAnnotation: "errors<1%"}, []string{"latest=100"}, nobody)
	s.configuration("hello-00002")
	s.until("the second has all", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00002=100"
	})
	s.patch(map[string]string{names.RolloutDurationAnnotation: "10m"})
	s.configuration("hello-00003")
	s.until("a rollout to the third", func(r *servingv1.Route) bool { return shown(r) == "hello-00002=99 hello-00003=1" })
	s.store.Remove(revisions, "ns", "hello-00002")
	s.until("the older one is deleted", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00003=100"
	})
}

// patch sets annotations of the Route.
func (s *stage) patch(annotations map[string]string) {
	s.t.Helper()
	r := &servingv1.Route{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(s.store.Get(routes, "ns", "hello").Object, r); err != nil {
		s.t.Fatal(err)
	}
	for key, value := range annotations {
		r.Annotations[key] = value
	}
	s.put(routes, "serving.knative.dev/v1", "Route", r)
}

// A preview that fails waits for a person, and no request of others reaches it. One that does well
// goes on.
func TestAPreviewThatFailsWaitsForAPerson(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutGuardAnnotation: "errors<1%", names.RolloutStepsAnnotation: "0% 1s requests>150, 50% 1s"},
		[]string{"latest=100", "next:latest=0"}, func(revision string) uint64 { return map[string]uint64{"hello-00002": 50}[revision] })
	s.configuration("hello-00002")
	s.until("it waits", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && condition(r, "AllTrafficAssigned") == "True " &&
			strings.Contains(r.Status.GetCondition("IngressReady").Message, "requests by the tag of the new revision failed, more than it may") &&
			shown(r) == "hello-00001=100 nexthello-00002=0"
	})
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "promote hello-00002"})
	s.until("it is promoted", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00002=100 nexthello-00002=0"
	})
	s.configuration("hello-00003")
	s.until("the next one is a preview", func(r *servingv1.Route) bool { return shown(r) == "hello-00002=100 nexthello-00003=0" })
	s.until("it goes on", func(r *servingv1.Route) bool { return shown(r) == "hello-00002=50 hello-00003=50 nexthello-00003=0" })
	s.until("it has all", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00003=100 nexthello-00003=0"
	})
}

// What a person says counts before the judge, and only of the latest revision.
func TestAPersonOverrulesTheJudge(t *testing.T) {
	s := set(t)
	var bad atomic.Bool
	s.judged(map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%"}, []string{"latest=100"}, func(revision string) uint64 {
		if revision == "hello-00002" && bad.Load() {
			return 100
		}
		return 0
	})
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "back hello-00003"})
	s.configuration("hello-00002")
	s.until("a word about another revision means nothing", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && shown(r) == "hello-00001=99 hello-00002=1"
	})
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "back hello-00002"})
	s.until("it goes back", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "False WentBack" && condition(r, "IngressReady") == "True " && shown(r) == "hello-00001=100" &&
			strings.Contains(r.Status.GetCondition("Ready").GetMessage(), sentBack)
	})
	bad.Store(true)
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "promote hello-00002", names.RolloutDurationAnnotation: "8s"})
	s.until("it goes on, and nobody judges it", func(r *servingv1.Route) bool {
		return len(r.Status.Traffic) == 2 && strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "promoted by hand")
	})
	s.until("it has all", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00002=100"
	})

	// After the rollout the one before is in reserve: the labeler has to bring it back first.
	state := func(state names.RoutingState) {
		one := s.store.Get(revisions, "ns", "hello-00001")
		labels := one.GetLabels()
		labels[names.RoutingStateLabel] = string(state)
		one.SetLabels(labels)
		s.store.Put(revisions, one)
	}
	state(names.RoutingReserve)
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "back hello-00002"})
	s.until("the one in reserve is waited for", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "Unknown RevisionMissing" && shown(r) == "hello-00002=100"
	})
	state(names.RoutingActive)
	s.until("it is back", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "False WentBack" && shown(r) == "hello-00001=100"
	})
}

// The only revision has nowhere to go back to. The next one gets its requests in steps as well.
func TestTheOnlyRevisionDoesNotGoBack(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%", names.RolloutOverruleAnnotation: "back hello-00001"},
		[]string{"latest=100"}, nobody)
	s.configuration("hello-00002")
	s.until("the next one begins with one percent", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && shown(r) == "hello-00001=99 hello-00002=1"
	})
	if why := s.store.Get(revisions, "ns", "hello-00001").GetAnnotations()[names.WentBackAnnotation]; why != "" {
		t.Errorf("the only one is marked: %s", why)
	}
}

// Who names Revisions in the template can return to an older one, after a rollout too. That goes
// back, too, to the newer one that has requests.
func TestAReturnToAnOlderRevisionGoesBack(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "4s", names.RolloutGuardAnnotation: "starts<1h"}, []string{"latest=100"}, nobody)
	s.configuration("hello-00002")
	s.until("a rollout", func(r *servingv1.Route) bool {
		return shown(r) == "hello-00002=100" && condition(r, "Ready") == "True "
	})
	s.patch(map[string]string{names.RolloutDurationAnnotation: "10m"})
	s.configuration("hello-00001")
	s.until("the return", func(r *servingv1.Route) bool { return shown(r) == "hello-00002=99 hello-00001=1" })
	s.patch(map[string]string{names.RolloutOverruleAnnotation: "back hello-00001"})
	s.until("it goes back", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "False WentBack" && condition(r, "IngressReady") == "True " && shown(r) == "hello-00002=100"
	})
}

// Who named the good revision for a while, and follows the latest one again, has that one judged.
// The status says what is wanted before the gateways get it, so it does not tell what served.
func TestTheLatestRevisionIsJudgedAfterANamedOne(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "10m", names.RolloutGuardAnnotation: "errors<1%"}, []string{"good:hello-00001=100", "latest=0"},
		func(revision string) uint64 { return map[string]uint64{"hello-00002": 100}[revision] })
	s.configuration("hello-00002")
	s.until("it is the latest one", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "goodhello-00001=100 hello-00002=0"
	})
	s.route("latest=100", "good:hello-00001=0")
	s.until("it begins with one percent", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && shown(r) == "hello-00001=99 hello-00002=1 goodhello-00001=0"
	})
	s.until("it goes back", func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "False WentBack" && shown(r) == "hello-00001=100 goodhello-00001=0"
	})
	s.patch(map[string]string{names.RolloutGuardAnnotation: "off"})
	s.route("hello-00001=100")
	s.until("the good one is named", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00001=100"
	})
	s.configuration("hello-00003")
	s.route("latest=100")
	s.until("without a guard it has all at once", func(r *servingv1.Route) bool { return shown(r) == "hello-00003=100" })
}

// Ebb's autoscaler does not know the pods of another class. Such a rollout would stand still for
// ever, so it goes by the clock, and says why.
func TestARolloutOfAnotherClassGoesByTheClock(t *testing.T) {
	s := set(t)
	s.judged(map[string]string{names.RolloutDurationAnnotation: "8s", names.RolloutGuardAnnotation: "errors<1%"}, []string{"latest=100"}, nobody)
	one := s.store.Get(revisions, "ns", "hello-00002")
	one.SetAnnotations(map[string]string{names.ClassAnnotation: names.ClassHPA})
	s.store.Put(revisions, one)
	s.configuration("hello-00002")
	s.until("it says why", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "hello-00002 has the autoscaler class "+names.ClassHPA)
	})
	s.until("it has all", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && shown(r) == "hello-00002=100"
	})
}
