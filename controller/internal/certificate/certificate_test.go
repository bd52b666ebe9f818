package certificate

import (
	"maps"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
