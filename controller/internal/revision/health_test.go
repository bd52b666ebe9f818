package revision

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

func TestPodTroubleNamesTheOneReasonAUserNeeds(t *testing.T) {
	waiting := func(name, reason string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Image: "img", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}
	}
	ended := func(name string, code int32, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error", Message: message}}}
	}
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	restarted := func(code int32, now corev1.ContainerState) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "user", State: now, Ready: now.Running != nil, LastTerminationState: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, StartedAt: metav1.NewTime(began)}}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	backOff := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
	pod := func(statuses ...corev1.ContainerStatus) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: statuses}}
	}
	notReady := func(since time.Duration, p *corev1.Pod) *corev1.Pod {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse,
			LastTransitionTime: metav1.NewTime(began.Add(since))})
		return p
	}
	unschedulable := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node"}}}}
	leaving := pod(ended("user", 3, ""))
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	evicted := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk",
		ContainerStatuses: []corev1.ContainerStatus{ended("user", 137, "")}}}
	initDone := restarted(2, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	initDone.Ready = true
	killed := ended("user", 137, "last words")
	killed.State.Terminated.Reason = "OOMKilled"
	initFails := &corev1.Pod{Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{ended("prepare", 2, "no schema")}}}

	template := &corev1.PodSpec{Containers: []corev1.Container{{Name: "user", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}}}
	for _, tt := range []struct {
		why         string
		pods        []*corev1.Pod
		schedulable bool
		want        trouble
	}{
		{why: "no pod"},
		{why: "starting is no trouble", pods: []*corev1.Pod{pod(waiting("user", "ContainerCreating"))}},
		{why: "the exit code and the last words", pods: []*corev1.Pod{pod(ended("user", 5, "no database\n"))},
			want: trouble{true, "ExitCode5", "Container failed with: no database"}},
		{why: "an exit without words still says something", pods: []*corev1.Pod{pod(ended("user", 1, ""))},
			want: trouble{true, "ExitCode1", `Container failed with: container "user" ended with exit code 1 and said nothing`}},
		{why: "an init container fails", pods: []*corev1.Pod{initFails},
			want: trouble{true, "ExitCode2", "Container failed with: no schema"}},
		{why: "the sidecar's exit follows from another and is not told", pods: []*corev1.Pod{pod(ended(names.QueueProxyContainer, 1, "x"))}},
		{why: "an exit beats a pull", pods: []*corev1.Pod{pod(waiting("other", "ErrImagePull")), pod(ended("user", 5, "x"))},
			want: trouble{true, "ExitCode5", "Container failed with: x"}},
		{why: "running again changes nothing before the pod is ready", pods: []*corev1.Pod{notReady(-time.Second, pod(restarted(7, running)))},
			want: trouble{true, "ExitCode7", `Container failed with: container "user" ended with exit code 7 and said nothing`}},
		{why: "it was ready in its last run: running again is its chance", pods: []*corev1.Pod{notReady(time.Hour, pod(restarted(7, running)))}},
		{why: "an init container that failed and is done", pods: []*corev1.Pod{{Status: corev1.PodStatus{InitContainerStatuses: []corev1.ContainerStatus{initDone}}}}},
		{why: "too little memory, whatever it said last", pods: []*corev1.Pod{pod(killed)},
			want: trouble{true, "ExitCode137", `Container failed with: OOMKilled (container "user", exit code 137): it took more memory than its limit of 64Mi. ` +
				`Raise that limit, or let it use less. Its last words: last words`}},
		{why: "ends again and again without error", pods: []*corev1.Pod{pod(restarted(0, backOff))},
			want: trouble{true, "ExitCode0", `Container failed with: container "user" ended with exit code 0. A program that serves requests does not end by itself`}},
		{why: "an image that is not there", pods: []*corev1.Pod{pod(waiting("user", "ImagePullBackOff"))},
			want: trouble{false, "ImagePullBackOff", `container "user" of image "img" waits: ImagePullBackOff`}},
		{why: "no node", pods: []*corev1.Pod{unschedulable}, want: trouble{false, "Unschedulable", "no node"}},
		{why: "no node yet, where nodes are added", schedulable: true, pods: []*corev1.Pod{unschedulable}},
		{why: "evicted", pods: []*corev1.Pod{evicted}, want: trouble{false, "Evicted", "disk"}},
		{why: "a pod on its way out tells nothing", pods: []*corev1.Pod{leaving}},
	} {
		t.Run(tt.why, func(t *testing.T) {
			if got := podTrouble(observation{template: template, pods: tt.pods}, tt.schedulable); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A container that a probe ends may choose its exit code. That of a run before says nothing of one
// that ended by itself, and until the Events are read again nothing changes.
func TestAProbeEndsAContainerWhateverItsExitCode(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	for _, tt := range []struct {
		why          string
		code         int32
		killed, read int // the run is from 10 to 20
		byProbe      bool
	}{
		{"in this run", 0, 18, 21, true},
		{"in this run, with a code of its own", 3, 18, 21, true},
		{"in the run before, and the Events are not read since", 0, 8, 15, true},
		{"in the run before", 0, 8, 21, false},
		{"in the run before, with a code of its own", 1, 8, 21, false},
		{"a code of Kubernetes, whenever", 143, 8, 21, true},
	} {
		t.Run(tt.why, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
				Name: "user", State: waits("CrashLoopBackOff"), LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: tt.code, StartedAt: metav1.NewTime(at(10)), FinishedAt: metav1.NewTime(at(20))}}}}}}
			o := observation{pods: []*corev1.Pod{pod}, news: news{pod: "pod", at: at(tt.read), probes: map[string]failedProbe{"user": {"liveness", "", at(tt.killed)}}}}
			if got := podTrouble(o, false); strings.Contains(got.message, "because its liveness probe failed") != tt.byProbe || got.reason != fmt.Sprintf("ExitCode%d", tt.code) {
				t.Errorf("it says %+v", got)
			}
		})
	}
}

