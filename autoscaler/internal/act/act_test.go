package act

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	ebbfake "ebb.dev/ebb/api/client/versioned/fake"
	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/autoscaler/zero"
	"ebb.dev/ebb/wire"
)

var key = loop.Key{Namespace: "default", Name: "hello-00001"}

// cluster records what a Writer did to a cluster that holds one revision.
type cluster struct {
	mutex    sync.Mutex
	calls    []string
	failures int // how many of the next scale writes fail
	scales   map[string]int32
	lost     atomic.Bool // another replica owns all revisions
	frozen   atomic.Bool // the lease has run out, and nobody has said so
	found    []int32     // what the loop was told
	pa       *v1alpha1.PodAutoscaler
	kube     *fake.Clientset
	client   *ebbfake.Clientset
	events   *record.FakeRecorder
}

func (c *cluster) Owns(loop.Key) bool     { return !c.lost.Load() }
func (c *cluster) MayWrite(loop.Key) bool { return !c.lost.Load() && !c.frozen.Load() }

// replicasOf takes a Deployment that no test has set for one that is as every order expects.
func (c *cluster) replicasOf(name string) int32 {
	if n, ok := c.scales[name]; ok {
		return n
	}
	return anyScale
}

const anyScale = -1

// applyScale does what the API server does with a patch of a Scale, with the library that it uses.
func applyScale(patch []byte, replicas int32) (int32, error) {
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return 0, err
	}
	if replicas == anyScale {
		operations = operations[1:]
	}
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	before, err := json.Marshal(scale)
	if err != nil {
		return 0, err
	}
	after, err := operations.Apply(before)
	if err != nil {
		return 0, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
	}
	scale = &autoscalingv1.Scale{}
	err = json.Unmarshal(after, scale)
	return scale.Spec.Replicas, err
}

func (c *cluster) note(format string, arguments ...any) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.calls = append(c.calls, fmt.Sprintf(format, arguments...))
}

func (c *cluster) done() []string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	all := c.calls
	c.calls = nil
	return all
}

func play(t *testing.T, script func(t *testing.T, c *cluster, w *Writer)) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{scales: map[string]int32{"hello-00001-deployment": 1}, events: record.NewFakeRecorder(100), pa: &v1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "u1"}}}
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "hello-00001-deployment"}}
		c.kube = fake.NewClientset(deployment)
		c.kube.PrependReactor("patch", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
			patch := a.(clienttesting.PatchAction)
			c.mutex.Lock()
			fail := c.failures > 0
			if fail {
				c.failures--
			}
			c.mutex.Unlock()
			if fail {
				return true, nil, errors.New("the API server is away")
			}
			c.mutex.Lock()
			replicas, err := applyScale(patch.GetPatch(), c.replicasOf(patch.GetName()))
			if err == nil {
				c.scales[patch.GetName()] = replicas
			}
			c.mutex.Unlock()
			if err != nil {
				return true, nil, err
			}
			c.note("%s %s %d", patch.GetSubresource(), patch.GetName(), replicas)
			return true, deployment, nil
		})
		c.kube.PrependReactor("get", "deployments", func(a clienttesting.Action) (bool, runtime.Object, error) {
			c.note("get %s", a.GetSubresource())
			c.mutex.Lock()
			defer c.mutex.Unlock()
			return true, &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: c.replicasOf(a.(clienttesting.GetAction).GetName())}}, nil
		})
		client := ebbfake.NewSimpleClientset(c.pa)
		c.client = client
		client.PrependReactor("patch", "podautoscalers", func(a clienttesting.Action) (bool, runtime.Object, error) {
			patch := a.(clienttesting.PatchAction)
			var body struct {
				Metadata struct{ UID string }
				Status   v1alpha1.PodAutoscalerStatus
			}
			if err := json.Unmarshal(patch.GetPatch(), &body); err != nil || body.Metadata.UID != "u1" {
				t.Errorf("patch %s: %v", patch.GetPatch(), err)
			}
			s := body.Status
			c.note("%s want %d, %d ready, %s, active %s", patch.GetSubresource(), *s.DesiredScale, *s.ActualScale, s.Mode, s.GetCondition(v1alpha1.PodAutoscalerConditionActive).Status)
			c.mutex.Lock()
			next := c.pa.DeepCopy()
			next.Status = s
			c.pa = next
			c.mutex.Unlock()
			return true, next, nil
		})
		get := func(namespace, name string) *v1alpha1.PodAutoscaler {
			c.mutex.Lock()
			defer c.mutex.Unlock()
			return c.pa
		}
		w := New(c.kube, client.AutoscalingV1alpha1(), get, c, nil, c.events, slog.New(slog.NewTextHandler(io.Discard, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		end := make(chan struct{})
		go func() {
			w.Run(ctx, func(_ loop.Key, _ types.UID, replicas int32) {
				c.mutex.Lock()
				defer c.mutex.Unlock()
				c.found = append(c.found, replicas)
			})
			close(end)
		}()
		script(t, c, w)
		cancel()
		<-end
	})
}

