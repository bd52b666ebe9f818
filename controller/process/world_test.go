package process

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/configuration"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/endpoints"
	"ebb.dev/ebb/controller/internal/gc"
	"ebb.dev/ebb/controller/internal/hpa"
	"ebb.dev/ebb/controller/internal/labeler"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/controller/internal/revision"
	"ebb.dev/ebb/controller/internal/service"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/apiservertest/policy"
	"ebb.dev/ebb/test/eventually"
)

// The resources that reconcilers and actors of a scenario touch.
var (
	services       = schema.GroupResource{Group: "serving.knative.dev", Resource: "services"}
	configurations = schema.GroupResource{Group: "serving.knative.dev", Resource: "configurations"}
	routesResource = schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}
	revisions      = schema.GroupResource{Group: "serving.knative.dev", Resource: "revisions"}
	autoscalers    = schema.GroupResource{Group: "autoscaling.internal.knative.dev", Resource: "podautoscalers"}
	deployments    = schema.GroupResource{Group: "apps", Resource: "deployments"}
	pods           = schema.GroupResource{Resource: "pods"}
	hpas           = schema.GroupResource{Group: "autoscaling", Resource: "horizontalpodautoscalers"}
	coreServices   = schema.GroupResource{Resource: "services"}
	configMaps     = schema.GroupResource{Resource: "configmaps"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// world is the controller's reconcilers over an API server in memory, stepped by hand: a step is
// one reconcile of one key with every cache in step with the server, so the same scenario makes the
// same writes in the same order each time.
type world struct {
	t           *testing.T
	store       *apiservertest.Store
	world       *reconcile.Manager
	settings    map[string]map[string]string
	controllers []*reconcile.Controller
	caches      []cached
	events      *record.FakeRecorder
	stopCaches  func()
	digests     *digest.Resolver
	now         time.Time
	out         strings.Builder
}

type cached struct {
	resource schema.GroupResource
	selector labels.Selector
	informer cache.SharedIndexInformer
}

func newWorld(t *testing.T) *world {
	store, config := apiservertest.Start(t)
	policy.Enforce(t, store, "controller")
	w := &world{t: t, store: store, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		settings: map[string]map[string]string{"config-deployment": {"queue-sidecar-image": "dev.local/queue-proxy:1"}}}
	store.Now = func() time.Time { return w.now }
	w.world = stage.Manager(t, config, stage.Settings(t, w.settings))
	w.events = w.world.Events.(*record.FakeRecorder)
	w.world.Now = func() time.Time { return w.now }
	key := []byte("0123456789abcdef0123456789abcdef")
	w.digests = digest.New(w.world.Kube, func(string, []string) http.RoundTripper { return refusing{} })
	w.controllers = []*reconcile.Controller{
		service.New(w.world),
		configuration.New(w.world),
		revision.New(w.world, func() []byte { return key }, w.digests),
		endpoints.New(w.world),
		hpa.New(w.world),
		labeler.New(w.world),
		gc.New(w.world),
	}
	serving, made := w.world.EbbInformers.Serving().V1(), w.world.Kubernetes("", revision.Selector)
	published, pages := w.world.Kubernetes("", names.ServerlessServiceLabel), w.world.Kubernetes("", revision.PageSelector)
	ofActivators := w.world.Kubernetes("knative-serving", discoveryv1.LabelServiceName+"=activator-service")
	selectors := map[string]labels.Selector{}
	for _, text := range []string{revision.Selector, revision.PageSelector, names.ServerlessServiceLabel, discoveryv1.LabelServiceName + "=activator-service"} {
		selector, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		selectors[text] = selector
	}
	withUID, ofRevisions := selectors[revision.Selector], selectors[names.ServerlessServiceLabel]
	w.caches = []cached{
		{services, labels.Everything(), serving.Services().Informer()},
		{configurations, labels.Everything(), serving.Configurations().Informer()},
		{routesResource, labels.Everything(), serving.Routes().Informer()},
		{revisions, labels.Everything(), serving.Revisions().Informer()},
		{autoscalers, labels.Everything(), w.world.EbbInformers.Autoscaling().V1alpha1().PodAutoscalers().Informer()},
		{deployments, withUID, made.Apps().V1().Deployments().Informer()},
		{pods, withUID, made.Core().V1().Pods().Informer()},
		{hpas, withUID, made.Autoscaling().V2().HorizontalPodAutoscalers().Informer()},
		{configMaps, selectors[revision.PageSelector], pages.Core().V1().ConfigMaps().Informer()},
		{coreServices, ofRevisions, published.Core().V1().Services().Informer()},
		{httpRoutes, labels.Everything(), w.world.GatewayInformers.Gateway().V1().HTTPRoutes().Informer()},
		{endpointSlices, ofRevisions, published.Discovery().V1().EndpointSlices().Informer()},
		{endpointSlices, selectors[discoveryv1.LabelServiceName+"=activator-service"], ofActivators.Discovery().V1().EndpointSlices().Informer()},
	}
	store.Put(endpointSlices, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": map[string]any{"name": "activator-service-1", "namespace": "knative-serving",
			"labels": map[string]any{discoveryv1.LabelServiceName: "activator-service"}},
		"endpoints": []any{map[string]any{"addresses": []any{"10.0.0.1"}}}}})
	stop := make(chan struct{})
	w.stopCaches = sync.OnceFunc(func() { close(stop) })
	t.Cleanup(w.stopCaches)
	w.world.EbbInformers.Start(stop)
	w.world.GatewayInformers.Start(stop)
	made.Start(stop)
	published.Start(stop)
	pages.Start(stop)
	ofActivators.Start(stop)
	return w
}

