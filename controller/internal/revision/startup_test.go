package revision

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
)

func TestHowPodsStart(t *testing.T) {
	limits := func(cpu string) corev1.ResourceRequirements {
		list := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
		if cpu != "" {
			list[corev1.ResourceCPU] = resource.MustParse(cpu)
		}
		return corev1.ResourceRequirements{Limits: list}
	}
	asked := func(cpu string, pairs ...string) map[string]string {
		m := map[string]string{names.StartupCPUAnnotation: cpu}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	bound := []string{names.SidecarCPULimitAnnotation, "1", names.SidecarCPURequestAnnotation, "1",
		names.SidecarMemoryLimitAnnotation, "64Mi", names.SidecarMemoryRequestAnnotation, "64Mi"}
	for _, test := range []struct {
		why         string
		annotations map[string]string
		settings    map[string]string
		resources   corev1.ResourceRequirements
		want        string
	}{
		{why: "off by default", resources: limits("250m")},
		{why: "on here", annotations: asked("1"), resources: limits("250m"), want: "main=250m:1"},
		{why: "on in the cluster", settings: map[string]string{"startup-cpu": "500m"}, resources: limits("250m"), want: "main=250m:500m"},
		{why: "on in the cluster, off here", settings: map[string]string{"startup-cpu": "500m"}, annotations: asked("0"), resources: limits("250m")},
		{why: "as Kubernetes writes it", annotations: asked("2000m"), resources: limits("0.25"), want: "main=250m:2"},
		{why: "no more than is allowed", annotations: asked("1000"), resources: limits("250m"), want: "main=250m:4"},
		{why: "no limit", annotations: asked("1"), resources: limits("")},
		{why: "a limit that is as high", annotations: asked("1"), resources: limits("1")},
		{why: "another class", annotations: asked("1", names.ClassAnnotation, names.ClassHPA), resources: limits("250m")},
		{why: "Guaranteed", annotations: asked("1", bound...), resources: limits("250m"), want: "GuaranteedQoS"},
	} {
		t.Run(test.why, func(t *testing.T) {
			s, err := settings.Parse(map[string]map[string]string{settings.AutoscalerName: test.settings})
			if err != nil {
				t.Fatal(err)
			}
			rev := &servingv1.Revision{}
			rev.Annotations = test.annotations
			rev.Spec.Containers = []corev1.Container{{Name: "main", Resources: test.resources}}
			l := startupOf(rev, rev.Meaning(s.Rules()), s)
			if got := l.limit + l.reason; got != test.want || (l.reason == "") != (l.message == "") {
				t.Errorf("got %q (%s), want %q", got, l.message, test.want)
			}
			setConditions(rev, observation{}, s)
			if told := rev.Status.GetCondition(conditionStartupCPULimited); told.GetReason() != l.reason || told != nil && told.Severity != "Info" {
				t.Errorf("the condition is %+v", told)
			}
		})
	}
}

// What the autoscaler says of the pods, the Revision says, and no longer than it.
func TestWhatHindersPodsIsToldByTheRevision(t *testing.T) {
	rev := &servingv1.Revision{}
	rev.Annotations = map[string]string{names.StartupCPUAnnotation: "1"}
	rev.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}}}}
	pa := &autoscalingv1alpha1.PodAutoscaler{}
	told := func() string {
		setConditions(rev, observation{autoscaler: pa}, settings.Default())
		c := rev.Status.GetCondition(conditionStartupCPULimited)
		return c.GetReason() + " " + c.GetMessage()
	}
	pa.Status.MarkStartupCPULimited("ResizeRefused", "a quota")
	if got := told(); got != "ResizeRefused a quota" {
		t.Errorf("told %q", got)
	}
	pa.Status.ClearStartupCPULimited()
	if got := told(); got != " " {
		t.Errorf("told %q when it is over", got)
	}
	pa.Status.MarkStartupCPULimited("ResizeRefused", "a quota")
	delete(rev.Annotations, names.StartupCPUAnnotation)
	if got := told(); got != " " {
		t.Errorf("told %q when nothing is asked for", got)
	}
}
