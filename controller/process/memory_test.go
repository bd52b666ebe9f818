package process

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/controller/internal/revision"
	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/internal/testing/heap"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

// maxCached bounds what the caches hold of a service without load, with their indexes, in bytes.
const maxCached = 19 << 10

// What the caches of the controller hold of a Service whose hosts rest and that has no pod, by
// kind: live bytes, which the process has up to twice. The objects are those that the reconcilers
// and Kubernetes make, with what an API server and a user's kubectl add.
func TestWhatTheCachesHoldOfAService(t *testing.T) {
	const n = 300
	store, config := apiservertest.New()
	copyService(t, store, n)
	snapshot, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": ""},
		settings.DeploymentName: {"queue-sidecar-image": "dev.local/queue-proxy:1"}, settings.GatewayName: {"resting-routes": "Enabled"}})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	mgr := reconcile.NewManager(clients, settings.NewStore(snapshot), &record.FakeRecorder{}, slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	list := controllers(mgr, func() []byte { return []byte("0123456789abcdef0123456789abcdef") }, digest.ReadOptions(env.New(func(string) string { return "" })))
	// Another replica has the Lease, so nothing is reconciled.
	scheme := lease.Scheme{Prefix: "controller.", Buckets: 1, LeaseDuration: 10 * time.Minute, RenewDeadline: 9 * time.Minute, RetryPeriod: time.Minute}
	for _, name := range scheme.Names() {
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		store.Put(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": name, "namespace": "knative-serving"},
			"spec": map[string]any{"holderIdentity": "another", "leaseDurationSeconds": int64(600), "acquireTime": now, "renewTime": now}}})
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended, synced := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- mgr.Run(ctx, list, reconcile.Options{Identity: "this", Timeout: 30 * time.Second, Metrics: reconcile.NewMetrics(prometheus.NewRegistry()),
			Leases: func() (lease.Scheme, <-chan struct{}) { return scheme, nil }, Synced: func() { close(synced) }})
	}()
	<-synced
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}

	serving, made := mgr.EbbInformers.Serving().V1(), mgr.Kubernetes("", revision.Selector)
	published, placeholders := mgr.Kubernetes("", names.ServerlessServiceLabel), mgr.Kubernetes("", names.RouteLabel)
	sum := 0
	for _, c := range []struct {
		what     string
		informer cache.SharedIndexInformer
		each     int
	}{
		{"Service", serving.Services().Informer(), 1},
		{"Configuration", serving.Configurations().Informer(), 1},
		{"Route", serving.Routes().Informer(), 1},
		{"Revision", serving.Revisions().Informer(), 1},
		{"PodAutoscaler", mgr.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Informer(), 1},
		{"Deployment", made.Apps().V1().Deployments().Informer(), 1},
		{"Kubernetes Service of the Route", placeholders.Core().V1().Services().Informer(), 1},
		{"Kubernetes Services of the revision", published.Core().V1().Services().Informer(), 2},
		{"EndpointSlices", published.Discovery().V1().EndpointSlices().Informer(), 2},
	} {
		if have := len(c.informer.GetStore().List()); have > c.each*(n+1) {
			t.Errorf("%s: there are %d in the cache", c.what, have)
		}
		for _, object := range c.informer.GetStore().List() {
			if len(object.(metav1.Object).GetManagedFields()) > 0 {
				t.Errorf("%s: managed fields are kept", c.what)
				break
			}
		}
		with := heap.Live()
		if err := c.informer.GetStore().Replace(nil, ""); err != nil {
			t.Fatal(err)
		}
		bytes := (with - heap.Live()) / n
		t.Logf("%6d bytes: %s", bytes, c.what)
		sum += bytes
	}
	t.Logf("%6d bytes: all kinds", sum)
	if sum > maxCached {
		t.Errorf("the caches hold %d bytes of a service, at most %d are allowed for", sum, maxCached)
	}
	runtime.KeepAlive(list)
}

