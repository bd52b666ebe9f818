//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// asleep is how many pods of a service sleep, and how many are awake, as its PodAutoscaler says.
func (s *story) asleep(name string) (asleep, awake int64, err error) {
	list, err := s.Dynamic.Resource(cluster.PodAutoscalers).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + name})
	if err != nil {
		return 0, 0, err
	}
	if len(list.Items) != 1 {
		return 0, 0, fmt.Errorf("there are %d PodAutoscalers of %s", len(list.Items), name)
	}
	asleep, _, _ = unstructured.NestedInt64(list.Items[0].Object, "status", "asleepReplicas")
	awake, _, _ = unstructured.NestedInt64(list.Items[0].Object, "status", "actualScale")
	return asleep, awake, nil
}

// awaitAsleep waits until so many pods sleep and so many are awake.
func (s *story) awaitAsleep(name string, asleep, awake int64) {
	s.Helper()
	s.until(fmt.Sprintf("%d pods of %s sleep", asleep, name), func() (bool, string, error) {
		a, b, err := s.asleep(name)
		if err != nil {
			return false, err.Error(), nil
		}
		return a == asleep && b == awake, fmt.Sprintf("%d asleep, %d awake", a, b), nil
	})
}

// sleeper applies a service whose only pod sleeps, waits until it does, and returns its URL and
// pod.
func (s *story) sleeper(name string, v service) (url, pod string) {
	s.Helper()
	v.name = name
	if v.annotations == nil {
		v.annotations = map[string]string{}
	}
	v.annotations["autoscaling.ebb.dev/standby"] = "1"
	url = s.ready(name, v.manifest())
	s.awaitAsleep(name, 1, 0)
	return url, s.onlyPod(name).Name
}

func (s *story) onlyPod(name string) corev1.Pod {
	s.Helper()
	pods, err := s.Pods(s.ctx, s.namespace, name, false)
	if err != nil || len(pods) != 1 {
		s.Fatalf("%s has %d pods, want one: %v", name, len(pods), err)
	}
	return pods[0]
}

// answersFrom checks that a request is answered by a pod.
func (s *story) answersFrom(url, pod string) {
	s.Helper()
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() || reply.Header.Get("X-Pod-Name") != pod {
		s.Errorf("want an answer of pod %s, got one of %q: %v", pod, reply.Header.Get("X-Pod-Name"), reply)
	}
}

func TestAPodFallsAsleepAndWakes(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url, pod := s.sleeper("sleeper", service{})
	for range 2 {
		s.until("the pod is not ready", func() (bool, string, error) {
			found := s.onlyPod("sleeper")
			return !cluster.PodIsReady(&found), describePod(found), nil
		})
		object, err := s.Get(s.ctx, services, s.namespace, "sleeper")
		if err != nil {
			t.Fatal(err)
		}
		if !isReady(object) {
			t.Errorf("while its pod sleeps the Service is not Ready: %s", describe(object))
		}
		s.answersFrom(url, pod)
		s.until("the pod is ready again", func() (bool, string, error) {
			found := s.onlyPod("sleeper")
			return cluster.PodIsReady(&found), describePod(found), nil
		})
		s.awaitAsleep("sleeper", 1, 0)
	}
}

// counts are the numbers of the test image's page /count.
func (s *story) counts(url string) (c struct{ Requests, SleepHooks, WakeHooks, Early int }) {
	s.Helper()
	reply := probe.Get(s.ctx, s.client(), url+"/count")
	if !reply.OK() || json.Unmarshal([]byte(reply.Body), &c) != nil {
		s.Errorf("the counts: %v", reply)
	}
	return c
}

