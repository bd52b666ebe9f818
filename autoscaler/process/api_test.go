package process

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestTheAuthorityIsNamedInTheAPIServiceOnce(t *testing.T) {
	bundle, patches := json.RawMessage(`null`), 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.view.ebb.dev" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if r.Method == http.MethodPatch {
			patches++
			var patch map[string]map[string]json.RawMessage
			body, _ := io.ReadAll(r.Body)
			if err := json.Unmarshal(body, &patch); err != nil || len(patch) != 1 || len(patch["spec"]) != 1 || r.Header.Get("Content-Type") != "application/merge-patch+json" {
				t.Errorf("a patch of %s: %v", body, err)
			}
			bundle = patch["spec"]["caBundle"]
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"kind": "APIService", "apiVersion": "apiregistration.k8s.io/v1", "spec": map[string]any{"caBundle": bundle}})
	}))
	defer server.Close()
	kube := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	for _, c := range []struct {
		bundle string
		writes int
	}{{"one", 1}, {"one", 1}, {"one and two", 2}} {
		if err := registerView(t.Context(), kube, []byte(c.bundle)); err != nil || patches != c.writes {
			t.Errorf("%s: %d patches, want %d: %v", c.bundle, patches, c.writes, err)
		}
		var got []byte
		if err := json.Unmarshal(bundle, &got); err != nil || string(got) != c.bundle {
			t.Errorf("the bundle is %q, want %q: %v", got, c.bundle, err)
		}
	}
	server.Close()
	if err := registerView(t.Context(), kube, []byte("one")); err == nil {
		t.Error("an API server that is away is no error")
	}
}