// What was known of the pods when a revision is given up is told after they are gone.
func TestARevisionThatIsGivenUpKeepsWhatWasKnownOfItsPods(t *testing.T) {
	const waits = `Container "user-container" runs and does not take connections on port 8080`
	inactive := &autoscalingv1alpha1.PodAutoscaler{}
	inactive.Status.MarkInactive("TimedOut", "")
	for _, tt := range []struct {
		why, want string
		before    func(apis.ConditionManager)
	}{
		{"nothing", "Initial scale was never achieved", func(apis.ConditionManager) {}},
		{"that it does not listen", "Initial scale was never achieved. " + waits, func(m apis.ConditionManager) {
			m.MarkUnknown(servingv1.RevisionConditionContainerHealthy, reasonDeploying, waits)
		}},
		{"that it timed out", "it has timed out progressing. " + waits, func(m apis.ConditionManager) {
			m.MarkFalse(servingv1.RevisionConditionResourcesAvailable, reasonNoProgress, "it has timed out progressing. "+waits)
		}},
	} {
		t.Run(tt.why, func(t *testing.T) {
			rev := &servingv1.Revision{}
			rev.Status.InitializeConditions()
			tt.before(rev.GetConditionSet().Manage(&rev.Status))
			for range 2 {
				setConditions(rev, observation{autoscaler: inactive}, defaults)
				if got := rev.Status.GetCondition(servingv1.RevisionConditionReady); got.Reason != reasonNoProgress || got.Message != tt.want {
					t.Errorf("Ready says %+v, not %q", got, tt.want)
				}
			}
		})
	}
}