func TestAProgramIsCalledBeforeItsPodSleepsAndAfterItWoke(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url, pod := s.sleeper("hooked", service{annotations: map[string]string{
		"autoscaling.ebb.dev/standby-sleep-hook": "POST :8080/hooks/sleep 5s", "autoscaling.ebb.dev/standby-wake-hook": "/hooks/wake"}})
	s.awaitLevel("hooked-00001", "1 frozen")
	probe.Burst(s.ctx, s.client(), url, 10) // one of them wakes the pod
	if c := s.counts(url); c.SleepHooks != 1 || c.WakeHooks != 1 || c.Requests < 10 || c.Early != 0 {
		t.Errorf("the program counted %+v", c)
	}
	s.answersFrom(url, pod)
}

// awaitLevel waits until the status of a PodAutoscaler says how its pods sleep.
func (s *story) awaitLevel(revision, want string) {
	s.Helper()
	s.until(fmt.Sprintf("the pods of %s sleep as %q", revision, want), func() (bool, string, error) {
		pa, err := s.Get(s.ctx, cluster.PodAutoscalers, s.namespace, revision)
		if err != nil {
			return false, err.Error(), nil
		}
		level, _, _ := unstructured.NestedString(pa.Object, "status", "asleep")
		return level == want, level, nil
	})
}

func TestAPodWhoseHookFailsStaysAwakeAndSaysSo(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("balky", service{name: "balky", annotations: map[string]string{"autoscaling.ebb.dev/standby": "1",
		"autoscaling.ebb.dev/standby-sleep-hook": "/hooks/fail", "autoscaling.ebb.dev/standby-wake-hook": "/hooks/wake"}}.manifest())
	s.until("its PodAutoscaler has an event", func() (bool, string, error) {
		events, err := s.Kube.CoreV1().Events(s.namespace).List(s.ctx, metav1.ListOptions{FieldSelector: "reason=StandbyHookFailed"})
		if err != nil {
			return false, err.Error(), nil
		}
		return len(events.Items) > 0, fmt.Sprintf("%d events", len(events.Items)), nil
	})
	if asleep, _, err := s.asleep("balky"); asleep != 0 || err != nil {
		t.Errorf("%d pods sleep: %v", asleep, err)
	}
	if c := s.counts(url); c.WakeHooks == 0 || c.Early != 0 {
		t.Errorf("it was not told that it stays awake: %+v", c)
	}
	s.answersFrom(url, s.onlyPod("balky").Name)
}

// A program works on after its answer. Its pod stays as long as it says, no request and no Route
// needed, and goes when it is done.
func TestAProgramThatSaysThatItIsBusyKeepsItsPod(t *testing.T) {
	for name, v := range map[string]service{
		"deleted":    {},
		"asleep":     {annotations: map[string]string{"autoscaling.ebb.dev/standby": "1"}},
		"superseded": {},
	} {
		t.Run(name, func(t *testing.T) { begin(t, 4*time.Minute).keepsABusyPod(name, v) })
	}
}

func (s *story) keepsABusyPod(name string, v service) {
	s.Helper()
	if v.annotations == nil {
		v.annotations = map[string]string{}
	}
	v.name, v.annotations["autoscaling.ebb.dev/busy-for"] = name, "10m"
	url := s.ready(name, v.manifest())
	reply := probe.Get(s.ctx, s.client(), url+"/?busy=8760h")
	pod := reply.Header.Get("X-Pod-Name")
	if !reply.OK() || reply.Header.Get("Ebb-Busy") != "" {
		s.Fatalf("the client got %v %v", reply, reply.Header)
	}
	if name == "superseded" {
		v.env = map[string]string{"TEXT": "another"}
		s.ready(name, v.manifest())
	} else {
		explain := s.plugin()
		s.until("the program's word decides", func() (bool, string, error) {
			out, _ := explain("explain", name, "-o", "json")
			return strings.Contains(out, `"busy-for"`), out, nil
		})
	}
	// Without the word it would be gone: the window and the grace are 6 s each.
	select {
	case <-s.ctx.Done():
		s.Fatal(s.ctx.Err())
	case <-time.After(30 * time.Second):
	}
	found, err := s.Kube.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{})
	if err != nil || found.DeletionTimestamp != nil || !cluster.PodIsReady(found) {
		s.Fatalf("the busy pod: %v %s", err, describePod(*found))
	}
	switch name {
	case "superseded": // nobody can tell it that it is done; that it is bounded, unit tests show
		return
	case "asleep":
		probe.Get(s.ctx, s.client(), url+"/?busy=0")
		s.awaitAsleep(name, 1, 0)
	default:
		probe.Get(s.ctx, s.client(), url+"/?busy=0")
		s.awaitZero(name)
	}
}

