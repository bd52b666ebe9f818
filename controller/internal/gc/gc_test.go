package gc

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

var (
	configurations = schema.GroupResource{Group: "serving.knative.dev", Resource: "configurations"}
	revisions      = schema.GroupResource{Group: "serving.knative.dev", Resource: "revisions"}
)

func object(kind, name string, labels map[string]any, status map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "serving.knative.dev/v1", "kind": kind,
		"metadata": map[string]any{"namespace": "ns", "name": name, "labels": labels}, "status": status}}
}

func revision(name string, state names.RoutingState) *unstructured.Unstructured {
	return object("Revision", name, map[string]any{names.ConfigurationLabel: "hello", names.RoutingStateLabel: string(state)}, nil)
}

// That no Route leads to a revision any more is written on the revision, after the last change of
// its Configuration.
func TestARevisionGoesOnceNoRouteLeadsToIt(t *testing.T) {
	store, config := apiservertest.Start(t)
	mgr := stage.Manager(t, config, stage.Settings(t, map[string]map[string]string{settings.GCName: {"min-non-active-revisions": "0", "max-non-active-revisions": "0"}}))
	store.Put(configurations, object("Configuration", "hello", nil, map[string]any{
		"latestCreatedRevisionName": "hello-00003", "latestReadyRevisionName": "hello-00003"}))
	store.Put(revisions, revision("hello-00001", names.RoutingReserve))
	store.Put(revisions, revision("hello-00002", names.RoutingActive))
	store.Put(revisions, revision("hello-00003", names.RoutingActive))
	stage.Run(t, mgr, New(mgr))
	gone := func(name string) {
		t.Helper()
		eventually.True(t, name+" is gone", func() bool { return store.Get(revisions, "ns", name) == nil })
	}
	gone("hello-00001") // the collector works
	if store.Get(revisions, "ns", "hello-00002") == nil {
		t.Fatal("a revision with a Route is deleted")
	}
	store.Put(revisions, revision("hello-00002", names.RoutingReserve))
	gone("hello-00002")
	if store.Get(revisions, "ns", "hello-00003") == nil {
		t.Fatal("the latest revision is deleted")
	}
}
