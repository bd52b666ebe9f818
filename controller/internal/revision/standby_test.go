package revision

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

func TestHowPodsMaySleep(t *testing.T) {
	annotated := func(pairs ...string) map[string]string {
		m := map[string]string{names.StandbyAnnotation: "auto"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	exec := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	tcp := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")}
	limits := corev1.ResourceRequirements{Limits: list}
	sidecar := []string{names.SidecarCPULimitAnnotation, "1", names.SidecarCPURequestAnnotation, "1",
		names.SidecarMemoryLimitAnnotation, "64Mi", names.SidecarMemoryRequestAnnotation, "64Mi"}
	for _, test := range []struct {
		why         string
		annotations map[string]string
		settings    map[string]string
		main        corev1.Container
		beside      *corev1.Container
		want        string
	}{
		{why: "off by default", want: "never"},
		{why: "on in the cluster", settings: map[string]string{"standby": "auto"}, want: "compressed"},
		{why: "on in the cluster, off here", settings: map[string]string{"standby": "auto"}, annotations: annotated(names.StandbyAnnotation, "off"), want: "never"},
		{why: "on here", annotations: annotated(), main: corev1.Container{LivenessProbe: tcp}, want: "compressed"},
		{why: "by a count", annotations: annotated(names.StandbyAnnotation, "0"), want: "compressed"},
		{why: "less deep", annotations: annotated(names.StandbyLevelAnnotation, "frozen"), want: "frozen"},
		{why: "another class", annotations: annotated(names.ClassAnnotation, names.ClassHPA), want: "never"},
		{why: "another class by default", annotations: annotated(), settings: map[string]string{"pod-autoscaler-class": names.ClassHPA}, want: "never"},
		{why: "the port of the agent", annotations: annotated(), main: corev1.Container{Ports: []corev1.ContainerPort{{ContainerPort: 8023}}}, want: "never PortTaken"},
		{why: "an exec probe for liveness", annotations: annotated(), main: corev1.Container{LivenessProbe: exec}, want: "warm ExecProbe"},
		{why: "an exec probe for readiness", annotations: annotated(), main: corev1.Container{ReadinessProbe: exec}, want: "warm ExecProbe"},
		{why: "an exec probe beside", annotations: annotated(), beside: &corev1.Container{StartupProbe: exec}, want: "warm ExecProbe"},
		{why: "an exec probe, and warm is enough", annotations: annotated(names.StandbyLevelAnnotation, "warm"), main: corev1.Container{LivenessProbe: exec}, want: "warm"},
		{why: "Guaranteed", annotations: annotated(sidecar...), main: corev1.Container{Resources: limits}, want: "frozen GuaranteedQoS"},
		{why: "Guaranteed, and frozen is enough", annotations: annotated(append(sidecar, names.StandbyLevelAnnotation, "frozen")...), main: corev1.Container{Resources: limits}, want: "frozen"},
		{why: "queue-proxy is not guaranteed", annotations: annotated(), main: corev1.Container{Resources: limits}, want: "compressed"},
		{why: "a container beside has no limits", annotations: annotated(sidecar...), main: corev1.Container{Resources: limits}, beside: &corev1.Container{}, want: "compressed"},
		{why: "requests below the limits", annotations: annotated(sidecar...), want: "compressed",
			main: corev1.Container{Resources: corev1.ResourceRequirements{Limits: list, Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m")}}}},
	} {
		t.Run(test.why, func(t *testing.T) {
			s, err := settings.Parse(map[string]map[string]string{settings.AutoscalerName: test.settings})
			if err != nil {
				t.Fatal(err)
			}
			rev := &servingv1.Revision{}
			rev.Annotations = test.annotations
			test.main.Name = "main"
			rev.Spec.Containers = []corev1.Container{test.main}
			if test.beside != nil {
				rev.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
				rev.Spec.Containers = append(rev.Spec.Containers, *test.beside)
			}
			r := standbyOf(rev, rev.Meaning(s.Rules()), s)
			got := "never"
			if r.sleeps {
				got = r.level.String()
			}
			if r.reason != "" {
				got += " " + r.reason
			}
			if got != test.want || (r.reason == "") != (r.message == "") {
				t.Errorf("got %s (%s), want %s", got, r.message, test.want)
			}
			setConditions(rev, observation{}, s)
			told := rev.Status.GetCondition(conditionStandbyLimited)
			if told.GetReason() != r.reason || told != nil && told.Severity != "Info" {
				t.Errorf("the condition is %+v", told)
			}
			rev.Annotations = nil
			if setConditions(rev, observation{}, settings.Default()); rev.Status.GetCondition(conditionStandbyLimited) != nil {
				t.Error("the condition stays when its reason has gone")
			}
		})
	}
}

// Pods that sleep are not ready, the Deployment is not available, and after a while it misses its
// deadline. A revision is well all the same, also when a pod of it does not start.
func TestARevisionWhosePodsSleepIsReady(t *testing.T) {
	waits := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "no node"}}}}
	missed := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}, Status: appsv1.DeploymentStatus{
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
			Reason: "ProgressDeadlineExceeded", LastUpdateTime: metav1.Now()}}}}
	for _, test := range []struct {
		pods   []*corev1.Pod
		asleep int32
		want   string
	}{
		{[]*corev1.Pod{{}}, 1, "True "},
		{[]*corev1.Pod{{}, waits}, 1, "True "},
		{[]*corev1.Pod{{}, waits}, 0, "False Unschedulable"},
		{[]*corev1.Pod{{}}, 0, "False ProgressDeadlineExceeded"},
	} {
		pa := &autoscalingv1alpha1.PodAutoscaler{}
		pa.Status.AsleepReplicas = &test.asleep
		pa.Status.MarkScaleTargetInitialized()
		o := observation{autoscaler: pa, pods: test.pods, deployment: missed}
		rev := &servingv1.Revision{}
		rev.GetConditionSet().Manage(&rev.Status).InitializeConditions()
		setConditions(rev, o, settings.Default())
		c := rev.Status.GetCondition(servingv1.RevisionConditionReady)
		if got := fmt.Sprint(c.Status, " ", c.Reason); got != test.want {
			t.Errorf("%d pods asleep: got %s, want %s", test.asleep, got, test.want)
		}
	}
}
