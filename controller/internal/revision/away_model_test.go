package revision

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// The model: one revision, its Deployment, the status of its PodAutoscaler, a controller whose
// caches are as old as they like, and an autoscaler. What runs is what decides whether there is to
// be a Deployment, and with how many replicas; the autoscaler does what its writer does
// (autoscaler/internal/act). Every order of these events is explored: load that comes and goes,
// hours that pass, news that reach the controller, its reconciles and the arrival of their writes,
// also after another controller has taken over, the autoscaler's calls and its restart, a
// Deployment that a user deletes, and the setting.
type awayWorld struct {
	// What the API server has.
	made    madeDeployment
	status  writtenStatus
	hours   int
	kept    bool // the setting is off
	uids    int
	deleted bool // with replicas

	// What the controller has seen, and its writes on their way: the second one is of a controller
	// that is gone.
	seen       madeDeployment
	seenStatus writtenStatus
	flying     [2]childWrite

	// The autoscaler: what the load asks for, what was ordered, -1 if that is not known, and the
	// order under way.
	load, ordered int32
	order         scaleOrder

	flips, mishaps int
}

type madeDeployment struct {
	there        bool
	uid, version int
	replicas     int32
}

// writtenStatus is what the PodAutoscaler says: how many pods are wanted and, if none, since when.
type writtenStatus struct {
	desired int32
	since   int
}

type verb uint8

const (
	nothing verb = iota
	creates
	deletes
)

type childWrite struct {
	what     verb
	of       madeDeployment
	replicas int32
}

type scaleOrder struct {
	pending  bool
	from, to int32
	owes     bool // the status comes next
	again    bool // and then another attempt
}

// awayFences are the protections. The test shows that without any one of them something breaks.
type awayFences struct{ version, told bool }

// answer is what the code says to a controller that sees such a status: whether there is to be a
// Deployment, and with how many replicas it would be made.
type answer struct {
	needed   bool
	replicas int32
}

type question struct {
	writtenStatus
	hours int
	kept  bool
}

var answers = map[question]answer{} // it is asked millions of times

func (q question) answer() answer {
	if a, ok := answers[q]; ok {
		return a
	}
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(hour int) time.Time { return began.Add(time.Duration(hour) * time.Hour) }
	s := settings.Default()
	if !q.kept {
		s.Deployment.RetentionPeriod = time.Hour
	}
	rev, pa := &servingv1.Revision{}, autoscalerThatSays(q.writtenStatus, at(q.since))
	wait, ok := awayAfter(rev, observation{now: at(q.hours), autoscaler: pa}, s)
	a := answer{!ok || wait > 0, initialReplicas(rev, pa, s)}
	answers[q] = a
	return a
}

func autoscalerThatSays(status writtenStatus, since time.Time) *autoscalingv1alpha1.PodAutoscaler {
	pa := &autoscalingv1alpha1.PodAutoscaler{}
	pa.Status.InitializeConditions()
	pa.Status.MarkScaleTargetInitialized()
	pa.Status.DesiredScale, pa.Status.ActualScale = &status.desired, ptr.To(int32(0))
	if pa.Status.MarkInactive("NoTraffic", ""); status.desired > 0 {
		pa.Status.MarkActivating("Queued", "")
	}
	for i := range pa.Status.Conditions {
		pa.Status.Conditions[i].LastTransitionTime = apis.VolatileTime{Inner: metav1.NewTime(since)}
	}
	return pa
}

func (w *awayWorld) pods() int32 {
	if w.made.there {
		return w.made.replicas
	}
	return 0
}

func (w *awayWorld) say(desired int32) {
	if w.status.desired != desired {
		w.status = writtenStatus{desired, w.hours}
	}
}

