package watch

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"ebb.dev/ebb/activator/internal/backends"
	"ebb.dev/ebb/activator/internal/hold"
	"ebb.dev/ebb/activator/internal/plans"
	"ebb.dev/ebb/activator/internal/relay"
	"ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/testing/heap"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

// maxHeld bounds what an activator holds of a service without load whose hosts rest, in bytes.
const maxHeld = 2200

// What an activator holds of a service: live bytes, which the process has up to twice. The objects
// are as the API server has them.
func TestWhatAnActivatorHoldsOfAService(t *testing.T) {
	const few, many = 100, 600
	holds(t, few) // what a process has once
	if each := (holds(t, many) - holds(t, few)) / (many - few); each > maxHeld {
		t.Errorf("%d bytes, at most %d are allowed for", each, maxHeld)
	} else {
		t.Logf("%d bytes", each)
	}
}

// holds returns the bytes that the watch of n services keeps in memory.
func holds(t *testing.T, n int) int {
	store, config := apiservertest.New()
	put := func(resource schema.GroupResource, version, kind string, object apiruntime.Object) {
		content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		content["apiVersion"], content["kind"] = version, kind
		store.Put(resource, &unstructured.Unstructured{Object: content})
	}
	slices := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	put(slices, "discovery.k8s.io/v1", "EndpointSlice", resting("10.0.0.7", "10.0.0.8"))
	for i := range n {
		r := restingRevision(fmt.Sprintf("service-%05d", i))
		put(schema.GroupResource{Group: "serving.knative.dev", Resource: "revisions"}, "serving.knative.dev/v1", "Revision", r)
		text := fmt.Sprintf(`{"uid":"%s","hash":"0200075faba83c33","at":1946685430010,"targets":[{"host":"service-%05d.ns.example.com","to":[{"rev":"%s"}]}]}`, r.UID, i, r.Name)
		route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("service-%05d", i), Labels: r.Labels}}
		route.Status.Annotations = map[string]string{names.PlanAnnotation: text}
		put(schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}, "serving.knative.dev/v1", "Route", route)
		// The plan names the UID that the API server gives.
		made := store.Get(schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}, "ns", route.Name)
		route.UID = made.GetUID()
		route.Status.Annotations[names.PlanAnnotation] = fmt.Sprintf(`{"uid":"%s","hash":"0200075faba83c33","at":1946685430010,"targets":[{"host":"service-%05d.ns.example.com","to":[{"rev":"%s"}]}]}`, made.GetUID(), i, r.Name)
		put(schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}, "serving.knative.dev/v1", "Route", route)
		private := &discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: r.Name + "-private-abcde", GenerateName: r.Name + "-private-",
			Labels: map[string]string{"kubernetes.io/service-name": r.Name + "-private", "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
				"service.kubernetes.io/headless": ""}}}
		for key, value := range r.Labels {
			private.Labels[key] = value
		}
		private.Labels[names.ServiceTypeLabel], private.Labels[names.RevisionLabel] = names.ServiceTypePrivate, r.Name
		put(slices, "discovery.k8s.io/v1", "EndpointSlice", private)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ebb, err := versioned.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	before := heap.Live()
	budget := hold.NewBudget(hold.Bounds{})
	w := &Watch{Kube: kube, Ebb: ebb, Plans: plans.NewTable("cluster.local"), System: "knative-serving", Relay: &relay.Table{},
		Table: backends.NewTable(func(_ backends.Key, info *backends.Info) *hold.Queue {
			return hold.New(info.ContainerConcurrency, budget.Share("ns"), hold.Options{})
		}),
		Settings: settings.NewStore(nil), Log: slog.New(slog.DiscardHandler), Known: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	<-w.Known
	held := heap.Live() - before
	if w.Plans.Len() != n || w.Table.Get(backends.Key{Namespace: "ns", Name: "service-00001-00001"}) == nil {
		t.Fatalf("%d plans are known of %d", w.Plans.Len(), n)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	runtime.KeepAlive(store)
	return held
}

// restingRevision is one as the reconcilers make it.
func restingRevision(service string) *servingv1.Revision {
	const uid = "6f1b2c34-5a0e-4f6b-9d1e-"
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service + "-00001", UID: types.UID(uid + service), Generation: 1, Finalizers: nil,
		Labels: map[string]string{"serving.knative.dev/configuration": service, "serving.knative.dev/configurationGeneration": "1",
			"serving.knative.dev/configurationUID": uid + service, "serving.knative.dev/routingState": "active",
			"serving.knative.dev/service": service, "serving.knative.dev/serviceUID": uid + service},
		Annotations: map[string]string{"autoscaling.knative.dev/initial-scale": "0", "serving.knative.dev/creator": "kubernetes-admin",
			"serving.knative.dev/routes": service, "serving.knative.dev/routingStateModified": "2026-03-01T12:00:00Z"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Configuration", Name: service, UID: uid, Controller: ptr.To(true)}}}}
	r.Spec.ContainerConcurrency, r.Spec.TimeoutSeconds, r.Spec.EnableServiceLinks = number(0), number(300), ptr.To(false)
	r.Spec.Containers = []corev1.Container{{Name: "user-container", Image: "dev.local/hello:1", Env: []corev1.EnvVar{{Name: "TARGET", Value: "you"}},
		ReadinessProbe: &corev1.Probe{SuccessThreshold: 1, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}}}
	for _, c := range []string{"Active", "ContainerHealthy", "Ready", "ResourcesAvailable"} {
		r.Status.Conditions = append(r.Status.Conditions, apis.Condition{Type: apis.ConditionType(c), Status: corev1.ConditionTrue,
			LastTransitionTime: apis.VolatileTime{Inner: metav1.NewTime(time.Now())}})
	}
	r.Status.Conditions[0].Status, r.Status.Conditions[0].Reason, r.Status.Conditions[0].Message = corev1.ConditionFalse, "NoTraffic", "No requests arrive, so no pods are kept."
	r.Status.Status = duckv1.Status{ObservedGeneration: 1, Conditions: r.Status.Conditions}
	r.Status.ContainerStatuses = []servingv1.ContainerStatus{{Name: "user-container"}}
	r.Status.ActualReplicas, r.Status.DesiredReplicas = ptr.To(int32(0)), ptr.To(int32(0))
	return r
}
