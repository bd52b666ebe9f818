package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/yaml"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/configuration"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/endpoints"
	"ebb.dev/ebb/controller/internal/gc"
	"ebb.dev/ebb/controller/internal/hpa"
	"ebb.dev/ebb/controller/internal/labeler"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/controller/internal/revision"
	"ebb.dev/ebb/controller/internal/service"
	"ebb.dev/ebb/internal/apiservertest"
	"ebb.dev/ebb/settings"
)

var update = flag.Bool("update", false, "write what is seen into testdata")

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
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// world is the controller's reconcilers over an API server in memory, stepped by hand: a step is one reconcile of one key with
// every cache in step with the server, so the same scenario makes the same writes in the same order each time.
type world struct {
	t           *testing.T
	store       *apiservertest.Store
	world       *reconcile.World
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
	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: store, events: record.NewFakeRecorder(10000), now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		settings: map[string]map[string]string{"config-deployment": {"queue-sidecar-image": "dev.local/queue-proxy:1"}}}
	store.Now = func() time.Time { return w.now }
	snapshot, err := settings.Parse(w.settings)
	if err != nil {
		t.Fatal(err)
	}
	w.world = reconcile.NewWorld(clients, settings.NewStore(snapshot), w.events, slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	w.world.Now = func() time.Time { return w.now }
	key := []byte("0123456789abcdef0123456789abcdef")
	w.digests = digest.New(w.world.Kube, refusing{})
	w.controllers = []*reconcile.Controller{
		service.New(w.world),
		configuration.New(w.world),
		revision.New(w.world, key, w.digests),
		endpoints.New(w.world),
		hpa.New(w.world),
		labeler.New(w.world),
		gc.New(w.world),
	}
	serving, made := w.world.EbbInformers.Serving().V1(), w.world.Kubernetes("", revision.Selector)
	published := w.world.Kubernetes("", names.ServerlessServiceLabel)
	ofActivators := w.world.Kubernetes("knative-serving", discoveryv1.LabelServiceName+"=activator-service")
	selectors := map[string]labels.Selector{}
	for _, text := range []string{revision.Selector, names.ServerlessServiceLabel, discoveryv1.LabelServiceName + "=activator-service"} {
		if selectors[text], err = labels.Parse(text); err != nil {
			t.Fatal(err)
		}
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
		{coreServices, ofRevisions, published.Core().V1().Services().Informer()},
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
	made.Start(stop)
	published.Start(stop)
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
	deadline := time.Now().Add(60 * time.Second)
	for _, c := range w.caches {
		for {
			have := map[string]string{}
			for _, object := range c.informer.GetStore().List() {
				m := object.(metav1.Object)
				have[m.GetNamespace()+"/"+m.GetName()] = m.GetResourceVersion()
			}
			want := w.store.Versions(c.resource, c.selector)
			if maps.Equal(have, want) {
				break
			}
			if time.Now().After(deadline) {
				w.t.Fatalf("cache of %s is not in step:\n%s", c.resource, cmp.Diff(want, have))
			}
			<-time.After(200 * time.Microsecond)
		}
	}
}

// settle reconciles every key of every controller, again and again, until a whole round writes nothing; it returns the number of
// writes. A world that never settles is a fault: some reconciler fights itself or another.
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

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.scenario")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".scenario"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(text), got); diff != "" {
				t.Errorf("%s (-in file +seen; -update writes it):\n%s", file, diff)
			}
		})
	}
}

