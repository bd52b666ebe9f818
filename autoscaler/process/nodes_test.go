package process

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
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
