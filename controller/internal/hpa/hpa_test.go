package hpa

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/api/rules"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

func podAutoscaler(annotations map[string]string) *autoscalingv1alpha1.PodAutoscaler {
	all := map[string]string{names.ClassAnnotation: names.ClassHPA, "note": "kept"}
	for key, value := range annotations {
		all[names.AutoscalingGroup+"/"+key] = value
	}
	return &autoscalingv1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello-00001", UID: "pa-uid", Annotations: all, Labels: map[string]string{names.RevisionLabel: "hello-00001"}},
		Spec: autoscalingv1alpha1.PodAutoscalerSpec{Reachability: autoscalingv1alpha1.ReachabilityReachable,
			ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "hello-00001-deployment"}},
	}
}

func TestTranslation(t *testing.T) {
	defaults := settings.Default().Autoscaler
	limited, floor := defaults, defaults
	limited.MaxScaleLimit, limited.MaxScale = 7, 7
	floor.MinScale = 3
	var out strings.Builder
	for _, row := range []struct {
		why         string
		annotations map[string]string
		settings    settings.Autoscaler
		unreachable bool
		up          bool
	}{
		{"nothing asked for: Kubernetes' own metrics, and no bounds", nil, defaults, false, false},
		{"CPU, in percent of the request, rounded up", map[string]string{"metric": "cpu", "target": "49.2"}, defaults, false, false},
		{"memory, in Mi", map[string]string{"metric": "memory", "target": "200"}, defaults, false, false},
		{"a metric of the pods themselves", map[string]string{"metric": "queue_length", "target": "2.5"}, defaults, false, false},
		{"a target without a metric is one of CPU", map[string]string{"target": "60"}, defaults, false, false},
		{"bounds", map[string]string{"metric": "cpu", "target": "50", "min-scale": "2", "max-scale": "9"}, defaults, false, false},
		{"the other spelling of bounds", map[string]string{"minScale": "2", "maxScale": "9"}, defaults, false, false},
		{"a minimum above the maximum gives way", map[string]string{"min-scale": "9", "max-scale": "2"}, defaults, false, false},
		{"the settings' minimum", nil, floor, false, false},
		{"the settings' limit holds over no maximum", map[string]string{"max-scale": "0"}, limited, false, false},
		{"nobody routes to it: no minimum", map[string]string{"min-scale": "2"}, defaults, true, false},
		{"a window", map[string]string{"metric": "cpu", "target": "50", "window": "90s"}, defaults, false, false},
		{"a target that is none", map[string]string{"metric": "cpu", "target": "many"}, defaults, false, false},
		{"a target beyond reason", map[string]string{"metric": "cpu", "target": "1e300"}, defaults, false, false},
		{"an initial scale is the minimum", map[string]string{"initial-scale": "3"}, defaults, false, false},
		{"until so many pods were ready", map[string]string{"initial-scale": "3"}, defaults, false, true},
		{"an initial scale though nobody routes to it", map[string]string{"initial-scale": "3", "min-scale": "5"}, defaults, true, false},
		{"an initial scale above the maximum gives way", map[string]string{"initial-scale": "3", "max-scale": "2"}, defaults, false, false},
	} {
		pa := podAutoscaler(row.annotations)
		if row.unreachable {
			pa.Spec.Reachability = autoscalingv1alpha1.ReachabilityUnreachable
		}
		if row.up {
			pa.Status.MarkScaleTargetInitialized()
		}
		hpa := makeHPA(pa, row.settings)
		if hpa.Name != pa.Name || !metav1.IsControlledBy(hpa, pa) || hpa.Annotations["note"] != "kept" || hpa.Labels[names.RevisionLabel] != pa.Name {
			t.Errorf("%s: metadata %+v", row.why, hpa.ObjectMeta)
		}
		text, err := yaml.Marshal(hpa.Spec)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "# %s\n%s\n", row.why, text)
		if again := makeHPA(pa, row.settings); !cmp.Equal(again, hpa) {
			t.Errorf("%s: made twice, it differs", row.why)
		}
	}
	golden.File(t, "testdata/translation.txt", out.String())
}

