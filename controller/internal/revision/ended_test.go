package revision

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// A revision that was up, and whose pods did not start for the last requests, is at zero again.
func TestWhatFailedCountsForAWhileAtZero(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for what, c := range map[string]struct {
		active  corev1.ConditionStatus
		since   time.Duration
		reserve bool
		failed  bool
	}{
		"just now":                           {corev1.ConditionFalse, time.Second, false, true},
		"long ago":                           {corev1.ConditionFalse, restsFor, false, false},
		"the autoscaler has not said it yet": {corev1.ConditionUnknown, time.Hour, false, true},
		"no Route leads to it":               {corev1.ConditionFalse, time.Second, true, false},
	} {
		t.Run(what, func(t *testing.T) {
			pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{names.InitializedAnnotation: "true"}}}
			pa.Status.Conditions = duckv1.Conditions{{Type: autoscalingv1alpha1.PodAutoscalerConditionActive, Status: c.active,
				LastTransitionTime: apis.VolatileTime{Inner: metav1.NewTime(now.Add(-c.since))}}}
			rev := &servingv1.Revision{}
			rev.Status.InitializeConditions()
			rev.GetConditionSet().Manage(&rev.Status).MarkFalse(servingv1.RevisionConditionResourcesAvailable, "CreateContainerConfigError", "no Secret")
			setConditions(rev, observation{autoscaler: pa, now: now, reserve: c.reserve, deployment: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0)}}}, defaults)
			if ready := rev.Status.GetCondition(servingv1.RevisionConditionReady); ready.IsFalse() != c.failed || ready.IsTrue() == c.failed {
				t.Errorf("Ready is %+v", ready)
			}
		})
	}
}

// A pod that has ended stays as an object. What it says of a revision depends on what is wanted and
// on the pods beside it.
func TestAPodThatHasEndedSaysNothingOfARevisionThatHasAnotherOrWantsNone(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	pod := func(age time.Duration, status corev1.PodStatus) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(began.Add(-age))}, Status: status}
	}
	evicted := pod(time.Hour, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."})
	rejected := pod(0, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "Node didn't have enough resource."})
	done := pod(time.Hour, corev1.PodStatus{Phase: corev1.PodSucceeded})
	// The node was shut down, and the kubelet ended the container.
	ended := pod(time.Hour, corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "user-container",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137}}}}})
	starting := pod(0, corev1.PodStatus{Phase: corev1.PodPending})
	before := pod(time.Second, rejected.Status)
	just := pod(time.Hour, evicted.Status)
	just.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(began)}}
	beside := pod(time.Hour, just.Status)
	for what, c := range map[string]struct {
		replicas int32
		pods     []*corev1.Pod
		reason   string
		count    int
	}{
		"evicted, at zero":                     {0, []*corev1.Pod{evicted}, "", 0},
		"a container ended, at zero":           {0, []*corev1.Pod{ended}, "", 0},
		"done, at zero":                        {0, []*corev1.Pod{done}, "", 0},
		"rejected just now, at zero":           {0, []*corev1.Pod{rejected}, "", 0},
		"evicted, beside a pod that starts":    {1, []*corev1.Pod{evicted, starting}, "", 1},
		"ended, beside a pod that starts":      {1, []*corev1.Pod{starting, ended, done}, "", 1},
		"rejected again and again":             {1, []*corev1.Pod{before, rejected}, "OutOfcpu", 1},
		"evicted just now":                     {1, []*corev1.Pod{just}, "", 1},
		"all evicted just now":                 {1, []*corev1.Pod{just, beside}, "", 2},
		"evicted just now, and long ago":       {1, []*corev1.Pod{just, pod(2*time.Hour, done.Status)}, "", 1},
		"evicted, and no other pod yet":        {1, []*corev1.Pod{evicted}, "", 1},
		"evicted, and no other is allowed":     {1, []*corev1.Pod{evicted}, "FailedCreate", 1},
		"starting, of a revision that is idle": {0, []*corev1.Pod{starting}, "", 1},
	} {
		t.Run(what, func(t *testing.T) {
			pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{names.InitializedAnnotation: "true"}}}
			pa.Status.ActualScale, pa.Status.DesiredScale = ptr.To[int32](0), ptr.To[int32](0)
			rev := &servingv1.Revision{}
			rev.Status.InitializeConditions()
			o := observation{autoscaler: pa, pods: c.pods, deployment: &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &c.replicas}}}
			if c.reason == "FailedCreate" {
				o.deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: c.reason}}
			}
			setConditions(rev, o, settings.NewStore(nil).Load())
			if got := rev.Status.GetCondition(servingv1.RevisionConditionReady).GetReason(); got != c.reason {
				t.Errorf("Ready has the reason %q, not %q: %+v", got, c.reason, rev.Status.Conditions)
			}
			if got := len(o.current()); got != c.count {
				t.Errorf("%d pods count, not %d", got, c.count)
			}
		})
	}
}
