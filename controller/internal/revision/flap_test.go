package revision

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// kubelet writes the status of one pod as the kubelet does.
type kubelet struct {
	now time.Time
	pod *corev1.Pod
}

func newKubelet() *kubelet {
	k := &kubelet{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	k.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod", CreationTimestamp: metav1.NewTime(k.now)}, Status: corev1.PodStatus{
		Phase:                 corev1.PodPending,
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "fetch", State: waits("PodInitializing")}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: "user", State: waits("PodInitializing")}},
	}}
	k.ready(corev1.ConditionFalse)
	return k
}

func waits(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func (k *kubelet) after(d time.Duration) { k.now = k.now.Add(d) }

func (k *kubelet) ready(status corev1.ConditionStatus) {
	if c := k.pod.Status.Conditions; len(c) > 0 && c[0].Status == status {
		return
	}
	k.pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.NewTime(k.now.Truncate(time.Second))}}
}

// start lets a container run. Without a readiness probe it is ready for Kubernetes from then on.
func (k *kubelet) start(c *corev1.ContainerStatus) {
	if c.State.Terminated != nil {
		c.LastTerminationState = c.State
	}
	c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(k.now.Truncate(time.Second))}}
	c.Ready = c.Name != "fetch"
}

func (k *kubelet) end(c *corev1.ContainerStatus, code int32) {
	ended := &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.NewTime(k.now.Truncate(time.Second)), Reason: "Error"}
	if c.State.Running != nil {
		ended.StartedAt = c.State.Running.StartedAt
	}
	c.State, c.Ready = corev1.ContainerState{Terminated: ended}, c.Name == "fetch" && code == 0
	c.RestartCount++
	k.ready(corev1.ConditionFalse)
}

func (k *kubelet) backOff(c *corev1.ContainerStatus) {
	c.LastTerminationState, c.State = c.State, waits("CrashLoopBackOff")
}

// told is what the conditions of a revision say after each step.
type told struct {
	rev *servingv1.Revision
	pa  *autoscalingv1alpha1.PodAutoscaler
}

func newTold(wasUp bool) *told {
	t := &told{rev: &servingv1.Revision{}, pa: &autoscalingv1alpha1.PodAutoscaler{}}
	t.rev.Status.InitializeConditions()
	if wasUp {
		t.pa.Annotations = map[string]string{names.InitializedAnnotation: "true"}
	}
	return t
}

func (t *told) of(pods ...*corev1.Pod) string {
	one := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](1)}}
	setConditions(t.rev, observation{autoscaler: t.pa, deployment: one, pods: pods}, settings.Default())
	resources, container := t.rev.Status.GetCondition(servingv1.RevisionConditionResourcesAvailable),
		t.rev.Status.GetCondition(servingv1.RevisionConditionContainerHealthy)
	return fmt.Sprint(resources.Status, resources.Reason, "/", container.Status, container.Reason, container.Message)
}

// However often a container is started again, and however long it runs, its failure is told once
// and stays until the pod is ready.
func TestAFailureThatRepeatsIsOneFailure(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		k, said := newKubelet(), newTold(seed%2 == 0)
		c := &k.pod.Status.ContainerStatuses[0]
		if seed%3 == 0 {
			c = &k.pod.Status.InitContainerStatuses[0]
		}
		code := int32(1)
		if c.Name != "fetch" && seed%5 < 2 {
			code = 0 // a failure from the first back-off on
		}
		healthy, first := said.of(k.pod), ""
		for step := range 20 {
			see := func(what string) {
				now := said.of(k.pod)
				if first == "" && now != healthy {
					first = now
				}
				if first != "" && now != first {
					t.Fatalf("seed %d, step %d: it %s, and the conditions say %s, before %s", seed, step, what, now, first)
				}
			}
			k.after(time.Duration(random.IntN(3000)) * time.Millisecond)
			k.start(c)
			see("runs")
			k.after(time.Duration(random.IntN(9000)) * time.Millisecond)
			k.end(c, code)
			see("ended")
			if first == "" && code > 0 {
				t.Fatalf("seed %d, step %d: it ended, and the conditions say %s", seed, step, healthy)
			}
			if step > 0 {
				k.backOff(c)
				if random.IntN(4) > 0 { // else the controller did not see it
					see("is in back-off")
				}
			}
		}
		if !strings.Contains(first, fmt.Sprintf("container %q ended with exit code %d", c.Name, code)) {
			t.Fatalf("seed %d: 20 failures, and the conditions say %q", seed, first)
		}
		// It recovers.
		k.after(time.Minute)
		k.start(c)
		k.after(5 * time.Second)
		if c.Name == "fetch" {
			k.end(c, 0)
			if now := said.of(k.pod); now == first {
				t.Fatalf("seed %d: the init container is done, and the conditions still say %s", seed, now)
			}
			k.start(&k.pod.Status.ContainerStatuses[0])
		}
		k.ready(corev1.ConditionTrue)
		said.pa.Annotations = map[string]string{names.InitializedAnnotation: "true"} // the autoscaler sees it
		if now := said.of(k.pod); now != "True/True" {
			t.Fatalf("seed %d: the pod is ready, and the conditions say %s", seed, now)
		}
		// A restart by a liveness probe, much later, is another failure, which ends when it runs.
		k.after(time.Hour)
		user := &k.pod.Status.ContainerStatuses[0]
		k.end(user, []int32{137, 0}[seed%2])
		k.start(user)
		if now := said.of(k.pod); now != "True/True" {
			t.Fatalf("seed %d: it was ready and runs again, and the conditions say %s", seed, now)
		}
	}
}