// What Kubernetes fills in must not look like a difference, and what somebody else changed must.
func TestWhatKubernetesFillsInIsNoDifference(t *testing.T) {
	want := makeHPA(podAutoscaler(map[string]string{"window": "60s"}), settings.Default().Autoscaler).Spec
	kept := stored(want)
	if kept.MinReplicas == nil || *kept.MinReplicas != 1 || len(kept.Metrics) != 1 || *kept.Metrics[0].Resource.Target.AverageUtilization != 80 ||
		len(kept.Behavior.ScaleUp.Policies) != 2 || len(kept.Behavior.ScaleDown.Policies) != 1 || *kept.Behavior.ScaleDown.SelectPolicy != autoscalingv2.MaxChangePolicySelect {
		t.Errorf("stored as %+v", kept)
	}
	if !cmp.Equal(stored(kept), kept) {
		t.Errorf("stored twice, it differs: %s", cmp.Diff(kept, stored(kept)))
	}
	if want.MinReplicas != nil || len(want.Metrics) > 0 || len(want.Behavior.ScaleUp.Policies) > 0 {
		t.Errorf("asking what is stored changed what is wanted: %+v", want)
	}
	kept.MaxReplicas = 2
	if cmp.Equal(stored(kept), stored(want)) {
		t.Error("another maximum is no difference")
	}
}

func TestStatus(t *testing.T) {
	now := metav1.NewMicroTime(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	deployment := func(replicas, ready int32) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas}, Status: appsv1.DeploymentStatus{ReadyReplicas: ready}}
	}
	for _, row := range []struct {
		why              string
		deployment       *appsv1.Deployment
		current, desired int32
		least            int32
		was              bool
		active           corev1.ConditionStatus
		initialized      corev1.ConditionStatus
		populated        corev1.ConditionStatus
		wantDesired      int32
		wantActual       int32
	}{
		{"no Deployment yet", nil, 0, 0, 0, false, "Unknown", "Unknown", "Unknown", 0, 0},
		{"its pod starts", deployment(1, 0), 0, 0, 0, false, "Unknown", "Unknown", "Unknown", 1, 0},
		{"its pod is ready before Kubernetes came round", deployment(1, 1), 0, 0, 0, false, "True", "True", "True", 1, 1},
		{"Kubernetes counts it, though it is not ready", deployment(1, 0), 1, 1, 0, false, "Unknown", "Unknown", "Unknown", 1, 0},
		{"below its minimum it is not initialized", deployment(3, 2), 2, 3, 3, false, "Unknown", "Unknown", "True", 3, 2},
		{"nor if Kubernetes counts as many as its minimum", deployment(3, 2), 3, 3, 3, false, "Unknown", "Unknown", "True", 3, 2},
		{"what was initialized stays so", deployment(3, 0), 0, 3, 3, true, "Unknown", "True", "Unknown", 3, 0},
		{"as long as Kubernetes counts its pod, too", deployment(1, 0), 1, 1, 0, true, "Unknown", "True", "Unknown", 1, 0},
		{"under load it wants what Kubernetes wants", deployment(4, 2), 4, 4, 0, true, "True", "True", "True", 4, 2},
	} {
		pa := podAutoscaler(nil)
		pa.Status.InitializeConditions()
		pa.Status.Mode = autoscalingv1alpha1.ModeProxy // left by another class
		pa.Status.MarkInactive("NoTraffic", "")
		if row.was {
			pa.Status.MarkScaleTargetInitialized()
		}
		hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Name: "hello-00001"},
			Status: autoscalingv2.HorizontalPodAutoscalerStatus{CurrentReplicas: row.current, DesiredReplicas: row.desired,
				CurrentMetrics: []autoscalingv2.MetricStatus{{Type: "Resource", Resource: &autoscalingv2.ResourceMetricStatus{Name: "cpu",
					Current: autoscalingv2.MetricValueStatus{AverageUtilization: ptr.To[int32](93)}}}},
				Conditions: []autoscalingv2.HorizontalPodAutoscalerCondition{{Type: autoscalingv2.ScalingActive, Status: "True", Message: "by cpu"},
					{Type: autoscalingv2.ScalingLimited, Status: "False", Message: "within range"}}}}
		setConditions(pa, hpa, row.deployment, row.least, now)
		s := pa.Status
		if got := s.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionScaleTargetInitialized).Status; got != row.initialized {
			t.Errorf("%s: initialized %s", row.why, got)
		}
		if got := s.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionSKSReady).Status; got != row.populated {
			t.Errorf("%s: SKSReady %s", row.why, got)
		}
		if got := s.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive).Status; got != row.active {
			t.Errorf("%s: active %s", row.why, got)
		}
		if s.Mode != autoscalingv1alpha1.ModeServe || s.NumActivators != 0 || s.ServiceName != "hello-00001" || s.MetricsServiceName != "hello-00001-private" {
			t.Errorf("%s: %+v", row.why, s)
		}
		if *s.DesiredScale != row.wantDesired || *s.ActualScale != row.wantActual {
			t.Errorf("%s: desired %d, actual %d", row.why, *s.DesiredScale, *s.ActualScale)
		}
		if row.desired == 0 {
			if s.Decision != nil {
				t.Errorf("%s: a decision from nothing: %+v", row.why, s.Decision)
			}
			continue
		}
		if want := fmt.Sprintf("HorizontalPodAutoscaler hello-00001 wants %d pods; by cpu", row.desired); s.Decision.Reason != want || s.Decision.Inputs["cpu"] != "93%" {
			t.Errorf("%s: %+v", row.why, s.Decision)
		}
		before := s.Decision
		setConditions(pa, hpa, row.deployment, row.least, metav1.NewMicroTime(now.Add(time.Minute)))
		if pa.Status.Decision != before {
			t.Errorf("%s: the same choice is told as a new one", row.why)
		}
	}
}

