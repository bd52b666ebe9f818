// Package contract is what Ebb's components and their tests rely on of the Kubernetes API, as one
// table of behaviours. Its own test runs the table against test/apiservertest, the one in
// test/e2e runs it against the API server of a real cluster. So a component that passes its tests
// over apiservertest does not rely on something that the real server does differently.
//
// Owns: a namespace of its own for each behaviour. Reads and writes: objects in it that nobody else
// acts on. Never: looks into a component.
//
// apiservertest may refuse what it does not serve, but only loudly: with 501. Such a behaviour is
// skipped there, and its entry says so.
package contract

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// The kinds: one without a status, one of Kubernetes' own with status and scale, one with a list
// that has keys, and one of our own with a status, which no controller acts on.
var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	widgets     = schema.GroupVersionResource{Group: "contract.ebb.dev", Version: "v1", Resource: "widgets"}
	gateways    = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// patience is how long the real server may take for what it does in the background.
const patience = 30 * time.Second

// Widgets is the definition of the kind that the server must know.
const Widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.contract.ebb.dev}
spec:
  group: contract.ebb.dev
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// behaviour is one row of the table.
type behaviour struct {
	name string
	// refused says that apiservertest refuses it.
	refused bool
	run     func(*subject)
}

// subject is the server under test, and a namespace there.
type subject struct {
	*testing.T
	ctx       context.Context
	client    dynamic.Interface
	namespace string
}

// Run runs the table against the API server that config reaches. mayRefuse is for a server that may
// refuse the behaviours that the table marks.
func Run(t *testing.T, config *rest.Config, mayRefuse bool) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range table {
		t.Run(b.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			space := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
				"metadata": map[string]any{"generateName": "contract-"}}}
			space, err := client.Resource(namespaces).Create(ctx, space, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				err := client.Resource(namespaces).Delete(context.WithoutCancel(ctx), space.GetName(), metav1.DeleteOptions{})
				if err != nil {
					t.Error(err)
				}
			})
			s := &subject{t, ctx, client, space.GetName()}
			if !b.refused || !mayRefuse {
				b.run(s)
				return
			}
			// What is refused must be refused: the step that is not served ends the behaviour.
			b.run(s)
			if !t.Skipped() {
				t.Error("the table says that this is refused, but it is served")
			}
		})
	}
}

// must ends the behaviour when err is an error: as skipped where the server says that it does not
// serve this.
func (s *subject) must(err error) {
	s.Helper()
	s.skipUnserved(err)
	if err != nil {
		s.Fatal(err)
	}
}

func (s *subject) skipUnserved(err error) {
	s.Helper()
	var status apierrors.APIStatus
	if status, _ = err.(apierrors.APIStatus); status != nil && status.Status().Code == http.StatusNotImplemented {
		s.Skip(err)
	}
}

// refused expects an error of a code and a reason.
func (s *subject) refused(err error, code int32, reason metav1.StatusReason) {
	s.Helper()
	s.skipUnserved(err)
	status, _ := err.(apierrors.APIStatus)
	if status == nil || status.Status().Code != code || status.Status().Reason != reason {
		s.Errorf("got error %v, want %d %s", err, code, reason)
		if status != nil {
			s.Logf("it was %d %s", status.Status().Code, status.Status().Reason)
		}
	}
}

func (s *subject) of(resource schema.GroupVersionResource) dynamic.ResourceInterface {
	return s.client.Resource(resource).Namespace(s.namespace)
}

// object makes an object with a kind and a name.
func object(version, kind, name string, more map[string]any) *unstructured.Unstructured {
	o := map[string]any{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name}}
	for key, value := range more {
		if key != "metadata" {
			o[key] = value
			continue
		}
		for key, value := range value.(map[string]any) {
			o["metadata"].(map[string]any)[key] = value
		}
	}
	data, err := json.Marshal(o) // as the client would read it: numbers, copies
	if err != nil {
		panic(err)
	}
	out := &unstructured.Unstructured{}
	if err := out.UnmarshalJSON(data); err != nil {
		panic(err)
	}
	return out
}

func configMap(name string, data map[string]any) *unstructured.Unstructured {
	return object("v1", "ConfigMap", name, map[string]any{"data": data})
}

func labelled(name string, labels map[string]any) *unstructured.Unstructured {
	return object("v1", "ConfigMap", name, map[string]any{"metadata": map[string]any{"labels": labels}})
}

func widget(name, host string) *unstructured.Unstructured {
	return object("contract.ebb.dev/v1", "Widget", name, map[string]any{"spec": map[string]any{"hosts": []any{host}}})
}

// deployment starts no pod.
func deployment(name string) *unstructured.Unstructured {
	labels := map[string]any{"app": name}
	return object("apps/v1", "Deployment", name, map[string]any{"spec": map[string]any{"replicas": 0, "paused": true,
		"selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels},
			"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "example.com/none"}}}}}})
}

func (s *subject) create(resource schema.GroupVersionResource, o *unstructured.Unstructured) *unstructured.Unstructured {
	s.Helper()
	created, err := s.of(resource).Create(s.ctx, o, metav1.CreateOptions{})
	s.must(err)
	return created
}

func (s *subject) get(resource schema.GroupVersionResource, name string) *unstructured.Unstructured {
	s.Helper()
	o, err := s.of(resource).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return o
}

func (s *subject) update(resource schema.GroupVersionResource, o *unstructured.Unstructured, subresources ...string) *unstructured.Unstructured {
	s.Helper()
	updated, err := s.of(resource).Update(s.ctx, o, metav1.UpdateOptions{}, subresources...)
	s.must(err)
	return updated
}

func (s *subject) patch(resource schema.GroupVersionResource, name string, kind types.PatchType, patch string, subresources ...string) (*unstructured.Unstructured, error) {
	return s.of(resource).Patch(s.ctx, name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
}

// gone waits until an object is no longer there.
func (s *subject) gone(resource schema.GroupVersionResource, name string) {
	s.Helper()
	s.await("the end of "+name, func() bool {
		_, err := s.of(resource).Get(s.ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// await waits until done says so.
func (s *subject) await(what string, done func() bool) {
	s.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.After(patience)
	for !done() {
		select {
		case <-tick.C:
		case <-end:
			s.Fatalf("%s did not come within %v", what, patience)
		}
	}
}

// same expects a field to have a value.
func (s *subject) same(what string, got, want any) {
	s.Helper()
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	if string(g) != string(w) {
		s.Errorf("%s is %s, want %s", what, g, w)
	}
}

func field(o *unstructured.Unstructured, path ...string) any {
	value, _, _ := unstructured.NestedFieldNoCopy(o.Object, path...)
	return value
}

func names(list *unstructured.UnstructuredList) []string {
	out := []string{}
	for _, o := range list.Items {
		out = append(out, o.GetName())
	}
	return out
}