// copyService has the reconcilers make a Service, and puts copies of all its objects into a store.
func copyService(t *testing.T, store *apiservertest.Store, n int) {
	type object struct {
		resource schema.GroupResource
		text     string
	}
	var objects []object
	synctest.Test(t, func(t *testing.T) {
		g := newRestingGround(t, 1)
		defer g.end()
		g.pass(30 * time.Second)
		one := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "one", Annotations: map[string]string{
			names.CreatorAnnotation: "kubernetes-admin", names.LastModifierAnnotation: "kubernetes-admin",
			names.LastAppliedAnnotation: `{"apiVersion":"serving.knative.dev/v1","kind":"Service","metadata":{"annotations":{},"name":"one","namespace":"ns"},` +
				`"spec":{"template":{"spec":{"containers":[{"env":[{"name":"TARGET","value":"you"}],"image":"dev.local/hello:1"}]}}}}` + "\n"}}}
		one.Spec.Template.Annotations = map[string]string{names.InitialScaleAnnotation: "0"}
		one.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/hello:1", Env: []corev1.EnvVar{{Name: "TARGET", Value: "you"}}}}
		g.put(services, "serving.knative.dev/v1", "Service", one)
		g.readily("one")
		g.pass(time.Minute)
		for _, resource := range []schema.GroupResource{services, configurations, routesResource, revisions, autoscalers, deployments, coreServices, endpointSlices} {
			for _, name := range g.names(resource) {
				o := g.store.Get(resource, "ns", name)
				if resource == autoscalers {
					_ = unstructured.SetNestedMap(o.Object, decision(), "status", "decision")
				}
				objects = append(objects, object{resource, encoded(t, o)})
				if resource == coreServices && strings.HasSuffix(name, "-private") {
					objects = append(objects, object{endpointSlices, encoded(t, sliceOf(o))})
				}
			}
		}
	})
	for i := range n {
		for _, o := range objects {
			text := strings.NewReplacer("one", fmt.Sprintf("service-%05d", i), "00000000-0000-0000-0000-", fmt.Sprintf("00000000-0000-0000-%04x-", i)).Replace(o.text)
			next := &unstructured.Unstructured{}
			if err := next.UnmarshalJSON([]byte(text)); err != nil {
				t.Fatal(err)
			}
			store.Put(o.resource, next)
		}
	}
	if len(store.Versions(endpointSlices, labels.Everything())) < n {
		t.Fatal("there are no EndpointSlices")
	}
}

// decision is what an autoscaler writes of its last one.
func decision() map[string]any {
	inputs := map[string]any{}
	for _, name := range []string{"ready", "target", "total", "metric", "excessBurst", "panicking", "stable", "panic", "queued", "missing"} {
		inputs[name] = "0"
	}
	return map[string]any{"time": "2026-03-01T12:00:00.000000Z", "desired": int64(0), "rule": "no-data",
		"reason": "no data was seen yet", "inputs": inputs}
}