func order(from, to int32) loop.Order {
	return loop.Order{Key: key, UID: "u1", Target: loop.Target{APIVersion: "apps/v1", Kind: "Deployment", Name: "hello-00001-deployment"},
		Since: time.Now(), Outcome: revision.Outcome{Scale: true, From: from, Replicas: to,
			Status:      revision.Status{Generation: 3, Active: zero.Yes, Initialized: true, Populated: true, Desired: to, Actual: 1},
			Explanation: revision.Explanation{Decision: decide.Decision{Rule: decide.RuleStable, Desired: to}, Step: zero.Step{Want: to}}}}
}

func expect(t *testing.T, c *cluster, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := c.done(); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAnOrderWritesScaleThenStatusThenAnEvent(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		w.Act(order(1, 5))
		expect(t, c, "scale hello-00001-deployment 5", "status want 5, 1 ready, Serve, active True")
		if got := <-c.events.Events; !strings.HasPrefix(got, "Normal ScaledUp from 1 to 5 pods by rule stable-window: ") {
			t.Errorf("event %q", got)
		}
		s := c.pa.Status
		if !s.IsReady() || s.ServiceName != "hello-00001" || s.MetricsServiceName != "hello-00001-private" || s.ObservedGeneration != 3 ||
			s.Decision == nil || s.Decision.Rule != "stable-window" || s.Decision.Desired != 5 {
			t.Errorf("status %+v", s)
		}
		raised := w.Raised(order(1, 5).Key)
		if raised.IsZero() || raised.After(time.Now()) {
			t.Errorf("raised at %s", raised)
		}
		// The same again changes nothing, so nothing is written.
		same := order(5, 5)
		same.Scale = false
		w.Act(same)
		expect(t, c)
		if len(c.events.Events) != 0 {
			t.Errorf("event %q without a change of scale", <-c.events.Events)
		}
	})
}

// What was learned is written once, and is not taken away by who has not learned anything yet.
func TestWhatWasLearnedStandsInTheStatus(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		o := order(1, 1)
		o.Scale, o.Status.Learned = false, decide.Learned{Concurrency: 9.123456789, Throughput: 120, At: 1_700_000_000}
		w.Act(o)
		expect(t, c, "status want 1, 1 ready, Serve, active True")
		want := v1alpha1.LearnedTarget{Time: metav1.Unix(1_700_000_000, 0), Concurrency: "9.12346", Throughput: "120"}
		if l := c.pa.Status.Learned; l == nil || !l.Time.Equal(&want.Time) || l.Concurrency != want.Concurrency || l.Throughput != want.Throughput {
			t.Errorf("%+v, want %+v", l, want)
		}
		w.Act(o)
		expect(t, c)
		o.Status.Learned, o.Status.Actual = decide.Learned{}, 2
		w.Act(o)
		expect(t, c, "status want 1, 2 ready, Serve, active True")
		if l := c.pa.Status.Learned; l == nil || l.Concurrency != want.Concurrency {
			t.Errorf("it was taken away: %+v", l)
		}
	})
}

