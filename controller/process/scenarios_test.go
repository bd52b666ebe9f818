package process

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/golden"
)

func TestScenarios(t *testing.T) {
	golden.Each(t, "testdata/*.scenario", func(t *testing.T, file, text string) {
		golden.File(t, file, play(t, text, func(*world) {}))
	})
}

// play runs the commands of a scenario and returns it with what was seen. A scenario is a list of
// blocks: comment lines, a command line, its YAML, a line "----", and what follows from it up to an
// empty line. Between blocks, look may look.
func play(t *testing.T, text string, look func(*world)) string {
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
		look(w)
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

// autoscaler plays the autoscaler: `autoscaler rev=x want=1 ready=1 [startup=reason] [since=now]`.
// A Deployment that is not there cannot be scaled.
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
		if reason := args["startup"]; reason != "" {
			s.MarkStartupCPULimited(reason, "Pods start with their own CPU limit of 250m: exceeded quota: small")
		} else {
			s.ClearStartupCPULimited()
		}
		for i := range s.Conditions {
			if args["since"] == "now" {
				s.Conditions[i].LastTransitionTime.Inner = metav1.NewTime(w.now)
			}
		}
	})
	if w.store.Get(deployments, "ns", args["rev"]+"-deployment") == nil {
		return
	}
	w.edit(deployments, args["rev"]+"-deployment", func(object *unstructured.Unstructured) {
		_ = unstructured.SetNestedField(object.Object, int64(want), "spec", "replicas")
		_ = unstructured.SetNestedField(object.Object, int64(ready), "status", "replicas")
	})
}

// pods plays the kubelet: `pods rev=x n=1 [ready]`, with a YAML of pod status otherwise. n=0
// removes them.
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

// deployment plays the deployment controller, and people with kubectl: the YAML is merged into the
// object.
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

// route plays the route reconciler: it resolves the latest, makes the gateways lead there and is
// Ready at once. `route name=x`, or `route name=x refused=why`: nothing can be written.
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
		manager.MarkTrue(servingv1.RouteConditionCertificateProvisioned)
		if args["refused"] != "" {
			manager.MarkFalse(servingv1.RouteConditionIngressReady, args["refused"], "")
			return
		}
		manager.MarkTrue(servingv1.RouteConditionIngressReady)
		w.lead(route)
	})
}

// lead writes the HTTPRoute of a Route.
func (w *world) lead(route *servingv1.Route) {
	var backends []any
	for _, target := range route.Status.Traffic {
		backends = append(backends, map[string]any{"name": target.RevisionName, "port": int64(80)})
	}
	w.store.Put(httpRoutes, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
		"metadata": map[string]any{"name": route.Name + ".ns.example.com", "namespace": "ns",
			"labels": map[string]any{names.RouteLabel: route.Name},
			"ownerReferences": []any{map[string]any{"apiVersion": "serving.knative.dev/v1", "kind": "Route", "name": route.Name,
				"uid": string(route.UID), "controller": true}}},
		"spec": map[string]any{"rules": []any{map[string]any{"backendRefs": backends}}}}})
}

func number(t *testing.T, text string) int32 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatalf("scenario has %q for a number", text)
	}
	return int32(n)
}
