package process

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/test/eventually"
)

func TestTheQuestionAboutADeletedRevisionEnds(t *testing.T) {
	w := newWorld(t)
	w.store.Put(revisions, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Revision", "metadata": map[string]any{"name": "hello", "namespace": "ns"}}})
	w.inStep()
	rev := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns", UID: w.store.Get(revisions, "ns", "hello").GetUID()}}
	rev.Spec.Containers = []corev1.Container{{Image: "registry.example.test/hello:1"}}
	ask := func() digest.Answer { return w.digests.Resolve(rev, digest.Settings{Timeout: time.Minute}) }

	ctx, cancel := context.WithCancel(t.Context())
	answered, ended := make(chan struct{}, 1), make(chan struct{})
	ask()
	go func() { defer close(ended); w.digests.Run(ctx, func(string, string) { answered <- struct{}{} }) }()
	<-answered
	cancel()
	<-ended // from here on nothing is answered anew
	if ask().Containers == nil {
		t.Fatal("the answer was not kept for the Revision")
	}
	w.store.Remove(revisions, "ns", "hello")
	eventually.True(t, "the question of a Revision that is gone is forgotten", func() bool { return ask().Containers == nil })
}