// reconcile decides what the controller writes.
func (w *awayWorld) reconcile() bool {
	if w.flying[0].what != nothing {
		return false
	}
	switch a := (question{w.seenStatus, w.hours, w.kept}).answer(); {
	case a.needed && !w.seen.there:
		w.flying[0] = childWrite{what: creates, replicas: a.replicas}
	case !a.needed && w.seen.there && w.seen.replicas == 0:
		w.flying[0] = childWrite{what: deletes, of: w.seen}
	default:
		return false
	}
	return true
}

func (w *awayWorld) arrive(i int, f awayFences) bool {
	write := w.flying[i]
	w.flying[i] = childWrite{}
	switch {
	case write.what == creates && !w.made.there:
		w.uids++
		w.made = madeDeployment{there: true, uid: w.uids, replicas: write.replicas}
	case write.what == deletes && w.made.there && w.made.uid == write.of.uid && (w.made.version == write.of.version || !f.version):
		w.deleted = w.deleted || w.made.replicas > 0
		w.made = madeDeployment{}
	}
	return write.what != nothing
}

// scale is one attempt of the autoscaler's order.
func (w *awayWorld) scale(f awayFences) bool {
	o := &w.order
	if !o.pending || o.owes {
		return false
	}
	if o.from < 0 {
		if o.from = w.pods(); o.from == o.to {
			o.owes, o.again = true, false
			return true
		}
	}
	switch {
	case !w.made.there:
		if !f.told {
			return false
		}
		o.owes, o.again = true, o.to > 0
	case w.made.replicas == o.from:
		w.made.replicas, w.made.version = o.to, w.made.version+1
		*o = scaleOrder{} // the status is held
	case w.made.replicas == o.to:
		*o = scaleOrder{}
	default:
		w.ordered, *o = w.made.replicas, scaleOrder{}
	}
	return true
}

func (w *awayWorld) decide() bool {
	if w.ordered == w.load {
		return false
	}
	if !w.order.pending {
		w.order.from = w.ordered
	}
	w.order = scaleOrder{pending: true, from: w.order.from, to: w.load}
	w.ordered = w.load
	return true
}

func awayActions(f awayFences) map[string]func(w *awayWorld) bool {
	return map[string]func(w *awayWorld) bool{
		"load comes or goes": func(w *awayWorld) bool {
			w.flips++
			w.load = 1 - w.load
			return w.flips <= 3
		},
		"an hour passes": func(w *awayWorld) bool { w.hours++; return w.hours <= 2 },
		"the setting changes": func(w *awayWorld) bool {
			w.kept = !w.kept
			return w.mishap()
		},
		"a user deletes the Deployment": func(w *awayWorld) bool {
			was := w.made.there
			w.made = madeDeployment{}
			return was && w.mishap()
		},
		"the controller sees the Deployment": func(w *awayWorld) bool {
			was := w.seen
			w.seen = w.made
			return was != w.seen
		},
		"the controller sees the status": func(w *awayWorld) bool {
			was := w.seenStatus
			w.seenStatus = w.status
			return was != w.seenStatus
		},
		"the controller reconciles":    (*awayWorld).reconcile,
		"its write arrives":            func(w *awayWorld) bool { return w.arrive(0, f) },
		"the write of the old arrives": func(w *awayWorld) bool { return w.arrive(1, f) },
		"another controller takes over": func(w *awayWorld) bool {
			w.flying = [2]childWrite{{}, w.flying[0]}
			return w.mishap()
		},
		"the autoscaler decides":       (*awayWorld).decide,
		"the autoscaler scales":        func(w *awayWorld) bool { return w.scale(f) },
		"the autoscaler writes status": func(w *awayWorld) bool { return w.tell() },
		"the autoscaler compares":      (*awayWorld).compare,
		"the autoscaler restarts": func(w *awayWorld) bool {
			if w.order, w.ordered = (scaleOrder{}), -1; w.pods() == w.status.desired {
				w.ordered = w.status.desired
			}
			return w.mishap()
		},
	}
}

// mishap bounds how many things of that kind happen in all.
func (w *awayWorld) mishap() bool {
	w.mishaps++
	return w.mishaps <= 2
}

