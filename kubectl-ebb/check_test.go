package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/client/versioned"
	serving "ebb.dev/ebb/api/serving/v1"
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

// An Ingress has the hosts of its rules: all without a host, and for what no rule matches.
func TestTheHostsOfAnIngress(t *testing.T) {
	to := &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: "cart-00001"}}
	for name, c := range map[string]struct {
		class string
		spec  networkingv1.IngressSpec
		want  []string
	}{
		"of hosts":                  {"istio", networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{Host: "a"}, {Host: "*.b"}}}, []string{"a", "*.b"}},
		"a rule without a host":     {"istio", networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{}}}, []string{"*"}},
		"what no rule matches":      {"istio", networkingv1.IngressSpec{DefaultBackend: to}, []string{"*"}},
		"of others":                 {"nginx", networkingv1.IngressSpec{DefaultBackend: to, Rules: []networkingv1.IngressRule{{Host: "a"}, {}}}, nil},
		"of nobody":                 {"", networkingv1.IngressSpec{Rules: []networkingv1.IngressRule{{}}}, nil},
		"nothing, as of a bad form": {"istio", networkingv1.IngressSpec{}, nil},
	} {
		in := &networkingv1.Ingress{Spec: c.spec}
		if c.class != "" {
			in.Spec.IngressClassName = &c.class
		}
		if got := ofIngress(in).hosts; !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	hosts := map[string]string{"cart.example.org": "shop/cart", "a.example.org": "shop/a"}
	for host, want := range map[string]string{"*": "shop/a", "*.example.org": "shop/a", "cart.example.org": "shop/cart", "*.org.example": "", "": ""} {
		if got := within(hosts, host); got != want {
			t.Errorf("%q has %q, want %q", host, got, want)
		}
	}
}

// A Route has a host inside the cluster, too, which its status has as the address.
func TestAHostInsideTheClusterMayBeTakenToo(t *testing.T) {
	const inside = "cart.shop.svc.cluster.local"
	route := serving.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"}}
	route.Status.URL = apis.HTTP("cart.shop.example.org")
	route.Status.Address = &duckv1.Addressable{URL: apis.HTTP(inside)}
	taker := virtualService{}
	taker.Spec.Hosts, taker.Spec.Gateways = []string{inside}, []string{"istio-system/inside"}
	var j checklist
	(&neighbours{own: []serving.Route{route, {}}, virtual: []virtualService{taker}}).check(&j, "hosts")
	if len(j.findings) != 1 || !strings.Contains(fmt.Sprint(j.findings), inside+" of Route shop/cart") {
		t.Errorf("found %v", j.findings)
	}
}
