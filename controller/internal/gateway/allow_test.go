package gateway

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/ingress/gatewayapi"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

var gateways = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "gateways"}

// A Gateway takes ListenerSets from the namespaces that have one of Ebb's, and from nobody else, in
// particular not from a tenant who makes one himself.
func TestAGatewayTakesListenersOnlyOfNamespacesThatNeedThem(t *testing.T) {
	store, config := apiservertest.Start(t)
	put := func(resource schema.GroupResource, apiVersion, kind, namespace, name string, fields map[string]any) {
		o := &unstructured.Unstructured{Object: fields}
		o.SetAPIVersion(apiVersion)
		o.SetKind(kind)
		o.SetNamespace(namespace)
		o.SetName(name)
		store.Put(resource, o)
	}
	put(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "apiextensions.k8s.io/v1",
		"CustomResourceDefinition", "", "listenersets.gateway.networking.k8s.io", map[string]any{})
	for _, name := range []string{"ebb-external", "ebb-local", "other"} {
		put(gateways, "gateway.networking.k8s.io/v1", "Gateway", "knative-serving", name, map[string]any{"spec": map[string]any{}})
	}
	kind := gatewayapi.ListenerSets
	listen := func(namespace, name, gateway string, labels map[string]any) {
		put(kind.GroupResource(), kind.GroupVersion().String(), "ListenerSet", namespace, name, map[string]any{
			"metadata": map[string]any{"labels": labels},
			"spec":     map[string]any{"parentRef": map[string]any{"kind": "Gateway", "namespace": "knative-serving", "name": gateway}}})
	}
	ours := map[string]any{names.ListenerSetLabel: "true"}

	mgr := stage.Manager(t, config, settings.NewStore(nil))
	c := New(mgr)
	stage.Run(t, mgr, c)

	until := func(name, want string) {
		t.Helper()
		eventually.Seen(t, "Gateway "+name+" allows "+want, func() (string, bool) {
			field, _, _ := unstructured.NestedFieldNoCopy(store.Get(gateways, "knative-serving", name).Object, "spec", "allowedListeners")
			got, err := json.Marshal(field)
			if err != nil {
				t.Fatal(err)
			}
			return string(got), string(got) == want
		})
	}
	from := func(namespaces string) string {
		return `{"namespaces":{"from":"Selector","selector":{"matchExpressions":[{"key":"kubernetes.io/metadata.name","operator":"In","values":[` + namespaces + `]},` +
			`{"key":"networking.ebb.dev/allowed-listeners","operator":"DoesNotExist"}]}}}`
	}
	listen("tenant", "made-by-hand", "ebb-external", nil)
	listen("b", "one", "ebb-external", ours)
	until("ebb-external", from(`"b"`))
	listen("a", "one", "ebb-external", ours)
	listen("a", "two", "ebb-external", ours)
	listen("c", "one", "ebb-local", ours)
	until("ebb-external", from(`"a","b"`))
	until("ebb-local", from(`"c"`))
	// Istio copies labels and annotations of a Gateway to its pods: one more replaces them.
	if metadata := store.Get(gateways, "knative-serving", "ebb-external"); len(metadata.GetAnnotations())+len(metadata.GetLabels()) > 0 {
		t.Errorf("the Gateway has annotations %v and labels %v", metadata.GetAnnotations(), metadata.GetLabels())
	}
	store.Remove(kind.GroupResource(), "a", "one")
	store.Remove(kind.GroupResource(), "b", "one")
	until("ebb-external", from(`"a"`))
	store.Remove(kind.GroupResource(), "a", "two")
	until("ebb-external", "null")

	// Before, an annotation was the mark. It stays.
	former := store.Get(gateways, "knative-serving", "ebb-external")
	former.SetAnnotations(map[string]string{names.AllowedListenersLabel: "true"})
	of := map[string]any{"key": "kubernetes.io/metadata.name", "operator": "In", "values": []any{"a"}}
	former.Object["spec"] = map[string]any{"allowedListeners": map[string]any{"namespaces": map[string]any{
		"from": "Selector", "selector": map[string]any{"matchExpressions": []any{of}}}}}
	store.Put(gateways, former)
	until("ebb-external", "null")
	if mark := store.Get(gateways, "knative-serving", "ebb-external").GetAnnotations()[names.AllowedListenersLabel]; mark != "true" {
		t.Errorf("the annotation is %q", mark)
	}

	// What an operator set stays, also over what was Ebb's.
	byHand := map[string]any{"namespaces": map[string]any{"from": "Same"}}
	selected := map[string]any{"namespaces": map[string]any{"from": "Selector", "selector": map[string]any{"matchLabels": map[string]any{"team": "a"}}}}
	set := func(name string, value map[string]any) {
		o := store.Get(gateways, "knative-serving", name)
		if err := unstructured.SetNestedField(o.Object, value, "spec", "allowedListeners"); err != nil {
			t.Fatal(err)
		}
		store.Put(gateways, o)
	}
	set("ebb-external", byHand)
	set("ebb-local", selected)
	store.Writes() // forgets them
	listen("d", "one", "ebb-external", ours)
	listen("d", "two", "ebb-local", ours)
	listen("d", "three", "other", ours)
	for _, key := range []string{"ebb-external", "ebb-local", "other"} {
		for !settled(mgr, c, key) {
			<-time.After(5 * time.Millisecond)
		}
	}
	until("ebb-external", `{"namespaces":{"from":"Same"}}`)
	until("ebb-local", `{"namespaces":{"from":"Selector","selector":{"matchLabels":{"team":"a"}}}}`)
	until("other", "null")
	if writes := store.Writes(); len(writes) > 0 {
		t.Errorf("written: %+v", writes)
	}
}

// settled reconciles a Gateway once the cache has all that was put.
func settled(mgr *reconcile.Manager, c *reconcile.Controller, name string) bool {
	sets := mgr.Optional(gatewayapi.ListenerSets, gatewayapi.ListenerSetSelector)
	if len(sets.Labelled("d", gatewayapi.ListenerSetSelector)) < 3 {
		return false
	}
	_, err := c.Reconcile(context.Background(), reconcile.Key{Namespace: "knative-serving", Name: name})
	return err == nil
}
