package process

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"knative.dev/pkg/apis"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/test/eventually"
)

// The scenarios step the reconcilers by hand. Here they run as in the cluster, woken by events
// alone: a watch that nobody set up shows as a Service that never becomes Ready.
func TestEventsAloneBringAServiceToReadyAndThenNothingIsWritten(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	stage.Run(t, w.world, w.controllers...)
	t.Cleanup(w.stopCaches) // they were started by the test, and the Manager waits for their end

	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello"}}
	service.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/hello:1"}}
	if _, err := w.world.Ebb.ServingV1().Services("ns").Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the PodAutoscaler, last of a revision's children", func() bool {
		return w.store.Get(autoscalers, "ns", "hello-00001") != nil && w.store.Get(deployments, "ns", "hello-00001-deployment") != nil
	})
	w.pods(map[string]string{"rev": "hello-00001", "n": "1", "ready": ""}, "")
	w.autoscaler(map[string]string{"rev": "hello-00001", "want": "1", "ready": "1"})
	eventually.True(t, "the Configuration has a latest ready revision", func() bool {
		config := w.store.Get(configurations, "ns", "hello")
		name, _, _ := unstructured.NestedString(config.Object, "status", "latestReadyRevisionName")
		return name == "hello-00001"
	})
	w.route(map[string]string{"name": "hello"})
	eventually.True(t, "the Service is Ready", func() bool {
		live, err := w.world.Ebb.ServingV1().Services("ns").Get(ctx, "hello", metav1.GetOptions{})
		return err == nil && live.Status.GetCondition(apis.ConditionReady).IsTrue() && live.Status.ObservedGeneration == live.Generation
	})

	// A steady world writes nothing, however often it is looked at.
	w.settle()
	w.store.Writes()
	for range 5 {
		for _, c := range w.controllers {
			for _, key := range c.Keys() {
				if _, err := c.Reconcile(ctx, key); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if writes := w.store.Writes(); len(writes) != 0 {
		t.Errorf("a steady world was written to: %v", writes)
	}
}