func TestADeploymentsOldWordDoesNotCountAgainstNewPods(t *testing.T) {
	passed := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	failing := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Status: appsv1.DeploymentStatus{ObservedGeneration: 2,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
			Reason: "ProgressDeadlineExceeded", LastUpdateTime: passed}}}}
	stale := failing.DeepCopy()
	stale.Generation = 3
	at := func(d time.Duration) []*corev1.Pod {
		return []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(passed.Add(d))}}}
	}
	for _, tt := range []struct {
		why    string
		d      *appsv1.Deployment
		pods   []*corev1.Pod
		reason string
	}{
		{"the pods were there when the deadline passed", failing, at(-time.Hour), "ProgressDeadlineExceeded"},
		{"the pod is newer: it is another start", failing, at(time.Second), ""},
		{"scaled up from zero, no pod yet", failing, nil, ""},
		{"the status is of an older generation", stale, at(-time.Hour), ""},
	} {
		t.Run(tt.why, func(t *testing.T) {
			if got := deploymentTrouble(tt.d, tt.pods); got.reason != tt.reason {
				t.Errorf("got %q, want %q", got.reason, tt.reason)
			}
		})
	}
}

func TestARevisionThatIsUpAlwaysHasItsReplicas(t *testing.T) {
	figures := func(actual, desired int32) autoscalingv1alpha1.PodAutoscalerStatus {
		return autoscalingv1alpha1.PodAutoscalerStatus{ActualScale: &actual, DesiredScale: &desired}
	}
	half := figures(1, 0)
	half.DesiredScale = nil
	readyPod := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	deployment := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](3)}}
	for _, tt := range []struct {
		why        string
		autoscaler autoscalingv1alpha1.PodAutoscalerStatus
		up         bool
		pods       []*corev1.Pod
		deployment *appsv1.Deployment
		before     [2]*int32
		want       [2]*int32
	}{
		{why: "not up: nothing until the autoscaler reports", pods: []*corev1.Pod{readyPod}, deployment: deployment},
		{why: "not up: half of a report is nothing", autoscaler: half},
		{why: "not up, reported", autoscaler: figures(0, 1), want: [2]*int32{ptr.To[int32](0), ptr.To[int32](1)}},
		{why: "up, reported", up: true, autoscaler: figures(2, 3), want: [2]*int32{ptr.To[int32](2), ptr.To[int32](3)}},
		{why: "up, not reported: pods and Deployment", up: true, pods: []*corev1.Pod{readyPod}, deployment: deployment,
			want: [2]*int32{ptr.To[int32](1), ptr.To[int32](3)}},
		{why: "up, half reported: pods and Deployment", up: true, autoscaler: half, deployment: deployment,
			want: [2]*int32{ptr.To[int32](0), ptr.To[int32](3)}},
		{why: "up, no decision yet: pods and Deployment", up: true, autoscaler: figures(1, -1), deployment: deployment,
			want: [2]*int32{ptr.To[int32](0), ptr.To[int32](3)}},
		{why: "up, not reported again after it was: as before", up: true, before: [2]*int32{ptr.To[int32](5), ptr.To[int32](6)},
			want: [2]*int32{ptr.To[int32](5), ptr.To[int32](6)}},
	} {
		t.Run(tt.why, func(t *testing.T) {
			pa := &autoscalingv1alpha1.PodAutoscaler{Status: tt.autoscaler}
			if tt.up {
				pa.Annotations = map[string]string{names.InitializedAnnotation: "true"}
			}
			rev := &servingv1.Revision{}
			rev.Status.InitializeConditions()
			rev.Status.ActualReplicas, rev.Status.DesiredReplicas = tt.before[0], tt.before[1]
			setConditions(rev, observation{autoscaler: pa, pods: tt.pods, deployment: tt.deployment}, settings.NewStore(nil).Load())
			if ready := rev.GetConditionSet().Manage(&rev.Status).IsHappy(); ready != tt.up {
				t.Errorf("Ready is %v", ready)
			}
			if diff := cmp.Diff(tt.want, [2]*int32{rev.Status.ActualReplicas, rev.Status.DesiredReplicas}); diff != "" {
				t.Error(diff)
			}
		})
	}
}
