package process

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/spec"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/internal/testing/heap"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

// maxHeld bounds what an autoscaler holds of a revision at zero, in bytes.
const maxHeld = 2200

// What an autoscaler holds of a revision at zero, with the object and the decisions that led to it:
// live bytes, which the process has up to twice. The objects are as the API server has them.
func TestWhatAnAutoscalerHoldsOfARevision(t *testing.T) {
	const few, many = 100, 600
	holds(t, few) // what a process has once
	if each := (holds(t, many) - holds(t, few)) / (many - few); each > maxHeld {
		t.Errorf("%d bytes, at most %d are allowed for", each, maxHeld)
	} else {
		t.Logf("%d bytes", each)
	}
}

type noPods struct{}

func (noPods) Count(loop.Key) revision.Counts { return revision.Counts{} }
func (noPods) Act(loop.Order)                 {}

func holds(t *testing.T, n int) int {
	store, config := apiservertest.New()
	for i := range n {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(atZero(fmt.Sprintf("service-%05d", i)))
		if err != nil {
			t.Fatal(err)
		}
		content["apiVersion"], content["kind"] = v1alpha1.SchemeGroupVersion.String(), "PodAutoscaler"
		store.Put(schema.GroupResource{Group: v1alpha1.SchemeGroupVersion.Group, Resource: "podautoscalers"}, &unstructured.Unstructured{Object: content})
	}
	client, err := versioned.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	before := heap.Live()
	autos, err := newAutoscalers(client)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	engine := loop.New(loop.Options{Shards: 4, Clock: loop.Monotonic(), Log: log, Pods: noPods{}, Actor: noPods{}, Prober: sleepy(0), Budget: &revision.Budget{},
		Source: &spec.Source{Get: autos.get, Settings: settings.NewStore(nil), Owns: func(loop.Key) bool { return true }, Log: log}})
	ctx, cancel := context.WithCancel(t.Context())
	decided := make(chan struct{})
	go func() { engine.Run(ctx); close(decided) }()
	if err := autos.start(ctx, engine.Changed); err != nil {
		t.Fatal(err)
	}
	engine.Settle(30 * time.Second) // adopted
	engine.Settle(30 * time.Second) // and looked at for the first time
	held := heap.Live() - before
	seen := 0
	engine.Each(func(loop.View) { seen++ })
	if seen != n {
		t.Errorf("%d revisions are there, not %d", seen, n)
	}
	cancel()
	<-decided
	autos.factory.Shutdown()
	runtime.KeepAlive(store)
	return held
}

// atZero is the PodAutoscaler of a revision at zero.
func atZero(service string) *v1alpha1.PodAutoscaler {
	const uid = "6f1b2c34-5a0e-4f6b-9d1e-"
	pa := podAutoscaler(service+"-00001", 0)
	pa.Namespace, pa.UID, pa.Generation = "ns", types.UID(uid+service), 1
	pa.Labels = map[string]string{"app": pa.Name, "serving.knative.dev/configuration": service, "serving.knative.dev/configurationGeneration": "1",
		"serving.knative.dev/configurationUID": uid + service, "serving.knative.dev/revision": pa.Name, "serving.knative.dev/revisionUID": uid + service,
		"serving.knative.dev/service": service, "serving.knative.dev/serviceUID": uid + service}
	pa.Annotations = map[string]string{"autoscaling.knative.dev/initial-scale": "0", "serving.knative.dev/creator": "kubernetes-admin"}
	pa.OwnerReferences = []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Revision", Name: pa.Name, UID: uid, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
	pa.Spec.ContainerConcurrency, pa.Spec.Reachability, pa.Spec.ProtocolType = 0, v1alpha1.ReachabilityReachable, "http1"
	pa.Status.ServiceName, pa.Status.MetricsServiceName = pa.Name, pa.Name+"-private"
	pa.Status.MarkSKSNotReady("No pod is ready, so activators take the requests.")
	pa.Status.Decision = &v1alpha1.Decision{Time: metav1.NewMicroTime(time.Now()), Rule: "initial-scale", Reason: "the initial scale is 0, so no pod is waited for (no data was seen yet)",
		Inputs: map[string]string{"ready": "0", "target": "70", "total": "100", "metric": "concurrency", "excessBurst": "-211", "panicking": "false", "stable": "unknown",
			"panic": "unknown", "queued": "0", "missing": "false"}}
	return pa
}
