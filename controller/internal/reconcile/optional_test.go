package reconcile

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

func TestAnOptionalKindIsWatchedWhileTheClusterHasIt(t *testing.T) {
	store, config := apiservertest.Start(t)
	clients, err := ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := settings.Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	w := NewWorld(clients, settings.NewStore(snapshot), record.NewFakeRecorder(10), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	resource := schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	o := w.Optional(resource, "mine")
	if w.Optional(resource, "mine") != o || w.Optional(resource, "other") == o {
		t.Error("a kind is kept once for each selector")
	}
	seen := make(chan Key, 100)
	c := &Controller{Name: "test", Keys: func() []Key { return []Key{{Name: "everything"}} },
		Reconcile: func(_ context.Context, key Key) (time.Duration, error) { seen <- key; return 0, nil }}
	c.WatchOptional(o, Self)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.Run(ctx, []*Controller{c}, Options{Timeout: time.Minute, Alone: true, Metrics: NewMetrics(prometheus.NewRegistry())})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	until := func(what string, want Key) {
		t.Helper()
		deadline := time.After(2 * time.Minute)
		for {
			select {
			case got := <-seen:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("never: %s", what)
			}
		}
	}
	put := func(group, resource, kind, namespace, name string, given map[string]string) {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": group + "/v1", "kind": kind}}
		u.SetNamespace(namespace)
		u.SetName(name)
		u.SetLabels(given)
		store.Put(schema.GroupResource{Group: group, Resource: resource}, u)
	}
	until("the first look", Key{Name: "everything"})
	if o.Present() {
		t.Error("the kind is there before its definition")
	}
	put("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition", "", "certificates.cert-manager.io", nil)
	until("everything is looked at again", Key{Name: "everything"})
	put("cert-manager.io", "certificates", "Certificate", "ns", "other", nil)
	put("cert-manager.io", "certificates", "Certificate", "ns", "one", map[string]string{"mine": "yes"})
	until("the object is noticed", Key{Namespace: "ns", Name: "one"})
	if have, ok := o.Get("ns", "one"); !ok || have.GetKind() != "Certificate" {
		t.Errorf("got %v, %v", have, ok)
	}
	if list := o.List("ns", labels.Everything()); len(list) != 1 {
		t.Errorf("kept %d objects, want the one with the label", len(list))
	}
	store.Remove(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "", "certificates.cert-manager.io")
	until("everything is looked at without it", Key{Name: "everything"})
	if _, ok := o.Get("ns", "one"); ok || o.Present() {
		t.Error("the kind is still there")
	}
}