// Who says that it is busy for a year is so for as long as the annotation allows, and a word that
// is none keeps no pod.
func TestAProgramIsBusyForAsLongAsItsAnnotationAllows(t *testing.T) {
	for name, row := range map[string]struct {
		allowed string
		words   []string
		least   time.Duration // for which the pod stays; without a word it would be gone after 12 s
	}{
		"year":    {"30s", []string{"8760h"}, 25 * time.Second},
		"garbage": {"10m", []string{"for ever", "-10m", "999999999h", "600", "10m, 10m"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, 4*time.Minute)
			manifest := service{name: name, annotations: map[string]string{"autoscaling.ebb.dev/busy-for": row.allowed}}.manifest()
			address := s.ready(name, manifest)
			for _, word := range row.words {
				if reply := probe.Get(s.ctx, s.client(), address+"/?busy="+url.QueryEscape(word)); !reply.OK() || reply.Header.Get("Ebb-Busy") != "" {
					t.Errorf("the client got %v %v", reply, reply.Header)
				}
			}
			said := time.Now()
			s.awaitZero(name)
			if stayed := time.Since(said); stayed < row.least {
				t.Errorf("the pod was gone after %s", stayed)
			}
		})
	}
}

// What bounds the word is bounded itself, whoever writes it.
func TestTheAPIServerRefusesABusyForWithoutBounds(t *testing.T) {
	s := begin(t, time.Minute)
	const busyFor, class, metric = "autoscaling.ebb.dev/busy-for", "autoscaling.knative.dev/class", "autoscaling.knative.dev/metric"
	for name, row := range map[string]struct {
		annotations map[string]string
		refused     string // why; "" for one that is taken
	}{
		"a second":              {map[string]string{busyFor: "1s"}, ""},
		"a day":                 {map[string]string{busyFor: "24h"}, ""},
		"a day and more":        {map[string]string{busyFor: "24h1s"}, "expected 1s <= 24h1s <= 24h0m0s"},
		"a year":                {map[string]string{busyFor: "8760h"}, "expected 1s <= 8760h <= 24h0m0s"},
		"more than can be said": {map[string]string{busyFor: "999999999h"}, "must be a duration"},
		"no time":               {map[string]string{busyFor: "0s"}, "expected 1s <= 0s <= 24h0m0s"},
		"less":                  {map[string]string{busyFor: "-10m"}, "expected 1s <= -10m <= 24h0m0s"},
		"garbage":               {map[string]string{busyFor: "a while"}, "must be a duration"},
		"nothing":               {map[string]string{busyFor: ""}, "must be a duration"},
		"scaled by others":      {map[string]string{busyFor: "10m", class: "hpa.autoscaling.knative.dev", metric: "cpu"}, "only the class kpa.autoscaling.knative.dev"},
	} {
		objects, err := cluster.Decode(service{name: "refused", annotations: row.annotations}.manifest())
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Dynamic.Resource(services).Namespace(s.namespace).Create(s.ctx, objects[0], metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case row.refused == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case row.refused != "" && (err == nil || !strings.Contains(err.Error(), row.refused) || !strings.Contains(err.Error(), busyFor)):
			t.Errorf("%s: %v, want %q", name, err, row.refused)
		}
	}
}

