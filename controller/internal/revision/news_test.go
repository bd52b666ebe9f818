package revision

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/controller/internal/reconcile"
)

func TestStepsOfAPodWait(t *testing.T) {
	type change = func(*corev1.Pod)
	pod := func(changes ...change) *corev1.Pod {
		p := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodPending}}
		for _, c := range changes {
			c(p)
		}
		return p
	}
	condition := func(kind corev1.PodConditionType, is corev1.ConditionStatus) change {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: is})
		}
	}
	container := func(s corev1.ContainerStatus) change {
		return func(p *corev1.Pod) { p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, s) }
	}
	waits := func(reason string) change {
		return container(corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}})
	}
	ended := func(code int32, ready bool) change {
		return container(corev1.ContainerStatus{Ready: ready, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}})
	}
	goes := change(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} })
	failed := change(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed })
	isReady, notReady := condition(corev1.PodReady, corev1.ConditionTrue), condition(corev1.PodReady, corev1.ConditionFalse)
	const soon, now = reconcile.Soon, reconcile.AtOnce
	for what, c := range map[string]struct {
		before, after any
		want          reconcile.Urgency
	}{
		"it is new":                          {nil, pod(), soon},
		"it has a node":                      {pod(), pod(condition(corev1.PodScheduled, corev1.ConditionTrue)), soon},
		"its containers are made":            {pod(), pod(notReady, waits("ContainerCreating")), soon},
		"an init container is done":          {pod(), pod(ended(0, true)), soon},
		"it is ready":                        {pod(notReady), pod(isReady), now},
		"it is ready no more":                {pod(isReady), pod(notReady), now},
		"it is to go":                        {pod(isReady), pod(isReady, goes), soon},
		"it is ready no more as it is to go": {pod(isReady, goes), pod(notReady, goes), soon},
		"it ended as it was to":              {pod(notReady, goes), pod(notReady, goes, ended(137, false)), soon},
		"it is gone, as it was to be":        {pod(goes), nil, soon},
		"it is gone":                         {pod(), nil, now},
		"it has no node":                     {pod(), pod(condition(corev1.PodScheduled, corev1.ConditionFalse)), now},
		"its image cannot be pulled":         {pod(), pod(waits("ErrImagePull")), now},
		"its image can be pulled again":      {pod(waits("ErrImagePull")), pod(waits("ContainerCreating")), now},
		"a container ended":                  {pod(), pod(ended(1, false)), now},
		"a container that serves ended well": {pod(), pod(ended(0, false)), now},
		"a container runs again":             {pod(), pod(container(corev1.ContainerStatus{RestartCount: 1})), now},
		"it was evicted":                     {pod(), pod(failed), now},
		"it was evicted and is gone":         {pod(failed), nil, now},
		"a new one failed":                   {nil, pod(failed), now},
	} {
		if got := newsOfPod(c.before, c.after); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}

func TestWhatADeploymentCountsIsNoNews(t *testing.T) {
	type change = func(*appsv1.Deployment)
	deployment := func(changes ...change) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Generation: 2}, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(0))},
			Status: appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1}}
		for _, c := range changes {
			c(d)
		}
		return d
	}
	condition := func(kind appsv1.DeploymentConditionType, is corev1.ConditionStatus, reason string) change {
		return func(d *appsv1.Deployment) {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: kind, Status: is, Reason: reason})
		}
	}
	scaled := change(func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To(int32(1)) })
	const never, now = reconcile.Never, reconcile.AtOnce
	for what, c := range map[string]struct {
		before, after any
		want          reconcile.Urgency
	}{
		"its pods are ready": {deployment(scaled), deployment(scaled, func(d *appsv1.Deployment) { d.Status.ReadyReplicas = 1 }), never},
		"it is available, and progresses": {deployment(condition(appsv1.DeploymentAvailable, corev1.ConditionFalse, "a")),
			deployment(condition(appsv1.DeploymentAvailable, corev1.ConditionTrue, "b"), condition(appsv1.DeploymentProgressing, corev1.ConditionTrue, "c")), never},
		"it is scaled":          {deployment(), deployment(scaled), now},
		"its last pod is gone":  {deployment(), deployment(func(d *appsv1.Deployment) { d.Status.Replicas = 0 }), now},
		"it makes no progress":  {deployment(scaled), deployment(scaled, condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "late")), now},
		"it can create no pods": {deployment(scaled), deployment(scaled, condition(appsv1.DeploymentReplicaFailure, corev1.ConditionTrue, "quota")), now},
		"its trouble is of the present spec": {deployment(condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "late"), func(d *appsv1.Deployment) { d.Generation = 3 }),
			deployment(condition(appsv1.DeploymentProgressing, corev1.ConditionFalse, "late")), now},
		"a hash changes": {deployment(), deployment(func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} }), now},
		"it is new":      {nil, deployment(), now},
		"it is gone":     {deployment(), nil, now},
	} {
		if got := newsOfDeployment(c.before, c.after); got != c.want {
			t.Errorf("%s: %d, want %d", what, got, c.want)
		}
	}
}