// A patch leaves alone what it does not name, so that an input which is left out would keep its
// value of an earlier decision.
func TestEveryDecisionNamesEveryInput(t *testing.T) {
	var before map[string]string
	for _, o := range []decide.Observation{{}, {Known: true, Missing: true, Queued: 3, Stable: 2, Panic: 1}, {Known: true}} {
		inputs := Decision(&revision.Explanation{Decision: decide.Decision{Observation: o}}).Inputs
		if before != nil && !slices.Equal(slices.Sorted(maps.Keys(inputs)), slices.Sorted(maps.Keys(before))) {
			t.Errorf("inputs %v, of another decision %v", inputs, before)
		}
		before = inputs
	}
	if before["queued"] != "0" || before["missing"] != "false" || before["stable"] != "0" {
		t.Errorf("%v", before)
	}
}

func TestAFailedOrderIsTriedAgainUntilALaterOneReplacesIt(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		c.failures = 3
		w.Act(order(1, 5))
		expect(t, c)
		time.Sleep(time.Second) // virtual: 50 + 100 + 200 ms
		expect(t, c, "scale hello-00001-deployment 5", "status want 5, 1 ready, Serve, active True")
		c.failures = 1000
		w.Act(order(5, 6))
		time.Sleep(time.Minute)
		expect(t, c)
		c.mutex.Lock()
		c.failures = 0
		c.mutex.Unlock()
		w.Act(order(6, 7)) // news: not after the remaining seconds of the retry
		expect(t, c, "scale hello-00001-deployment 7", "status want 7, 1 ready, Serve, active True")
		time.Sleep(time.Minute)
		expect(t, c)
	})
}

// Requests may wait for a raise, so it is tried again often enough to be written as soon as the API
// server is back.
func TestARaiseIsWrittenAsSoonAsTheServerIsBack(t *testing.T) {
	for kind, c := range map[string]struct {
		from, to int32
		within   time.Duration
	}{"a wake": {0, 1, lastRaise}, "a raise": {1, 2, lastRaise}, "a scale-down": {2, 1, lastRetry}} {
		t.Run(kind, func(t *testing.T) {
			play(t, func(t *testing.T, cl *cluster, w *Writer) {
				cl.mutex.Lock()
				cl.failures, cl.scales["r"] = 1_000_000, c.from
				cl.mutex.Unlock()
				w.Act(orderOf("r", c.from, c.to))
				time.Sleep(5 * time.Minute) // virtual
				cl.mutex.Lock()
				cl.failures = 0
				cl.mutex.Unlock()
				time.Sleep(c.within)
				synctest.Wait()
				if calls := cl.done(); !scaled(calls, "r", int(c.to)) {
					t.Errorf("%s after the server was back: %q", c.within, calls)
				}
			})
		})
	}
}

func TestWhatWasToBeWrittenIsNotLostToAStatus(t *testing.T) {
	older, newer := order(1, 5), order(5, 5)
	newer.Scale = false
	newer.Status.Actual = 2
	older.Urgent, older.Verify = true, true
	got := merge(older, newer)
	if !got.Scale || got.From != 1 || got.Replicas != 5 || !got.Urgent || !got.Verify || got.Status.Actual != 2 || got.Since != older.Since {
		t.Errorf("merged %+v", got)
	}
	newer.UID = "another object of that name"
	if got := merge(older, newer); got.Scale {
		t.Error("the order of a deleted object came over to its successor")
	}
}