// play runs the commands of a scenario and returns it with what was seen. A scenario is a list of blocks: comment lines, a
// command line, its YAML, a line "----", and what follows from it up to an empty line.
func play(t *testing.T, text string) string {
	w := newWorld(t)
	var out strings.Builder
	for _, block := range strings.Split(strings.TrimSpace(text), "\n\n") {
		if block = strings.Trim(block, "\n"); block == "" {
			continue
		}
		command, _, _ := strings.Cut(block+"\n", "----\n")
		out.WriteString(strings.TrimRight(command, "\n") + "\n----\n")
		var lines []string
		for _, line := range strings.Split(strings.TrimRight(command, "\n"), "\n") {
			if len(lines) > 0 || !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		w.out.Reset()
		w.command(strings.Fields(lines[0]), strings.Join(lines[1:], "\n"))
		n := w.settle()
		out.WriteString(w.out.String())
		fmt.Fprintf(&out, "writes: %d\n\n", n)
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func (w *world) command(words []string, body string) {
	w.t.Helper()
	args := map[string]string{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		args[name] = strings.ReplaceAll(value, "_", " ")
	}
	switch words[0] {
	case "apply":
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(body), &object.Object); err != nil {
			w.t.Fatal(err)
		}
		object.SetNamespace("ns")
		resource := schema.GroupResource{Group: object.GroupVersionKind().Group, Resource: strings.ToLower(object.GetKind()) + "s"}
		if have := w.store.Get(resource, "ns", object.GetName()); have != nil && have.Object["status"] != nil {
			object.Object["status"] = have.Object["status"]
		}
		w.store.Put(resource, object)
	case "delete":
		w.store.Remove(schema.GroupResource{Group: args["group"], Resource: words[1]}, "ns", words[2])
	case "autoscaler":
		w.autoscaler(args)
	case "hpa":
		// Kubernetes' own controller: `hpa rev=x current=1 desired=3 [ready=1]`.
		w.edit(hpas, args["rev"], func(object *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(object.Object, int64(number(w.t, args["current"])), "status", "currentReplicas")
			_ = unstructured.SetNestedField(object.Object, int64(number(w.t, args["desired"])), "status", "desiredReplicas")
		})
		w.edit(deployments, args["rev"]+"-deployment", func(object *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(object.Object, int64(number(w.t, args["desired"])), "spec", "replicas")
			_ = unstructured.SetNestedField(object.Object, int64(number(w.t, args["ready"])), "status", "readyReplicas")
		})
	case "pods":
		w.pods(args, body)
	case "route":
		w.route(args)
	case "annotate":
		w.edit(revisions, words[1], func(object *unstructured.Unstructured) {
			notes := object.GetAnnotations()
			for name, value := range args {
				if strings.HasSuffix(name, "-") {
					delete(notes, strings.TrimSuffix(name, "-"))
				} else if strings.Contains(name, "/") {
					notes[name] = value
				}
			}
			object.SetAnnotations(notes)
		})
	case "settings":
		data := w.settings[words[1]]
		if data == nil {
			data = map[string]string{}
			w.settings[words[1]] = data
		}
		for _, word := range words[2:] {
			name, value, _ := strings.Cut(word, "=")
			data[name] = value
		}
		snapshot, err := settings.Parse(w.settings)
		if err != nil {
			w.t.Fatal(err)
		}
		w.world.Settings.Set(snapshot)
	case "deployment":
		w.deployment(words[1], args, body)
	case "digests":
		// Registries are asked from now on, and have said something about one revision.
		answered := make(chan struct{}, 1000)
		go w.digests.Run(w.t.Context(), func(string, string) { answered <- struct{}{} })
		<-answered
	case "refuse":
		// Somebody's policy: `refuse deployments` until `refuse nothing`.
		w.store.Admit = func(_ string, resource schema.GroupResource, _ string, object *unstructured.Unstructured) error {
			if resource.Resource == words[1] {
				return apierrors.NewForbidden(resource, object.GetName(), errors.New("a policy says no"))
			}
			return nil
		}
	case "objects":
		// All there is, but for what is the API server's own: to count what something costs.
		for _, name := range w.store.Names("ns") {
			fmt.Fprintf(&w.out, "%s\n", name)
		}
	case "show":
		// The status as clients read it, but for the times of transitions.
		group := "serving.knative.dev"
		object := w.store.Get(schema.GroupResource{Group: group, Resource: words[1]}, "ns", words[2])
		if object == nil {
			fmt.Fprintf(&w.out, "there is none\n")
			return
		}
		status, _, _ := unstructured.NestedMap(object.Object, "status")
		list, _, _ := unstructured.NestedSlice(status, "conditions")
		for _, c := range list {
			delete(c.(map[string]any), "lastTransitionTime")
		}
		if list != nil {
			status["conditions"] = list
		}
		text, err := yaml.Marshal(status)
		if err != nil {
			w.t.Fatal(err)
		}
		w.out.Write(text)
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			w.t.Fatal(err)
		}
		w.now = w.now.Add(d)
	default:
		w.t.Fatalf("scenario has an unknown command %q", words[0])
	}
}

func (w *world) edit(resource schema.GroupResource, name string, change func(*unstructured.Unstructured)) {
	w.t.Helper()
	object := w.store.Get(resource, "ns", name)
	if object == nil {
		w.t.Fatalf("scenario names %s %s, which is not there", resource, name)
	}
	change(object)
	w.store.Put(resource, object)
}

// typed edits an object as its Go type.
func typed[T any](w *world, resource schema.GroupResource, name string, change func(*T)) {
	w.t.Helper()
	w.edit(resource, name, func(object *unstructured.Unstructured) {
		var value T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &value); err != nil {
			w.t.Fatal(err)
		}
		change(&value)
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&value)
		if err != nil {
			w.t.Fatal(err)
		}
		object.Object = fields
	})
}

