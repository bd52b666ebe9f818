package process

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/autoscaler/internal/pods"
)

// A Lease that somebody made by hand may say nothing.
func TestWhatALeaseSaysOfItsNode(t *testing.T) {
	lease := func(name string, at *metav1.MicroTime) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: at}}
	}
	at := metav1.NewMicroTime(time.Unix(1000, 5000).UTC())
	read := renewals(fake.NewClientset(lease("a", &at), lease("b", nil)))
	for node, c := range map[string]struct{ renewed, fails string }{
		"a": {at.String(), ""},
		"b": {"", "the Lease of node b does not say when it was renewed"},
		"c": {"", "get the Lease of node c"},
	} {
		renewed, err := read(t.Context(), node)
		if renewed != c.renewed || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %q, %v", node, renewed, err)
		}
	}
}

// An activator speaks for its node, with pods of services or without. About the own node nothing is
// decided, so where there is no other, nobody is listed.
func TestWhoIsAskedOnWhichNode(t *testing.T) {
	index, err := pods.NewIndex(fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	list := listed("a", index, func() map[string]string { return maps.Clone(there) })
	if got := list(8); got != nil {
		t.Errorf("without anybody: %v", got)
	}
	there["a"] = "10.0.0.1"
	if got := list(8); got != nil {
		t.Errorf("with one here: %v", got)
	}
	there["b"] = "10.0.1.1"
	if got := list(8); len(got) != 1 || !slices.Equal(got["b"], []string{"10.0.1.1"}) {
		t.Errorf("with one elsewhere: %v", got)
	}
}