func TestVerifyWritesOnlyWhatDiffers(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		o := order(1, 1)
		o.Scale, o.Verify = false, true
		w.Act(o)
		expect(t, c, "get scale", "status want 1, 1 ready, Serve, active True")
		c.mutex.Lock()
		c.scales["hello-00001-deployment"] = 4
		c.mutex.Unlock()
		w.Act(o)
		expect(t, c, "get scale", "scale hello-00001-deployment 1")
	})
}

// A service that rests after each request tells so once in a while. What it does with pods it tells
// each time.
func TestGoingToZeroAndBackIsToldOnceInAWhile(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		c.scales["hello-00001-deployment"] = 0
		told := func() (n int) {
			synctest.Wait()
			for len(c.events.Events) > 0 {
				<-c.events.Events
				n++
			}
			return n
		}
		for round, want := range []int{2, 0, 0} {
			w.Act(order(0, 1))
			synctest.Wait()
			w.Act(order(1, 0))
			if got := told(); got != want {
				t.Errorf("round %d: %d events, want %d", round, got, want)
			}
			time.Sleep(tellAgain / 3)
		}
		w.Act(order(0, 1))
		synctest.Wait()
		w.Act(order(1, 2))
		synctest.Wait()
		w.Act(order(2, 1))
		if got := told(); got != 3 {
			t.Errorf("%d events, want 3", got)
		}
	})
}

// While a revision wakes, only the scale is written.
func TestAHeldStatusIsNotWritten(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		o := order(1, 5)
		o.Held = true
		w.Act(o)
		expect(t, c, "scale hello-00001-deployment 5")
	})
}

// A status waits, or could not be written, when an order comes whose status is held. The loop takes
// the first one for told, so it may never order it again.
func TestAHeldStatusDoesNotKeepBackAnEarlierOne(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		refused := 0
		c.client.PrependReactor("patch", "podautoscalers", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refused++; refused > 1 {
				return false, nil, nil
			}
			return true, nil, apierrors.NewConflict(schema.GroupResource{}, "", errors.New("somebody else wrote"))
		})
		w.Act(order(1, 1))
		expect(t, c, "scale hello-00001-deployment 1")
		held := order(1, 0)
		held.Held = true
		w.Act(held)
		expect(t, c, "scale hello-00001-deployment 0", "status want 0, 1 ready, Serve, active True")
	})
}

// After a restart in which pods and status differ nobody knows what was asked for last; an event is
// of a change.
func TestAnUnknownScaleIsReadBeforeItIsSaidToChange(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		w.Act(order(-1, 1))
		expect(t, c, "get scale", "status want 1, 1 ready, Serve, active True")
		if len(c.events.Events) != 0 || w.Written.Load() != 0 {
			t.Errorf("%d writes of a scale that was there, %d events", w.Written.Load(), len(c.events.Events))
		}
		w.Act(order(-1, 3))
		expect(t, c, "get scale", "scale hello-00001-deployment 3", "status want 3, 1 ready, Serve, active True")
		if got := <-c.events.Events; !strings.HasPrefix(got, "Normal ScaledUp from 1 to 3 pods by rule ") {
			t.Errorf("event %q", got)
		}
		w.Act(order(-1, 2))
		expect(t, c, "get scale", "scale hello-00001-deployment 2", "status want 2, 1 ready, Serve, active True")
		if got := <-c.events.Events; !strings.HasPrefix(got, "Normal ScaledDown from 3 to 2 pods by rule ") {
			t.Errorf("event %q", got)
		}
	})
}

func TestADeletedPodAutoscalerIsLeftAlone(t *testing.T) {
	play(t, func(t *testing.T, c *cluster, w *Writer) {
		o := order(1, 5)
		o.UID = "of its predecessor"
		w.Act(o)
		expect(t, c)
	})
}

