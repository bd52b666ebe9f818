package cluster

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestADeploymentIsRolledOutWhenItsStatusSaysSoOfTheSpecOfNow(t *testing.T) {
	status := func(observed int64, all, updated, available int32) appsv1.DeploymentStatus {
		return appsv1.DeploymentStatus{ObservedGeneration: observed, Replicas: all, UpdatedReplicas: updated, AvailableReplicas: available}
	}
	for name, c := range map[string]struct {
		want   *int32
		status appsv1.DeploymentStatus
		done   bool
	}{
		"all are available":                {new(int32(2)), status(5, 2, 2, 2), true},
		"it says nothing of replicas":      {nil, status(5, 1, 1, 1), true},
		"none is wanted":                   {new(int32(0)), status(5, 0, 0, 0), true},
		"the status is of the spec before": {new(int32(2)), status(4, 2, 2, 2), false},
		"one starts":                       {new(int32(2)), status(5, 2, 2, 1), false},
		"one is of the template before":    {new(int32(2)), status(5, 2, 1, 2), false},
		"one has yet to go":                {new(int32(2)), status(5, 3, 2, 2), false},
	} {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d", Generation: 5}, Spec: appsv1.DeploymentSpec{Replicas: c.want}, Status: c.status}
		if done, seen := rolledOut(d); done != c.done {
			t.Errorf("%s: %v, %s", name, done, seen)
		}
	}
}

func TestWhichPodsAreReady(t *testing.T) {
	pod := func(name string, ready corev1.ConditionStatus, deleted *metav1.Time) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, DeletionTimestamp: deleted},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: ready}}}}
	}
	got := ReadyPods([]corev1.Pod{pod("starts", corev1.ConditionFalse, nil), pod("ready", corev1.ConditionTrue, nil), pod("goes", corev1.ConditionTrue, new(metav1.Now())), {}})
	if len(got) != 1 || got[0].Name != "ready" {
		t.Errorf("got %v", got)
	}
}