func TestScalesNeverReachZeroOrPassTheMaximum(t *testing.T) {
	for _, text := range []string{"0", "1", "2", "2147483647"} {
		for _, most := range []string{"", "0", "1", "5"} {
			annotations := map[string]string{"min-scale": text, "initial-scale": text}
			if most != "" {
				annotations["max-scale"] = most
			}
			s := settings.Default().Autoscaler
			s.AllowZeroInitialScale = true
			hpa := makeHPA(podAutoscaler(annotations), s)
			if low := ptr.Deref(hpa.Spec.MinReplicas, 1); low < 1 || low > hpa.Spec.MaxReplicas {
				t.Errorf("min %s, max %q: %d to %d", text, most, low, hpa.Spec.MaxReplicas)
			}
			if most == "5" != (hpa.Spec.MaxReplicas == 5) && !slices.Contains([]int32{1, math.MaxInt32}, hpa.Spec.MaxReplicas) {
				t.Errorf("max %q: %d", most, hpa.Spec.MaxReplicas)
			}
		}
	}
}

// A count that nobody keeps up to date would hide for ever that the pods fail.
func TestThisClassForgetsThePodsAsleepOfAnother(t *testing.T) {
	pa := podAutoscaler(nil)
	pa.Status.AsleepReplicas, pa.Status.Asleep = ptr.To[int32](2), "2 frozen"
	setConditions(pa, &autoscalingv2.HorizontalPodAutoscaler{}, nil, 0, metav1.MicroTime{})
	if pa.Status.AsleepReplicas != nil || pa.Status.Asleep != "" {
		t.Errorf("the status says %v, %q", *pa.Status.AsleepReplicas, pa.Status.Asleep)
	}
}

func makeHPA(pa *autoscalingv1alpha1.PodAutoscaler, a settings.Autoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	return MakeHPA(pa, &rules.Config{Autoscaling: a})
}