func TestConditions(t *testing.T) {
	cases := []struct {
		behaviour                string
		status                   revision.Status
		active, initialized, sks corev1.ConditionStatus
		ready                    corev1.ConditionStatus
		reason                   string
		mode                     v1alpha1.Mode
		desiredKnown             bool
	}{
		{"pods wanted and there", revision.Status{Active: zero.Yes, Initialized: true, Populated: true, Desired: 2, Actual: 2}, "True", "True", "True", "True", "", v1alpha1.ModeServe, true},
		{"pods wanted and not there", revision.Status{Active: zero.Undecided, Desired: 1, Proxied: true}, "Unknown", "Unknown", "Unknown", "Unknown", zero.Queued, v1alpha1.ModeProxy, true},
		{"no pods wanted", revision.Status{Active: zero.No, ActiveReason: zero.NoTraffic, Initialized: true, Proxied: true}, "False", "True", "Unknown", "False", zero.NoTraffic, v1alpha1.ModeProxy, true},
		{"no pod came", revision.Status{Active: zero.No, ActiveReason: zero.TimedOut, Proxied: true}, "False", "Unknown", "Unknown", "False", zero.TimedOut, v1alpha1.ModeProxy, true},
		{"nothing decided yet", revision.Status{Active: zero.Undecided, Desired: -1, Proxied: true}, "Unknown", "Unknown", "Unknown", "Unknown", zero.Queued, v1alpha1.ModeProxy, false},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			pa := &v1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001"}}
			s, changed := nextStatus(pa, loop.Order{Key: key, Outcome: revision.Outcome{Status: c.status}})
			if !changed {
				t.Fatal("an empty status is no status")
			}
			status := func(kind string) corev1.ConditionStatus {
				for _, one := range s.Conditions {
					if string(one.Type) == kind {
						return one.Status
					}
				}
				return "absent"
			}
			if status("Active") != c.active || status("ScaleTargetInitialized") != c.initialized || status("SKSReady") != c.sks || status("Ready") != c.ready {
				t.Errorf("conditions %+v", s.Conditions)
			}
			if got := s.GetCondition(v1alpha1.PodAutoscalerConditionActive).Reason; got != c.reason {
				t.Errorf("reason %q, want %q", got, c.reason)
			}
			if s.Mode != c.mode || (s.DesiredScale != nil) != c.desiredKnown {
				t.Errorf("mode %s, desired %v", s.Mode, s.DesiredScale)
			}
			pa.Status = *s
			if _, changed := nextStatus(pa, loop.Order{Key: key, Outcome: revision.Outcome{Status: c.status, Explanation: revision.Explanation{Decision: decide.Decision{Time: time.Now()}}}}); changed {
				t.Error("a new decision alone is a change")
			}
		})
	}
}

func TestADesiredScaleIsNotForgotten(t *testing.T) {
	five := int32(5)
	pa := &v1alpha1.PodAutoscaler{Status: v1alpha1.PodAutoscalerStatus{DesiredScale: &five}}
	if s, _ := nextStatus(pa, loop.Order{Outcome: revision.Outcome{Status: revision.Status{Desired: -1}}}); s.DesiredScale == nil || *s.DesiredScale != 5 {
		t.Errorf("desired scale %v", s.DesiredScale)
	}
}

func podsOf(names ...string) []pods.Pod {
	var all []pods.Pod
	for i, name := range names {
		all = append(all, pods.Pod{Name: name, Started: time.Unix(int64(i), 0)})
	}
	return all
}

