package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
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
	w := NewManager(clients, settings.NewStore(snapshot), record.NewFakeRecorder(10), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
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
	if list := o.All(); len(list) != 1 {
		t.Errorf("kept %d objects, want the one with the label", len(list))
	}
	store.Remove(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "", "certificates.cert-manager.io")
	until("everything is looked at without it", Key{Name: "everything"})
	if _, ok := o.Get("ns", "one"); ok || o.Present() {
		t.Error("the kind is still there")
	}
}

// Who may not read a kind that it wants only for a part of its work does the rest.
func TestAnOptionalKindThatNobodyMayReadHoldsNothingUp(t *testing.T) {
	store, config := apiservertest.Start(t)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.Path, "/grpcroutes") {
				return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			}
			return next.RoundTrip(r)
		})
	})
	clients, err := ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	definition := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
	definition.SetName("grpcroutes.gateway.networking.k8s.io")
	store.Put(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, definition)
	w := NewManager(clients, settings.NewStore(settings.Default()), record.NewFakeRecorder(10), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	o := w.Optional(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "grpcroutes"}, "")
	o.Late()
	seen := make(chan Key, 100)
	c := &Controller{Name: "test", Keys: func() []Key { return []Key{{Name: "everything"}} },
		Reconcile: func(_ context.Context, key Key) (time.Duration, error) { seen <- key; return 0, nil }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.Run(ctx, []*Controller{c}, Options{Timeout: time.Minute, Alone: true, Metrics: NewMetrics(prometheus.NewRegistry())})
	}()
	select {
	case <-seen:
	case <-time.After(time.Minute):
		t.Error("it waits for what it may not read")
	}
	if !o.Present() || o.Synced() || o.By("any", "thing") != nil {
		t.Error("it is known, or nobody knows that it is there")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// One service costs the same beside few and beside many in its namespace, with certificates, too.
func TestObjectsOfAnOptionalKindAreFoundWithoutAListOfTheNamespace(t *testing.T) {
	o := &Optional{resource: schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"},
		client: dynamic.NewForConfigOrDie(&rest.Config{})}
	object := func(name string, uid types.UID, given map[string]string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetNamespace("ns")
		u.SetName(name)
		u.SetLabels(given)
		u.SetOwnerReferences([]metav1.OwnerReference{{UID: "other"}, {UID: uid, Controller: new(true)}})
		return u
	}
	route := object("route", "", nil)
	route.SetUID("mine")
	namespace := &unstructured.Unstructured{Object: map[string]any{}}
	namespace.SetName("ns")
	namespace.SetUID("of-ns")
	if o.Owned(route, nil) != nil || o.Labelled("ns", "wildcard") != nil {
		t.Error("there are objects without the kind")
	}
	// Its watch has ended before it begins: the test alone fills the cache.
	ended, end := context.WithCancel(t.Context())
	end()
	o.begin(ended)
	store := o.store().GetStore()
	for i := range 10000 {
		_ = store.Add(object(fmt.Sprintf("n%05d", i), types.UID(fmt.Sprint(i)), map[string]string{"mine": "yes"}))
	}
	for _, u := range []*unstructured.Unstructured{object("b", "mine", map[string]string{"mine": "yes"}), object("a", "mine", map[string]string{"mine": "yes"}),
		object("not-labelled", "mine", nil), object("wild", "of-ns", map[string]string{"wildcard": ""})} {
		_ = store.Add(u)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	owned, wild, ofNamespace := o.Owned(route, labels.Set{"mine": "yes"}), o.Labelled("ns", "wildcard"), o.Owned(namespace, nil)
	runtime.ReadMemStats(&after)
	if len(owned) != 2 || owned[0].GetName() != "a" || owned[1].GetName() != "b" {
		t.Errorf("the Route owns %v", owned)
	}
	if len(wild) != 1 || len(ofNamespace) != 1 || wild[0] != ofNamespace[0] {
		t.Errorf("with the label %v, of the namespace %v", wild, ofNamespace)
	}
	if bytes := after.TotalAlloc - before.TotalAlloc; bytes > 40<<10 {
		t.Errorf("it allocates %d bytes beside 10000 objects: it lists them", bytes)
	}
}
