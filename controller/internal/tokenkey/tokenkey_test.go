package tokenkey

import (
	"bytes"
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"ebb.dev/ebb/wire"
)

func TestTheKeyIsMadeOnceAndThenKept(t *testing.T) {
	for why, shipped := range map[string]*corev1.Secret{
		"no Secret at all":         nil,
		"the empty Secret shipped": {ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret}},
		"a Secret with an empty key": {ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: wire.TokenSecret},
			Data: map[string][]byte{wire.TokenSecretKey: {}}},
	} {
		t.Run(why, func(t *testing.T) {
			client := fake.NewClientset()
			if shipped != nil {
				client = fake.NewClientset(shipped)
			}
			first, err := Ensure(context.Background(), client, "sys")
			if err != nil || len(first) != size {
				t.Fatalf("got %d bytes, %v", len(first), err)
			}
			second, err := Ensure(context.Background(), client, "sys")
			if err != nil || !bytes.Equal(first, second) {
				t.Fatalf("the key changed or failed: %v", err)
			}
		})
	}
}
