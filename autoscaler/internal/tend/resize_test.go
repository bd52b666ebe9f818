package tend

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/pods"
)

func TestAPodThatSleepsForLongGivesItsRoomToOthers(t *testing.T) {
	asks := func(cpu, memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}}
	}
	for behaviour, c := range map[string]struct {
		class       corev1.PodQOSClass
		cpu, memory string
		less        bool
	}{
		"a burstable pod":           {corev1.PodQOSBurstable, "500m", "128Mi", true},
		"a guaranteed pod does not": {corev1.PodQOSGuaranteed, "500m", "128Mi", false},
		"one that asks for nothing": {corev1.PodQOSBurstable, "1m", "1Mi", false},
	} {
		t.Run(behaviour, func(t *testing.T) {
			kube := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "a"},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "user-container", Resources: asks(c.cpu, c.memory)},
					{Name: names.QueueProxyContainer, Resources: asks("25m", "50Mi")}}},
				Status: corev1.PodStatus{QOSClass: c.class}})
			resizer := &Resizer{Kube: kube}
			look := func() *corev1.Pod {
				t.Helper()
				pod, err := kube.CoreV1().Pods(key.Namespace).Get(t.Context(), "a", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return pod
			}
			if err := resizer.shrink(t.Context(), key, "a"); err != nil {
				t.Fatal(err)
			}
			pod := look()
			cpu := pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
			if less := cpu == 1 && c.cpu != "1m"; less != c.less {
				t.Errorf("asleep it asks for %dm", cpu)
			}
			if proxy := pod.Spec.Containers[1].Resources.Requests.Cpu(); proxy.MilliValue() != 25 {
				t.Errorf("queue-proxy asks for %s", proxy)
			}
			was := pod.Annotations[names.AwakeRequestsAnnotation]
			if was == "" {
				t.Fatal("what it asked for is not noted")
			}
			if err := resizer.restore(t.Context(), key, pods.Pod{Name: "a", Shrunk: was}); err != nil {
				t.Fatal(err)
			}
			pod = look()
			asked := pod.Spec.Containers[0].Resources.Requests
			if asked.Cpu().Cmp(resource.MustParse(c.cpu)) != 0 || asked.Memory().Cmp(resource.MustParse(c.memory)) != 0 || pod.Annotations[names.AwakeRequestsAnnotation] != "" {
				t.Errorf("awake it asks for %v, annotations %v", asked, pod.Annotations)
			}
		})
	}
	gone := &Resizer{Kube: fake.NewClientset()}
	if err := gone.shrink(t.Context(), key, "a"); err != nil {
		t.Errorf("a pod that is gone: %v", err)
	}
}

// A tenant that writes what cannot be applied does not keep the autoscaler busy.
func TestAnAnnotationThatCannotBeAppliedIsRemoved(t *testing.T) {
	for what, text := range map[string]string{"not JSON": "{", "no container of the pod": `{"other":{"cpu":"1"}}`} {
		t.Run(what, func(t *testing.T) {
			kube := fake.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: "a",
				Annotations: map[string]string{names.AwakeRequestsAnnotation: text}}})
			kube.PrependReactor("patch", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
				return action.GetSubresource() == "resize", nil, apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil)
			})
			if err := (&Resizer{Kube: kube}).restore(t.Context(), key, pods.Pod{Name: "a", Shrunk: text}); err == nil {
				t.Error("nobody is told")
			}
			pod, err := kube.CoreV1().Pods(key.Namespace).Get(t.Context(), "a", metav1.GetOptions{})
			if err != nil || pod.Annotations[names.AwakeRequestsAnnotation] != "" {
				t.Errorf("%v, %v", pod.Annotations, err)
			}
		})
	}
}

func TestTheMemoryOfAllNodes(t *testing.T) {
	node := func(name, memory string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}}}
	}
	mib, err := (&Resizer{Kube: fake.NewClientset(node("a", "1Gi"), node("b", "512Mi"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "c"}})}).Nodes(t.Context())
	if err != nil || mib != 1536 {
		t.Errorf("%v, %v", mib, err)
	}
}
