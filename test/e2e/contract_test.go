//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/clientcmd"

	"ebb.dev/ebb/test/contract"
)

func TestContractOfTheRealServer(t *testing.T) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := shared.Apply(ctx, "", contract.Widgets); err != nil {
		t.Fatal(err)
	}
	const name = "widgets.contract.ebb.dev"
	definitions := shared.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	t.Cleanup(func() {
		if err := definitions.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	// The kind is served a moment after it was defined.
	kind := schema.GroupVersionResource{Group: "contract.ebb.dev", Version: "v1", Resource: "widgets"}
	for {
		if _, err = shared.Dynamic.Resource(kind).List(ctx, metav1.ListOptions{}); err == nil {
			break
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
	contract.Run(t, config, false)
}