// encoded returns the object as an API server has it.
func encoded(t *testing.T, o *unstructured.Unstructured) string {
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "controller", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: o.GetAPIVersion(),
		FieldsType: "FieldsV1", Time: ptr.To(metav1.Now()), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{}}`)}})
	text, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sliceOf returns the EndpointSlice that Kubernetes makes for a Service without pods.
func sliceOf(service *unstructured.Unstructured) *unstructured.Unstructured {
	l := service.GetLabels()
	l["kubernetes.io/service-name"], l["endpointslice.kubernetes.io/managed-by"] = service.GetName(), "endpointslice-controller.k8s.io"
	l["service.kubernetes.io/headless"] = ""
	slice := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": nil, "ports": nil}}
	slice.SetNamespace(service.GetNamespace())
	slice.SetName(service.GetName() + "-abcde")
	slice.SetGenerateName(service.GetName() + "-")
	slice.SetLabels(l)
	slice.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service.GetName(), UID: service.GetUID(),
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}})
	return slice
}

// The cache has a part of a Deployment. What others wrote into the rest is still there after the
// controller has written it.
func TestATrimmedDeploymentIsNotWrittenBack(t *testing.T) {
	w := newWorld(t)
	for _, block := range []string{
		"apply\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: one}\nspec: {template: {spec: {containers: [{image: dev.local/hello:1}]}}}",
		"pods rev=one-00001 n=1 ready=1",
		"autoscaler rev=one-00001 want=1 ready=1",
		"route name=one",
		"deployment one-00001-deployment\nmetadata: {labels: {team: a}, annotations: {note: b}}\n" +
			"spec: {template: {metadata: {labels: {mesh: c}, annotations: {kubectl.kubernetes.io/restartedAt: d}}}}",
		"pods rev=one-00001 n=0",
		"autoscaler rev=one-00001 want=0 ready=0",
		"settings config-deployment queue-sidecar-image=dev.local/queue-proxy:2",
	} {
		command, body, _ := strings.Cut(block, "\n")
		w.command(strings.Fields(command), body)
		w.settle()
	}
	d := &appsv1.Deployment{}
	if err := apiruntime.DefaultUnstructuredConverter.FromUnstructured(w.store.Get(deployments, "ns", "one-00001-deployment").Object, d); err != nil {
		t.Fatal(err)
	}
	template := d.Spec.Template
	if !slices.ContainsFunc(template.Spec.Containers, func(c corev1.Container) bool { return c.Image == "dev.local/queue-proxy:2" }) {
		t.Errorf("it was not written: %+v", template.Spec.Containers)
	}
	if d.Labels["team"] != "a" || d.Annotations["note"] != "b" || template.Labels["mesh"] != "c" || template.Annotations["kubectl.kubernetes.io/restartedAt"] != "d" ||
		d.Labels[names.RevisionLabel] == "" || len(d.Spec.Selector.MatchLabels) == 0 {
		t.Errorf("something is lost: %+v, selector %+v, template %+v", d.ObjectMeta, d.Spec.Selector, template.ObjectMeta)
	}
}

// What kubectl remembers of a Service is not in the cache, nor how Ebb's autoscaler decided. Both
// are there after each write of the objects.
func TestWhatTheCachesLackIsNotTakenAway(t *testing.T) {
	const remembered = `{"kind":"Service"}`
	w := newWorld(t)
	for _, block := range []string{
		"apply\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: one, annotations: {" + names.LastAppliedAnnotation + ": '" + remembered + "'}}\n" +
			"spec: {template: {spec: {containers: [{image: dev.local/hello:1}]}}}",
		"pods rev=one-00001 n=1 ready=1",
		"autoscaler rev=one-00001 want=1 ready=1",
		"route name=one",
		"decided",
		"annotate one-00001 autoscaling.knative.dev/max-scale=7",
	} {
		command, body, _ := strings.Cut(block, "\n")
		if command == "decided" {
			w.edit(autoscalers, "one-00001", func(pa *unstructured.Unstructured) {
				_ = unstructured.SetNestedMap(pa.Object, decision(), "status", "decision")
			})
		} else {
			w.command(strings.Fields(command), body)
		}
		w.settle()
	}
	pa := w.store.Get(autoscalers, "ns", "one-00001")
	if pa.GetAnnotations()["autoscaling.knative.dev/max-scale"] != "7" {
		t.Errorf("the PodAutoscaler was not written: %v", pa.GetAnnotations())
	}
	if rule, _, _ := unstructured.NestedString(pa.Object, "status", "decision", "rule"); rule == "" {
		t.Error("the decision is lost")
	}
	one := w.store.Get(services, "ns", "one")
	if made, _, _ := unstructured.NestedString(one.Object, "status", "latestCreatedRevisionName"); made != "one-00001" {
		t.Fatalf("the status was not written: %v", one.Object["status"])
	}
	if text := one.GetAnnotations()[names.LastAppliedAnnotation]; text != remembered {
		t.Errorf("kubectl finds %q", text)
	}
	cached, err := w.world.EbbInformers.Serving().V1().Services().Lister().Services("ns").Get("one")
	if err != nil || cached.Annotations[names.LastAppliedAnnotation] != "" {
		t.Errorf("the cache has %v, %v", cached, err)
	}
}
