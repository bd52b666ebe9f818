package policy

import (
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"ebb.dev/ebb/test/apiservertest"
)

var shipped = sync.OnceValues(func() (*Set, error) {
	_, here, _, _ := runtime.Caller(0)
	core := filepath.Join(filepath.Dir(here), "../../../config/core")
	return Read(filepath.Join(core, "policies.yaml"), filepath.Join(core, "controller.yaml"))
})

// Enforce lets a test fail when a client writes what the policies of config/ do not let a component
// write. It is called before the first write.
func Enforce(t testing.TB, store *apiservertest.Store, account string) {
	set, err := shipped()
	if err != nil {
		t.Fatal(err)
	}
	store.Written = func(w apiservertest.Write) {
		if err := set.Judge(request(w, account)); err != nil {
			t.Errorf("the cluster would refuse %s: %v", w, err)
		}
	}
}

func request(w apiservertest.Write, account string) Write {
	out := Write{Account: account, Operation: admission.Update}
	switch w.Verb {
	case "create":
		out.Operation = admission.Create
	case "delete":
		out.Operation = admission.Delete
	}
	if w.Before != nil {
		out.Before = &unstructured.Unstructured{Object: w.Before}
	}
	some := out.Before
	if w.Object != nil {
		out.After = &unstructured.Unstructured{Object: w.Object}
		some = out.After
	}
	resource, sub, _ := strings.Cut(w.Resource, "/")
	out.Sub = sub
	group, err := schema.ParseGroupVersion(some.GetAPIVersion())
	if err != nil {
		panic(err)
	}
	out.Resource = group.WithResource(resource)
	if resource == "secrets" && some.Object["type"] == nil { // an API server sets the default first
		some.Object["type"] = "Opaque"
	}
	if sub == "scale" {
		out.Before, out.After = scaleOf(out.Before), scaleOf(out.After)
	}
	return out
}

func scaleOf(deployment *unstructured.Unstructured) *unstructured.Unstructured {
	selector, _, _ := unstructured.NestedStringMap(deployment.Object, "spec", "selector", "matchLabels")
	var parts []string
	for key, value := range selector {
		parts = append(parts, key+"="+value)
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale",
		"metadata": map[string]any{"name": deployment.GetName(), "namespace": deployment.GetNamespace()},
		"status":   map[string]any{"selector": strings.Join(parts, ",")}}}
}
