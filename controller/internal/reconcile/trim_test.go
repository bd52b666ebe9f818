package reconcile

import (
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

// What is not read is not kept, and what is written back is.
func TestWhatIsKeptOfADecision(t *testing.T) {
	for _, c := range []struct {
		class, rule string
		kept        bool
	}{
		{"", "stable", false},
		{names.ClassKPA, "stable", false},
		{"", autoscalingv1alpha1.RuleHPA, true},
		{names.ClassHPA, "stable", true},
		{names.ClassHPA, autoscalingv1alpha1.RuleHPA, true},
	} {
		pa := &autoscalingv1alpha1.PodAutoscaler{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{names.ClassAnnotation: c.class}}}
		pa.Status.Decision = &autoscalingv1alpha1.Decision{Rule: c.rule}
		pa.Status.InitializeConditions()
		all := len(pa.Status.Conditions)
		if _, err := Trim(pa); err != nil || (pa.Status.Decision != nil) != c.kept {
			t.Errorf("class %q, rule %q: %v, %v", c.class, c.rule, pa.Status.Decision, err)
		}
		if kept := len(pa.Status.Conditions); (kept == all) != c.kept || pa.Status.GetCondition(autoscalingv1alpha1.PodAutoscalerConditionActive) == nil {
			t.Errorf("class %q, rule %q: %d of %d conditions are kept", c.class, c.rule, kept, all)
		}
	}
}

func TestWhatIsKeptOfAnEndpointSlice(t *testing.T) {
	of := func(manager string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"a": "b"}, OwnerReferences: []metav1.OwnerReference{{Name: "x"}},
			Labels: map[string]string{discoveryv1.LabelManagedBy: manager, discoveryv1.LabelServiceName: "x-private", names.ServerlessServiceLabel: "x", "team": "a"}}}
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
		if _, err := Trim(s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := of(kubernetesOwn); len(s.Labels) != 3 || s.Annotations != nil || s.OwnerReferences != nil || len(s.Endpoints) != 1 {
		t.Errorf("of one of Kubernetes' own there is %+v", s)
	}
	if s := of("ebb-controller"); len(s.Labels) != 4 || s.Annotations == nil || s.OwnerReferences == nil {
		t.Errorf("of one that is written there is %+v", s)
	}
}

// A Service, its Configuration and its Revision have the same containers.
func TestEqualContainersAreKeptOnce(t *testing.T) {
	containers := func() []corev1.Container {
		return []corev1.Container{{Image: "x", Env: []corev1.EnvVar{{Name: "A", Value: "b"}},
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	}
	var service servingv1.Service
	var configuration servingv1.Configuration
	var revision servingv1.Revision
	service.Spec.Template.Spec.Containers, configuration.Spec.Template.Spec.Containers, revision.Spec.Containers = containers(), containers(), containers()
	for _, object := range []any{&service, &configuration, &revision} {
		if _, err := Trim(object); err != nil {
			t.Fatal(err)
		}
		if have := *containersOf(object); &have[0] != &service.Spec.Template.Spec.Containers[0] || !equality.Semantic.DeepEqual(have, containers()) {
			t.Errorf("%T has %+v", object, have)
		}
	}
}

func TestServicesShareTheirPorts(t *testing.T) {
	of := func(port int32) []corev1.ServicePort {
		s := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: port, TargetPort: intstr.FromInt32(8012)}}}}
		if _, err := Trim(s); err != nil {
			t.Fatal(err)
		}
		if len(s.Spec.Ports) != 1 || s.Spec.Ports[0].Port != port {
			t.Fatalf("port %d became %v", port, s.Spec.Ports)
		}
		return s.Spec.Ports
	}
	if first, second := of(80), of(80); &first[0] != &second[0] {
		t.Error("there are two equal lists")
	}
	// A reflector trims what a list has twice.
	shared := of(80)
	var reads sync.WaitGroup
	reads.Go(func() {
		if shared[0].Name != "http" {
			t.Error(shared[0])
		}
	})
	again := &corev1.Service{Spec: corev1.ServiceSpec{Ports: shared}}
	if _, err := Trim(again); err != nil || &again.Spec.Ports[0] != &shared[0] {
		t.Errorf("what is shared became %v, %v", again.Spec.Ports, err)
	}
	reads.Wait()
	for port := range int32(100) { // more than are remembered
		of(1000 + port)
		of(80)
	}
	if first, second := of(80), of(80); &first[0] != &second[0] {
		t.Error("there are two equal lists after many others")
	}
}
