package certificate

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
)

func TestOnlyTheCertificateThatEndsFirstIsShown(t *testing.T) {
	until := func(name string, notAfter any) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"notAfter": notAfter}}}
		u.SetNamespace("ns")
		u.SetName(name)
		return u
	}
	all := []*unstructured.Unstructured{until("requested", nil), until("late", "2026-12-01T00:00:00Z"), until("early", "2026-11-30T00:00:00Z"),
		until("odd", "soon"), until("number", int64(7)), {Object: map[string]any{"status": "broken"}}}
	want := map[string]time.Time{"ns/early": time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)}
	if got := soonest(all); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := soonest(all[:1]); got != nil {
		t.Errorf("without an end: %v", got)
	}
}

// Routes have no index by namespace (controller/process).
func TestAWildcardConcernsAllOfItsNamespace(t *testing.T) {
	routes := cache.NewSharedIndexInformer(nil, &servingv1.Route{}, 0, cache.Indexers{})
	for _, key := range []reconcile.Key{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}, {Namespace: "ns2", Name: "a"}} {
		if err := routes.GetStore().Add(&servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&log)
	defer klog.LogToStderr(true)
	certificate := &unstructured.Unstructured{}
	certificate.SetNamespace("ns")
	certificate.SetLabels(map[string]string{names.WildcardDomainLabel: "example.com"})
	keys := Concerns(routes, "Route")(certificate)
	slices.SortFunc(keys, func(a, b reconcile.Key) int { return strings.Compare(a.Name, b.Name) })
	if want := []reconcile.Key{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}}; !slices.Equal(keys, want) {
		t.Errorf("it concerns %v", keys)
	}
	if klog.Flush(); log.Len() > 0 {
		t.Errorf("logged: %s", &log)
	}
}
