package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/client/versioned"
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

// A cluster need not have Istio, nor GRPCRoutes. Routes and Revisions are read only beside what may
// name something of theirs.
func TestWhatIsInTheWayOfRestingHostsIsReadWhereTheClusterHasIt(t *testing.T) {
	const ingresses, grpc, virtual, older = "/apis/networking.k8s.io/v1/ingresses", "/apis/gateway.networking.k8s.io/v1/grpcroutes",
		"/apis/networking.istio.io/v1/virtualservices", "/apis/networking.istio.io/v1beta1/virtualservices"
	const httpRoutes, revisions, routes = "/apis/gateway.networking.k8s.io/v1/httproutes", "/apis/serving.knative.dev/v1/revisions", "/apis/serving.knative.dev/v1/routes"
	const none, one = `{"items": []}`, `{"items": [{"metadata": {"name": "one"}}]}`
	for name, c := range map[string]struct {
		rests   bool
		has     map[string]string
		want    string // how many of HTTPRoutes and GRPCRoutes, Ingresses, VirtualServices, Revisions, Routes
		refused bool
	}{
		"nothing rests":        {false, nil, "0 0 0 0 0", false},
		"neither":              {true, map[string]string{httpRoutes: one, ingresses: none}, "1 0 0 0 0", false},
		"GRPCRoutes":           {true, map[string]string{httpRoutes: one, grpc: one, ingresses: none, virtual: none}, "2 0 0 0 0", false},
		"Istio":                {true, map[string]string{httpRoutes: none, ingresses: none, virtual: one, revisions: one, routes: one}, "0 0 1 1 1", false},
		"an older Istio":       {true, map[string]string{httpRoutes: none, ingresses: one, older: one, revisions: one, routes: one}, "0 1 1 1 1", false},
		"Ingresses not for us": {true, map[string]string{httpRoutes: one, ingresses: "", virtual: one}, "1 0 0 0 0", true},
		"Revisions not for us": {true, map[string]string{httpRoutes: none, ingresses: one, revisions: ""}, "0 1 0 0 0", true},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				text, there := c.has[r.URL.Path]
				switch {
				case !c.rests:
					t.Errorf("asked for %s", r.URL.Path)
				case !there:
					w.WriteHeader(http.StatusNotFound)
				case text == "":
					w.WriteHeader(http.StatusForbidden)
				default:
					_, _ = w.Write([]byte(text))
				}
			}))
			defer server.Close()
			config := &rest.Config{Host: server.URL}
			a := &access{kube: kubernetes.NewForConfigOrDie(config), ebb: versioned.NewForConfigOrDie(config)}
			x := &installation{settings: settings.Default()}
			x.settings.Gateway.Resting = c.rests
			x.inspectResting(t.Context(), gateways.NewForConfigOrDie(config))
			x.inspectBlind(t.Context(), a)
			b := &x.beside
			if got := fmt.Sprint(len(b.routes), len(b.ingresses), len(b.virtual), len(b.revisions), len(b.own)); got != c.want || b.routesErr != nil || (b.blindErr != nil) != c.refused {
				t.Errorf("read %s, not %s; %v, %v", got, c.want, b.routesErr, b.blindErr)
			}
		})
	}
}