// Of two pods without a request, the one whose program works on stays. Kubernetes would rather
// delete it, because it is the newer one.
func TestTheBusyProgramOfTwoKeepsItsPod(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("worker", service{name: "worker", concurrency: 1, annotations: map[string]string{"autoscaling.ebb.dev/busy-for": "10m"}}.manifest())
	first := make(chan probe.Reply, 1)
	go func() { first <- probe.Get(s.ctx, s.client(), url+"/?sleep=15000") }()
	s.until("a second pod comes", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "worker", false)
		return len(pods) == 2, fmt.Sprintf("%d pods", len(pods)), err
	})
	second := probe.Get(s.ctx, s.client(), url+"/?busy=10m")
	old, busy := (<-first).Header.Get("X-Pod-Name"), second.Header.Get("X-Pod-Name")
	if old == "" || busy == "" || old == busy {
		t.Fatalf("the requests went to pods %q and %q", old, busy)
	}
	s.until("one pod is left", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "worker", false)
		return len(pods) == 1, fmt.Sprintf("%d pods", len(pods)), err
	})
	if left := s.onlyPod("worker").Name; left != busy {
		t.Errorf("pod %s is left, and the program of %s is busy", left, busy)
	}
}

func describePod(pod corev1.Pod) string {
	text, _ := json.Marshal(pod.Status.Conditions) // conditions are strings
	return pod.Name + " " + string(text)
}

// A frozen container answers no probe, and is not restarted for that.
func TestALivenessProbeDoesNotEndAPodThatSleeps(t *testing.T) {
	s := begin(t, 4*time.Minute)
	manifest := service{name: "probed", annotations: map[string]string{"autoscaling.ebb.dev/standby": "1"}}.manifest() + `
        livenessProbe: {httpGet: {path: /}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1}
`
	url := s.ready("probed", manifest)
	s.awaitAsleep("probed", 1, 0)
	pod := s.onlyPod("probed").Name
	timer := time.NewTimer(15 * time.Second)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		t.Fatal(s.ctx.Err())
	}
	s.answersFrom(url, pod)
	for _, status := range s.onlyPod("probed").Status.ContainerStatuses {
		if status.RestartCount > 0 {
			t.Errorf("container %s was restarted %d times", status.Name, status.RestartCount)
		}
	}
}

// With cgroup v1 a frozen process does not even die of SIGKILL, so it has to be thawed first.
func TestAPodThatIsDeletedWhileItSleepsEnds(t *testing.T) {
	for how, remove := range map[string]func(s *story, pod string) error{
		"deleted": func(s *story, pod string) error {
			return s.Kube.CoreV1().Pods(s.namespace).Delete(s.ctx, pod, metav1.DeleteOptions{})
		},
		"evicted": func(s *story, pod string) error { // as `kubectl drain` does
			return s.Kube.PolicyV1().Evictions(s.namespace).Evict(s.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: pod}})
		},
	} {
		t.Run(how, func(t *testing.T) {
			s := begin(t, 4*time.Minute)
			url, pod := s.sleeper(how, service{})
			if err := remove(s, pod); err != nil {
				t.Fatal(err)
			}
			s.until("the pod is gone", func() (bool, string, error) {
				found, err := s.Kube.CoreV1().Pods(s.namespace).Get(s.ctx, pod, metav1.GetOptions{})
				if apierrors.IsNotFound(err) {
					return true, "", nil
				}
				if err != nil {
					return false, err.Error(), nil
				}
				return false, describePod(*found), nil
			})
			if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
				t.Error(reply)
			}
		})
	}
}

// A new revision replaces one whose pod sleeps, without a lost request.
func TestARolloutReplacesAPodThatSleeps(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url, pod := s.sleeper("rolled", service{})
	s.ready("rolled", service{name: "rolled", env: map[string]string{"TEXT": "second"}}.manifest())
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() || reply.Header.Get("X-Pod-Name") == pod {
		t.Errorf("after the rollout: %v of pod %q", reply, reply.Header.Get("X-Pod-Name"))
	}
}

