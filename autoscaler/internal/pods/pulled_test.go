package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/test/apiservertest"
)

func TestAPullIsFoundInThePodsEvents(t *testing.T) {
	_, config := apiservertest.Start(t)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, e := range map[string]corev1.Event{
		"a": {InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "pulls"}, Reason: "Pulling"},
		"b": {InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "has-it"}, Reason: "Pulled"},
		"c": {InvolvedObject: corev1.ObjectReference{Kind: "Job", Name: "has-it"}, Reason: "Pulling"},
	} {
		e.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: name}
		e.InvolvedObject.Namespace = "ns"
		if _, err := kube.CoreV1().Events("ns").Create(t.Context(), &e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pulled := Pulled(kube)
	for pod, want := range map[string]bool{"pulls": true, "has-it": false, "other": false} {
		if got := pulled(t.Context(), "ns", pod); got != want {
			t.Errorf("%s: %v", pod, got)
		}
	}
	if pulled(t.Context(), "elsewhere", "pulls") {
		t.Error("a pod of the same name in another namespace")
	}
}