// autoscaler plays the autoscaler: `autoscaler rev=x want=1 ready=1 [active=False reason=NoTraffic]`.
func (w *world) autoscaler(args map[string]string) {
	want, ready := number(w.t, args["want"]), number(w.t, args["ready"])
	typed(w, autoscalers, args["rev"], func(pa *autoscalingv1alpha1.PodAutoscaler) {
		s := &pa.Status
		s.ObservedGeneration, s.ServiceName, s.MetricsServiceName = pa.Generation, pa.Name, pa.Name+"-private"
		s.InitializeConditions()
		s.DesiredScale, s.ActualScale = &want, &ready
		if ready >= want && want > 0 || s.IsScaleTargetInitialized() {
			s.MarkScaleTargetInitialized()
			s.MarkSKSReady()
		}
		switch {
		case want == 0:
			s.MarkInactive("NoTraffic", "The target is not receiving traffic.")
		case ready >= want:
			s.MarkActive()
		default:
			s.MarkActivating("Queued", "Requests to the target are being buffered as resources are provisioned.")
		}
	})
	w.edit(deployments, args["rev"]+"-deployment", func(object *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(object.Object, int64(want), "spec", "replicas")
		_ = unstructured.SetNestedField(object.Object, int64(ready), "status", "replicas")
	})
}

// pods plays the kubelet: `pods rev=x n=1 [ready]`, with a YAML of pod status otherwise. n=0 removes them.
func (w *world) pods(args map[string]string, body string) {
	d := w.store.Get(deployments, "ns", args["rev"]+"-deployment")
	if d == nil {
		w.t.Fatalf("scenario makes pods of %s, which has no Deployment", args["rev"])
	}
	metadata, _, _ := unstructured.NestedMap(d.Object, "spec", "template", "metadata")
	for i := range 10 {
		name := fmt.Sprintf("%s-pod-%d", args["rev"], i)
		if int32(i) >= number(w.t, args["n"]) {
			w.store.Remove(pods, "ns", name)
			continue
		}
		status := map[string]any{"phase": "Pending"}
		if _, ready := args["ready"]; ready {
			status = map[string]any{"phase": "Running", "conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
		} else if body != "" {
			if err := yaml.Unmarshal([]byte(body), &status); err != nil {
				w.t.Fatal(err)
			}
		}
		pod := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Pod",
			"metadata": runtime.DeepCopyJSON(metadata), "spec": map[string]any{"containers": []any{}}, "status": status}}
		pod.SetName(name)
		pod.SetNamespace("ns")
		w.store.Put(pods, pod)
	}
}

// deployment plays the deployment controller, and people with kubectl: the YAML is merged into the object.
func (w *world) deployment(name string, args map[string]string, body string) {
	w.edit(deployments, name, func(object *unstructured.Unstructured) {
		var patch map[string]any
		if err := yaml.Unmarshal([]byte(body), &patch); err != nil {
			w.t.Fatal(err)
		}
		merge(object.Object, patch)
	})
}

func merge(into, from map[string]any) {
	for key, value := range from {
		if inner, ok := value.(map[string]any); ok {
			if have, ok := into[key].(map[string]any); ok {
				merge(have, inner)
				continue
			}
		}
		into[key] = value
	}
}

// route plays the route reconciler: it resolves the latest and is Ready at once. `route name=x`.
func (w *world) route(args map[string]string) {
	typed(w, routesResource, args["name"], func(route *servingv1.Route) {
		s := &route.Status
		s.ObservedGeneration = route.Generation
		s.Traffic = nil
		for _, target := range route.Spec.Traffic {
			if target.ConfigurationName != "" {
				config := w.store.Get(configurations, "ns", target.ConfigurationName)
				target.RevisionName, _, _ = unstructured.NestedString(config.Object, "status", "latestReadyRevisionName")
				target.ConfigurationName = ""
			}
			s.Traffic = append(s.Traffic, target)
		}
		manager := route.GetConditionSet().Manage(s)
		manager.MarkTrue(servingv1.RouteConditionAllTrafficAssigned)
		manager.MarkTrue(servingv1.RouteConditionIngressReady)
		manager.MarkTrue(servingv1.RouteConditionCertificateProvisioned)
	})
}

func number(t *testing.T, text string) int32 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatalf("scenario has %q for a number", text)
	}
	return int32(n)
}
