package revision

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

// resting is a revision that has been at zero for that long, with the setting at an hour.
func resting(d time.Duration) (*servingv1.Revision, observation, *settings.Snapshot) {
	s := settings.Default()
	s.Deployment.RetentionPeriod = time.Hour
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "a-00001", Labels: map[string]string{names.RoutingStateLabel: string(names.RoutingActive)}}}
	o := observation{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), autoscaler: &autoscalingv1alpha1.PodAutoscaler{}}
	status := &o.autoscaler.Status
	status.InitializeConditions()
	status.DesiredScale, status.ActualScale = ptr.To(int32(0)), ptr.To(int32(0))
	status.MarkScaleTargetInitialized()
	status.MarkInactive("NoTraffic", "")
	for i := range status.Conditions {
		status.Conditions[i].LastTransitionTime = apis.VolatileTime{Inner: metav1.NewTime(o.now.Add(-d))}
	}
	return rev, o, s
}

func TestADeploymentIsPutAwayOnlyOnceNobodyNeedsIt(t *testing.T) {
	pod := func(phase corev1.PodPhase) *corev1.Pod { return &corev1.Pod{Status: corev1.PodStatus{Phase: phase}} }
	for what, c := range map[string]struct {
		rests  time.Duration
		change func(*servingv1.Revision, *observation, *settings.Snapshot)
		wait   time.Duration
		ok     bool
	}{
		"at zero for long":        {rests: 2 * time.Hour, ok: true},
		"at zero for a moment":    {rests: time.Minute, wait: 59 * time.Minute, ok: true},
		"nobody knows since when": {rests: -time.Minute, wait: 61 * time.Minute, ok: true}, // another clock set the time
		"the setting is off": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, _ *observation, s *settings.Snapshot) {
			s.Deployment.RetentionPeriod = 0
		}},
		"it is to be kept": {rests: 2 * time.Hour, change: func(rev *servingv1.Revision, _ *observation, _ *settings.Snapshot) {
			rev.Annotations = map[string]string{names.NoGCAnnotation: "true"}
		}},
		"it was never up": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Status.MarkScaleTargetNotInitialized("", "")
		}},
		"another autoscaler scales it": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Annotations = map[string]string{names.ClassAnnotation: names.ClassHPA}
		}},
		"all are scaled by another one": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, _ *observation, s *settings.Snapshot) {
			s.Autoscaler.Class = names.ClassHPA
		}},
		"there is no PodAutoscaler": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler = nil
		}},
		"the PodAutoscaler goes": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.DeletionTimestamp = &metav1.Time{Time: o.now}
		}},
		"nothing was decided yet": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Annotations = map[string]string{names.InitializedAnnotation: "true"}
			o.autoscaler.Status = autoscalingv1alpha1.PodAutoscalerStatus{}
		}},
		"a pod is wanted": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Status.DesiredScale = ptr.To(int32(1))
		}},
		"a pod is ready": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Status.ActualScale = ptr.To(int32(1))
		}},
		"a pod is asleep": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Status.AsleepReplicas = ptr.To(int32(1))
		}},
		"requests wait": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.autoscaler.Status.MarkActivating("Queued", "")
		}},
		"a pod leaves": {rests: 2 * time.Hour, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.pods = []*corev1.Pod{pod(corev1.PodRunning)}
		}},
		"pods are left that a node evicted": {rests: 2 * time.Hour, ok: true, change: func(_ *servingv1.Revision, o *observation, _ *settings.Snapshot) {
			o.pods = []*corev1.Pod{pod(corev1.PodFailed), pod(corev1.PodSucceeded)}
		}},
	} {
		t.Run(what, func(t *testing.T) {
			rev, o, s := resting(c.rests)
			if c.change != nil {
				c.change(rev, &o, s)
			}
			if wait, ok := awayAfter(rev, o, s); ok != c.ok || wait != c.wait {
				t.Errorf("after %s, %v; want %s, %v", wait, ok, c.wait, c.ok)
			}
		})
	}
}

// A revision says the same with and without its Deployment, also while pods are left that a node
// evicted.
func TestConditionsDoNotChangeWhenADeploymentIsPutAway(t *testing.T) {
	rev, o, s := resting(2 * time.Hour)
	o.deployment = &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(0))}}
	o.pods = []*corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: memory."}}}
	setConditions(rev, o, s)
	before := rev.Status.DeepCopy()
	o.deployment, o.away = nil, true
	setConditions(rev, o, s)
	for _, c := range before.Conditions {
		if got := rev.Status.GetCondition(c.Type); got.Status != c.Status || got.Reason != c.Reason || got.Message != c.Message {
			t.Errorf("%+v, and with the Deployment %+v", got, c)
		}
	}
	if !rev.IsReady() {
		t.Errorf("not Ready: %+v", rev.Status.Conditions)
	}
}