// refusing is the way to registries of which each wants a password that nobody has.
type refusing struct{}

func (refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusForbidden, Status: "403 Forbidden", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// inStep waits until every cache holds what the server holds.
func (w *world) inStep() {
	for _, c := range w.caches {
		eventually.Seen(w.t, "the cache of "+c.resource.String()+" is in step", func() (string, bool) {
			have := map[string]string{}
			for _, object := range c.informer.GetStore().List() {
				m := object.(metav1.Object)
				have[m.GetNamespace()+"/"+m.GetName()] = m.GetResourceVersion()
			}
			want := w.store.Versions(c.resource, c.selector)
			if maps.Equal(have, want) {
				return "", true
			}
			return fmt.Sprintf("want %v, have %v", want, have), false
		})
	}
}

// settle reconciles every key of every controller, again and again, until a whole round writes
// nothing; it returns the number of writes. A world that never settles is a fault: some reconciler
// fights itself or another.
func (w *world) settle() int {
	total := 0
	for range 30 {
		wrote := 0
		for _, c := range w.controllers {
			w.inStep()
			keys := c.Keys()
			slices.SortFunc(keys, func(a, b reconcile.Key) int { return strings.Compare(a.String(), b.String()) })
			for _, key := range keys {
				w.inStep()
				_, err := c.Reconcile(context.Background(), key)
				for _, write := range w.store.Writes() {
					wrote++
					fmt.Fprintf(&w.out, "%-13s %s\n", c.Name, describe(write))
				}
				for len(w.events.Events) > 0 {
					fmt.Fprintf(&w.out, "%-13s event %s\n", c.Name, <-w.events.Events)
				}
				if err != nil {
					fmt.Fprintf(&w.out, "%-13s error %v\n", c.Name, err)
				}
			}
		}
		if wrote == 0 {
			return total
		}
		total += wrote
	}
	w.t.Fatalf("the world does not settle:\n%s", w.out.String())
	return 0
}

func describe(write apiservertest.Write) string {
	line := fmt.Sprintf("%s %s %s", write.Verb, write.Resource, write.Name)
	object := unstructured.Unstructured{Object: write.Object}
	switch {
	case strings.HasSuffix(write.Resource, "/status"):
		conditions, _, _ := unstructured.NestedSlice(write.Object, "status", "conditions")
		for _, c := range conditions {
			m := c.(map[string]any)
			line += fmt.Sprintf(" %v=%v", m["type"], m["status"])
			if reason, ok := m["reason"]; ok {
				line += fmt.Sprintf("(%v)", reason)
			}
		}
		told, _, _ := unstructured.NestedStringMap(write.Object, "status", "annotations")
		for _, key := range slices.Sorted(maps.Keys(told)) {
			line += fmt.Sprintf(" %s=%q", key, told[key])
		}
		if write.Resource == "podautoscalers/status" {
			for _, field := range []string{"mode", "desiredScale", "actualScale"} {
				value, _, _ := unstructured.NestedFieldNoCopy(write.Object, "status", field)
				line += fmt.Sprintf(" %s=%v", field, value)
			}
			if why, ok, _ := unstructured.NestedString(write.Object, "status", "decision", "reason"); ok {
				line += fmt.Sprintf(" why=%q", why)
			}
		}
		for _, field := range []string{"latestCreatedRevisionName", "latestReadyRevisionName"} {
			if name, ok, _ := unstructured.NestedString(write.Object, "status", field); ok {
				line += " " + field + "=" + name
			}
		}
	case write.Verb == "patch" && write.Resource == "revisions" && object.GetAnnotations()[names.ParkedAnnotation] != "":
		line += " parked=" + object.GetAnnotations()[names.ParkedAnnotation]
	case write.Resource == "endpointslices" && write.Object != nil:
		list, _, _ := unstructured.NestedSlice(write.Object, "endpoints")
		for _, e := range list {
			line += fmt.Sprint(" ", e.(map[string]any)["addresses"])
		}
	case write.Verb == "patch":
		line += fmt.Sprintf(" routes=%q", object.GetAnnotations()["serving.knative.dev/routes"])
		if state := object.GetLabels()["serving.knative.dev/routingState"]; state != "" {
			line += " " + state
		}
		if f := object.GetFinalizers(); len(f) > 0 {
			line += fmt.Sprintf(" finalizers=%v", f)
		}
	case write.Resource == "horizontalpodautoscalers" && write.Object != nil:
		least, _, _ := unstructured.NestedFieldNoCopy(write.Object, "spec", "minReplicas")
		most, _, _ := unstructured.NestedFieldNoCopy(write.Object, "spec", "maxReplicas")
		metrics, _, _ := unstructured.NestedSlice(write.Object, "spec", "metrics")
		line += fmt.Sprintf(" min=%v max=%v metrics=%d", least, most, len(metrics))
	case write.Resource == "podautoscalers" && write.Object != nil:
		reach, _, _ := unstructured.NestedString(write.Object, "spec", "reachability")
		line += fmt.Sprintf(" reachability=%q", reach)
		notes := object.GetAnnotations()
		for _, key := range slices.Sorted(maps.Keys(notes)) {
			if strings.HasPrefix(key, "autoscaling.") {
				line += " " + key + "=" + notes[key]
			}
		}
	case write.Resource == "deployments" && write.Object != nil:
		containers, _, _ := unstructured.NestedSlice(write.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			line += " " + c.(map[string]any)["image"].(string)
		}
		replicas, _, _ := unstructured.NestedFieldNoCopy(write.Object, "spec", "replicas")
		line += fmt.Sprintf(" replicas=%v", replicas)
	}
	return line
}