// Without a node agent pods sleep warm, and `kubectl get kpa` says so.
func TestWithoutANodeAgentPodsSleepWarmAndItIsTold(t *testing.T) {
	s := beginAlone(t, 5*time.Minute)
	choose := func(selector string) {
		s.Helper()
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"nodeSelector":%s}}}}`, selector)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), time.Minute)
		defer cancel()
		if _, err := s.Kube.AppsV1().DaemonSets(cluster.System).Patch(ctx, "node-agent", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			s.Error(err)
		}
	}
	choose(`{"no-such-label":"x"}`)
	t.Cleanup(func() { choose("null") })
	url, pod := s.sleeper("warm", service{})
	s.until("it is told", func() (bool, string, error) {
		list, err := s.Dynamic.Resource(cluster.PodAutoscalers).Namespace(s.namespace).List(s.ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return false, fmt.Sprint(err), nil
		}
		text, _, _ := unstructured.NestedString(list.Items[0].Object, "status", "asleep")
		return text == "1 warm without node agent", text, nil
	})
	s.answersFrom(url, pod)
}

// The guard thaws everything when the agent ends, so requests are answered without an agent, too.
func TestRequestsAreAnsweredWhenTheAgentEnds(t *testing.T) {
	s := beginAlone(t, 4*time.Minute)
	url, pod := s.sleeper("orphan", service{})
	agents, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=node-agent"})
	if err != nil || len(agents.Items) == 0 {
		t.Fatalf("%d agents: %v", len(agents.Items), err)
	}
	for _, agent := range agents.Items {
		if err := s.Kube.CoreV1().Pods(cluster.System).Delete(s.ctx, agent.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
	}
	s.answersFrom(url, pod)
	s.awaitAsleep("orphan", 1, 0)
	s.answersFrom(url, pod)
}

func TestABurstWakesPodsBeforeItMakesNewOnes(t *testing.T) {
	s := begin(t, 5*time.Minute)
	url := s.ready("burst", service{name: "burst", concurrency: 1, annotations: map[string]string{
		"autoscaling.ebb.dev/standby": "4", "autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/initial-scale": "5",
		"autoscaling.knative.dev/max-scale": "5"}}.manifest())
	s.awaitAsleep("burst", 4, 1)
	before := map[string]bool{}
	pods, err := s.Pods(s.ctx, s.namespace, "burst", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		before[pod.Name] = true
	}
	replies := probe.Burst(s.ctx, s.client(), url+"?sleep=2000", 5)
	for _, failed := range probe.Failed(replies) {
		t.Error(failed)
	}
	answered := map[string]bool{}
	for _, reply := range replies {
		pod := reply.Header.Get("X-Pod-Name")
		answered[pod] = true
		if !before[pod] {
			t.Errorf("pod %q is new", pod)
		}
	}
	if len(answered) != 5 {
		t.Errorf("%d pods answered five requests of two seconds at once", len(answered))
	}
}

func TestARevisionWithAnExecProbeSleepsWarmAndSaysWhy(t *testing.T) {
	s := begin(t, 4*time.Minute)
	manifest := service{name: "exec", annotations: map[string]string{"autoscaling.ebb.dev/standby": "1"}}.manifest() + `
        livenessProbe: {exec: {command: [/autoscale, -h]}, periodSeconds: 60, failureThreshold: 10}
`
	url := s.ready("exec", manifest)
	s.awaitAsleep("exec", 1, 0)
	pod := s.onlyPod("exec").Name
	revision, err := s.Get(s.ctx, cluster.Revisions, s.namespace, "exec-00001")
	if err != nil {
		t.Fatal(err)
	}
	if limited := cluster.Conditions(revision)["StandbyLimited"]; limited.Reason != "ExecProbe" || limited.Severity != "Info" {
		t.Errorf("%s, want ExecProbe", limited)
	}
	s.answersFrom(url, pod)
}
