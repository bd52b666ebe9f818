package events

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestAnEventAboutANamespaceThatIsGoneIsNoError(t *testing.T) {
	terminating := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for _, row := range []struct {
		why    string
		answer error
		fails  bool
	}{
		{"written", nil, false},
		{"the namespace is gone", apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns"), false},
		{"the namespace is going", terminating, false},
		{"not allowed", apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "e", errors.New("no")), true},
		{"no connection", errors.New("refused"), true},
	} {
		t.Run(row.why, func(t *testing.T) {
			kube := fake.NewClientset()
			kube.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
				return row.answer != nil, nil, row.answer
			})
			event, err := Sink(kube).Create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "ns"}})
			if (err != nil) != row.fails || err == nil && event == nil {
				t.Errorf("event %v, error %v", event, err)
			}
		})
	}
}
