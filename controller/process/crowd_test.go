package process

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/controller/internal/reconcile"
)

// One more service costs the same beside few and beside many in its namespace. A reconciler that
// lists the namespace allocates at least a pointer for each object there, so what a reconcile
// allocates shows how many objects it read.
func TestAReconcileReadsNoOtherServices(t *testing.T) {
	const neighbours, most = 10000, 40 << 10
	w := newWorld(t)
	for _, block := range []string{
		"apply\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: one}\nspec: {template: {spec: {containers: [{image: dev.local/hello:1}]}}}",
		"pods rev=one-00001 n=1 ready=1",
		"autoscaler rev=one-00001 want=1 ready=1",
		"route name=one",
	} {
		command, body, _ := strings.Cut(block, "\n")
		w.command(strings.Fields(command), body)
		w.settle()
	}
	alone := w.allocations()
	for _, c := range w.caches {
		for _, object := range c.informer.GetStore().List() {
			if object.(metav1.Object).GetNamespace() != "ns" {
				continue
			}
			for i := range neighbours {
				if err := c.informer.GetStore().Add(neighbour(object, fmt.Sprintf("n%05d", i))); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	beside := w.allocations()
	for name, bytes := range alone {
		if more := beside[name] - bytes; more > most {
			t.Errorf("%s: a reconcile allocates %d bytes, and beside %d services %d more: it lists them", name, bytes, neighbours, more)
		}
	}
	if writes := w.store.Writes(); len(writes) > 0 || len(alone) != len(w.controllers) {
		t.Errorf("%d reconcilers wrote %v; nothing changed", len(alone), writes)
	}
}

// allocations returns the bytes that a reconcile of the service allocates, by reconciler.
func (w *world) allocations() map[string]int64 {
	keys := map[string]string{"revision": "one-00001", "endpoints": "one-00001", "hpa": "one-00001"}
	out := map[string]int64{}
	for _, c := range w.controllers {
		key := reconcile.Key{Namespace: "ns", Name: "one"}
		if name := keys[c.Name]; name != "" {
			key.Name = name
		}
		for range 5 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := c.Reconcile(context.Background(), key); err != nil {
				w.t.Errorf("%s: %v", c.Name, err)
			}
			runtime.ReadMemStats(&after)
			bytes := int64(after.TotalAlloc - before.TotalAlloc)
			if least, ok := out[c.Name]; !ok || bytes < least { // other goroutines allocate, too
				out[c.Name] = bytes
			}
		}
	}
	return out
}

// neighbour returns an object of the service "one" as another service has it. Only the metadata is
// copied.
func neighbour(object any, service string) any {
	value := reflect.New(reflect.TypeOf(object).Elem())
	value.Elem().Set(reflect.ValueOf(object).Elem())
	m := value.Interface().(metav1.Object)
	rename := func(text string) string { return strings.ReplaceAll(text, "one", service) }
	renamed := func(values map[string]string) map[string]string {
		out := map[string]string{}
		for key, value := range values {
			if out[key] = rename(value); strings.Contains(key, "UID") || strings.Contains(key, "uid") {
				out[key] += service
			}
		}
		return out
	}
	m.SetName(rename(m.GetName()))
	m.SetUID(m.GetUID() + types.UID(service))
	m.SetLabels(renamed(m.GetLabels()))
	m.SetAnnotations(renamed(m.GetAnnotations()))
	var owners []metav1.OwnerReference
	for _, owner := range m.GetOwnerReferences() {
		owner.Name, owner.UID = rename(owner.Name), owner.UID+types.UID(service)
		owners = append(owners, owner)
	}
	m.SetOwnerReferences(owners)
	return value.Interface()
}