func TestIdlePodsGoFirst(t *testing.T) {
	cases := []struct {
		behaviour string
		ready     []pods.Pod
		inFlight  map[string]float64
		victims   int
		want      []string
	}{
		{"one long request survives", podsOf("a", "b", "c"), map[string]float64{"a": 0, "b": 1, "c": 0}, 2, []string{"c", "a"}},
		{"the least busy goes", podsOf("a", "b"), map[string]float64{"a": 5, "b": 2}, 1, []string{"b"}},
		{"of equally busy ones the youngest goes", podsOf("a", "b", "c"), map[string]float64{"a": 1, "b": 1, "c": 9}, 1, []string{"b"}},
		{"who does not answer may be too busy to", podsOf("a", "b"), map[string]float64{"b": 7}, 1, []string{"b"}},
		{"who says that it is busy goes last", podsOf("a", "b", "c"), map[string]float64{"a": 7, "b": math.Inf(1)}, 2, []string{"a", "c"}},
		{"all say that they are busy: no choice, no patch", podsOf("a", "b"), map[string]float64{"a": math.Inf(1), "b": math.Inf(1)}, 1, nil},
		{"all idle: no choice, no patch", podsOf("a", "b"), map[string]float64{"a": 0, "b": 0}, 1, nil},
		{"nobody answers: no choice, no patch", podsOf("a", "b"), nil, 1, nil},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			if got := choose(c.ready, c.inFlight, c.victims); !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func TestMarkPatchesOnceForEachPodThatGoes(t *testing.T) {
	kube := fake.NewClientset()
	for _, name := range []string{"a", "b", "c", "d"} {
		kube.Tracker().Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
	}
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	counts := revision.Counts{Ready: 4}
	c := &Costs{Kube: kube, Ready: func(loop.Key) []pods.Pod { return podsOf("a", "b", "c", "d") }, Count: func(loop.Key) revision.Counts { return counts },
		InFlight: func(context.Context, loop.Key, []pods.Pod) map[string]float64 {
			return map[string]float64{"a": 1, "b": 0, "c": 3, "d": 0}
		},
		Now: func() time.Time { return now }}
	patched := func() (n int) {
		for _, a := range kube.Actions() {
			if a.GetVerb() == "patch" {
				n++
			}
		}
		kube.ClearActions()
		return n
	}
	cost := func(name string) string {
		p, err := kube.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Annotations[deletionCost]
	}
	if err := c.Mark(t.Context(), key, 2); err != nil {
		t.Fatal(err)
	}
	if n := patched(); n != 2 || cost("b") == "" || cost("d") == "" || cost("a") != "" || cost("c") != "" {
		t.Errorf("%d patches; costs a=%q b=%q c=%q d=%q", n, cost("a"), cost("b"), cost("c"), cost("d"))
	}
	kube.ClearActions()
	counts.NotReady = 2
	if err := c.Mark(t.Context(), key, 2); err != nil || patched() != 0 {
		t.Errorf("two pods that are not ready go anyway, and others were marked: %v", err)
	}
	counts.Lost = 2
	if err := c.Mark(t.Context(), key, 2); err != nil || patched() != 2 || cost("a") != "" || cost("c") != "" {
		t.Errorf("of two lost pods Kubernetes does not know yet; costs a=%q c=%q: %v", cost("a"), cost("c"), err)
	}
	earlier := cost("b")
	counts.NotReady, counts.Lost = 0, 0
	now = now.Add(time.Minute)
	if err := c.Mark(t.Context(), key, 1); err != nil {
		t.Fatal(err)
	}
	if later := cost("d"); len(later) < len(earlier) || later <= earlier {
		t.Errorf("a mark of a minute later is %s after %s, want a lower cost", later, earlier)
	}
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestProbe(t *testing.T) {
	cases := []struct {
		behaviour string
		status    int
		body      string
		fail      error
		want      zero.Probe
	}{
		{"an activator answers", 200, "activator", nil, zero.ProbedActivator},
		{"a pod answers", 200, "queue", nil, zero.ProbedOther},
		{"something refuses", 503, "activator", nil, zero.ProbedOther},
		{"nobody answers", 0, "", errors.New("connection refused"), zero.ProbedOther},
	}
	for _, c := range cases {
		t.Run(c.behaviour, func(t *testing.T) {
			for _, h2c := range []bool{false, true} {
				p := NewProber("cluster.local")
				respond := answers(func(r *http.Request) (*http.Response, error) {
					want := "http://hello-00001.default.svc.cluster.local.:80/healthz"
					if h2c {
						want = "http://hello-00001.default.svc.cluster.local.:81/healthz"
					}
					if r.URL.String() != want || r.Header.Get(wire.HeaderNetworkProbe) != "activator" || r.UserAgent() != "Knative-Autoscaling-Probe" {
						t.Errorf("asked %s, %v", r.URL, r.Header)
					}
					if c.fail != nil {
						return nil, c.fail
					}
					return &http.Response{StatusCode: c.status, Body: io.NopCloser(strings.NewReader(c.body))}, nil
				})
				p.HTTP1, p.H2C = respond, respond
				done := make(chan zero.Probe, 1)
				p.Probe(key, h2c, func(a zero.Probe) { done <- a })
				if got := <-done; got != c.want {
					t.Errorf("h2c %v: %v, want %v", h2c, got, c.want)
				}
			}
		})
	}
}

func TestTheStatusSaysHowPodsSleep(t *testing.T) {
	for want, status := range map[string]revision.Status{
		"2 compressed, 1 frozen":            {Asleep: 3, Deep: [revision.Levels]int32{0, 1, 2}},
		"1 warm, 2 warm without node agent": {Asleep: 3, Deep: [revision.Levels]int32{3}, Alone: 2},
		"1 warm without node agent":         {Asleep: 1, Deep: [revision.Levels]int32{1}, Alone: 1},
		"1 frozen, 1 warm, 1 warm without node agent, 2 warm because the freeze failed (too late)": {
			Asleep: 5, Deep: [revision.Levels]int32{4, 1}, Alone: 1, Unfrozen: 2, FreezeFailure: "too late"},
	} {
		pa := &v1alpha1.PodAutoscaler{}
		s, _ := nextStatus(pa, loop.Order{Outcome: revision.Outcome{Status: status}})
		if s.Asleep != want || *s.AsleepReplicas != status.Asleep {
			t.Errorf("%q, %d, want %q, %d", s.Asleep, *s.AsleepReplicas, want, status.Asleep)
		}
		pa.Status = *s
		if s, _ = nextStatus(pa, loop.Order{}); s.Asleep != "0" || *s.AsleepReplicas != 0 {
			t.Errorf("once all woke: %q, %d", s.Asleep, *s.AsleepReplicas)
		}
	}
	if s, _ := nextStatus(&v1alpha1.PodAutoscaler{}, loop.Order{}); s.Asleep != "" || s.AsleepReplicas != nil {
		t.Errorf("of a revision that never sleeps: %q", s.Asleep)
	}
}

func TestTheStatusSaysWhatHindersPodsThatStart(t *testing.T) {
	pa := &v1alpha1.PodAutoscaler{}
	for _, step := range []struct {
		what    string
		startup revision.Startup
		want    string
	}{
		{"nothing", revision.Startup{}, ""},
		{"a pod has more CPU", revision.Startup{Raised: true}, ""},
		{"one is refused", revision.Startup{Reason: v1alpha1.ReasonResizeRefused, Message: "a quota", Raised: true}, "ResizeRefused: a quota"},
		{"no pod is there", revision.Startup{}, "ResizeRefused: a quota"},
		{"the next one has it", revision.Startup{Raised: true}, ""},
	} {
		s, _ := nextStatus(pa, loop.Order{Outcome: revision.Outcome{Status: revision.Status{Startup: step.startup}}})
		got := ""
		if c := s.GetCondition(v1alpha1.PodAutoscalerConditionStartupCPULimited); c.IsTrue() {
			got = c.Reason + ": " + c.Message
		}
		if got != step.want || s.GetCondition(v1alpha1.PodAutoscalerConditionReady) == nil {
			t.Errorf("%s: %q, want %q", step.what, got, step.want)
		}
		pa.Status = *s
	}
}
