package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/settings"
)

// The policy that is read is the one of config/envoy-gateway. Where the Gateways are somebody
// else's, nobody asks for it.
func TestTheStreamPolicyIsReadWhereTheGatewaysAreEnvoyGateways(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "config", "envoy-gateway", "policies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	policy, err := yaml.YAMLToJSON([]byte(first))
	if err != nil {
		t.Fatal(err)
	}
	status, asked := http.StatusOK, 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		if r.URL.Path != "/apis/gateway.envoyproxy.io/v1alpha1/namespaces/knative-serving/clienttrafficpolicies/ebb" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if status == http.StatusOK {
			_, _ = w.Write(policy)
		}
	}))
	defer server.Close()
	a := &access{kube: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})}
	read := func(class string) *installation {
		given, err := settings.Parse(map[string]map[string]string{settings.GatewayName: {"external-gateways": "[{class: " + class + ", gateway: a/b, service: a/b}]"}})
		if err != nil {
			t.Fatal(err)
		}
		x := &installation{settings: given}
		x.inspectStreams(t.Context(), a)
		return x
	}
	if x := read("envoy-gateway"); x.streamErr != nil || x.streams.Spec.Timeout.HTTP.StreamIdleTimeout.Duration != 65*time.Minute {
		t.Errorf("read %+v, %v", x.streams, x.streamErr)
	}
	status = http.StatusNotFound
	if x := read("envoy-gateway"); x.streams != nil || x.streamErr != nil {
		t.Errorf("without the policy: %+v, %v", x.streams, x.streamErr)
	}
	status = http.StatusForbidden
	if x := read("envoy-gateway"); x.streamErr == nil {
		t.Error("it may not be read, and nobody says so")
	}
	if before := asked; read("istio").streams != nil || asked != before {
		t.Error("it is read for gateways of Istio")
	}
}