// compare orders again what the pods do not show.
func (w *awayWorld) compare() bool {
	if w.order.pending || w.ordered != w.load || w.pods() == w.ordered {
		return false
	}
	w.order = scaleOrder{pending: true, from: w.pods(), to: w.ordered}
	return true
}

// tell writes the status: that of an order, or one that was held.
func (w *awayWorld) tell() bool {
	o := &w.order
	switch {
	case o.owes:
		w.say(o.to)
		if o.owes = false; !o.again {
			*o = scaleOrder{}
		}
	case !o.pending && w.ordered == w.load && w.status.desired != w.ordered:
		w.say(w.ordered)
	default:
		return false
	}
	return true
}

// settled is the world after everybody has done what there is to do, and whether that ends.
func (w awayWorld) settled(f awayFences) (awayWorld, bool) {
	for range 100 {
		before := w
		w.arrive(1, f)
		w.arrive(0, f)
		w.seen, w.seenStatus = w.made, w.status
		w.reconcile()
		w.decide()
		w.scale(f)
		w.tell()
		w.compare()
		if w == before {
			return w, true
		}
	}
	return w, false
}

// wrong says what of a world is not as it has to be, now or once nothing happens any more.
func (w awayWorld) wrong(f awayFences) string {
	if w.deleted {
		return "a Deployment with replicas is deleted"
	}
	end, ends := w.settled(f)
	switch {
	case !ends:
		return "it never comes to rest"
	case end.deleted:
		return "later a Deployment with replicas is deleted"
	case end.status.desired != end.load, end.pods() != end.load:
		return fmt.Sprintf("the load asks for %d pods, the status says %d, and there are %d", end.load, end.status.desired, end.pods())
	}
	end.kept = false
	end.hours += 2
	if later, ends := end.settled(f); !ends || later.made.there != (later.load > 0) || later.pods() != later.load {
		return fmt.Sprintf("hours later, the load asks for %d pods, and the Deployment is %+v", later.load, later.made)
	}
	return ""
}

// explore returns the events that lead to a fault, and how many states there are.
func explore(f awayFences) (fault string, states int) {
	type step struct {
		from  int
		event string
	}
	actions := awayActions(f)
	events := slices.Sorted(maps.Keys(actions))
	var do []func(*awayWorld) bool
	for _, event := range events {
		do = append(do, actions[event])
	}
	began := awayWorld{made: madeDeployment{there: true, uid: 1}, uids: 1}
	began.seen = began.made
	worlds, steps, known, judged := []awayWorld{began}, []step{{-1, ""}}, map[awayWorld]bool{began: true}, map[awayWorld]bool{}
	for i := 0; i < len(worlds); i++ {
		for e, event := range events {
			next := worlds[i]
			if !do[e](&next) || known[next] {
				continue
			}
			known[next] = true
			worlds, steps = append(worlds, next), append(steps, step{i, event})
			core := next
			core.flips, core.mishaps = 0, 0 // what comes after the last event does not depend on them
			if judged[core] {
				continue
			}
			judged[core] = true
			if why := core.wrong(f); why != "" {
				path := []string{why}
				for at := len(steps) - 1; at > 0; at = steps[at].from {
					path = append(path, steps[at].event)
				}
				slices.Reverse(path)
				return strings.Join(path, "; "), len(worlds)
			}
		}
	}
	return "", len(worlds)
}

func TestARevisionWithoutDeploymentGetsOneInEveryOrder(t *testing.T) {
	fault, states := explore(awayFences{true, true})
	if fault != "" {
		t.Error(fault)
	}
	t.Logf("%d states", states)
	for what, f := range map[string]awayFences{"deletes whatever version": {told: true}, "does not tell the controller": {version: true}} {
		fault, states := explore(f)
		if fault == "" {
			t.Errorf("whoever %s breaks nothing in %d states", what, states)
		}
		t.Logf("whoever %s: %s", what, fault)
	}
}
