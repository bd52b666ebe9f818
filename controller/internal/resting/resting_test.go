package resting

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/apiservertest/policy"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var (
	httpRoutes = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
	services   = schema.GroupResource{Resource: "services"}
	slicesOf   = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	namespaces = schema.GroupResource{Resource: "namespaces"}
)

func parsed(t *testing.T, gateway, network map[string]string) *settings.Snapshot {
	t.Helper()
	s, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": "", "apps.example.com": "selector:\n  app: x", "svc.cluster.local": "selector:\n  app: y"},
		settings.GatewayName: gateway, settings.NetworkName: network})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestWhichHostsHaveACommonHTTPRoute(t *testing.T) {
	list := commons(parsed(t, map[string]string{"resting-routes": "Enabled"}, nil), "knative-serving", "cluster.local")
	var got []string
	for _, c := range list {
		route := c.route("knative-serving", 1)
		got = append(got, string(c.visibility)+" "+strings.Join(route.Hosts, " "))
	}
	slices.Sort(got)
	if want := "external *.apps.example.com, external *.example.com, local "; strings.Join(got, ", ") != want {
		t.Errorf("got %q", got)
	}
	for host, want := range map[string]bool{"a.ns.example.com": true, "example.com": false, "badexample.com": false, "a.ns": false} {
		if got := slices.ContainsFunc(list, func(c common) bool { return c.covers(plan.External, host) }); got != want {
			t.Errorf("%s is covered: %v", host, got)
		}
	}
}

func TestWhatKeepsAllHostsFromResting(t *testing.T) {
	const at = "[{class: istio, gateway: %, service: %-istio}]"
	gateways := func(external, local string) map[string]string {
		return map[string]string{"resting-routes": "Enabled", "external-gateways": strings.ReplaceAll(at, "%", external), "local-gateways": strings.ReplaceAll(at, "%", local)}
	}
	for want, s := range map[string]*settings.Snapshot{
		"":                    parsed(t, map[string]string{"resting-routes": "Enabled"}, nil),
		"resting-routes":      parsed(t, nil, nil),
		"system-internal-tls": parsed(t, map[string]string{"resting-routes": "Enabled"}, map[string]string{"system-internal-tls": "Enabled"}),
		"not in Ebb's":        parsed(t, gateways("edge/outside", "edge/inside"), nil),
		"has external hosts":  parsed(t, gateways("knative-serving/one", "knative-serving/one"), nil),
	} {
		if got := hindrance(s, "knative-serving"); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("want %q, got %q", want, got)
		}
	}
}

// way plays activators: those that follow plans say that there is none for the host.
type way struct{ older atomic.Bool }

func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	code, header := http.StatusBadRequest, http.Header{}
	if strings.HasPrefix(r.URL.Host, "10.0.0.1") || !w.older.Load() {
		code = http.StatusNotFound
		header.Set(wire.HeaderResting, wire.RestingUnknown)
	}
	return &http.Response{StatusCode: code, Header: header, Body: http.NoBody, Request: r}, nil
}

// Only activators that follow plans are listed. What somebody deletes is made again, and all of it
// goes with the setting; the policies of config/ let the controller write it.
func TestWhatRestingHostsShareIsThereWhileTheyMayRest(t *testing.T) {
	store, config := apiservertest.Start(t)
	policy.Enforce(t, store, "controller")
	store.Put(namespaces, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "knative-serving"}}})
	store.Put(slicesOf, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata": map[string]any{"name": "activator-service-1", "namespace": "knative-serving",
			"labels": map[string]any{"kubernetes.io/service-name": "activator-service"}},
		"endpoints": []any{map[string]any{"addresses": []any{"10.0.0.1"}}, map[string]any{"addresses": []any{"10.0.0.2"}}}}})
	on := settings.NewStore(parsed(t, map[string]string{"resting-routes": "Enabled"}, nil))
	mgr := stage.Manager(t, config, on)
	activators := &way{}
	activators.older.Store(true)
	mgr.ToGateways = activators
	var ahead atomic.Int64
	mgr.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	controller := New(mgr, NewSeen(mgr))
	stage.Run(t, mgr, controller)
	listed := func() string {
		slice := store.Get(slicesOf, "knative-serving", plan.Resting)
		if slice == nil {
			return "no slice"
		}
		list, _, _ := unstructured.NestedSlice(slice.Object, "endpoints")
		var out []string
		for _, e := range list {
			addresses, _, _ := unstructured.NestedStringSlice(e.(map[string]any), "addresses")
			out = append(out, addresses...)
		}
		return strings.Join(out, " ")
	}
	routes := func() (n int) {
		for _, name := range store.Names("knative-serving") {
			if strings.HasPrefix(name, "httproutes common-") {
				n++
			}
		}
		return n
	}
	eventually.True(t, "two HTTPRoutes for each of three", func() bool { return routes() == 6 })
	eventually.True(t, "the activator that follows plans", func() bool { return listed() == "10.0.0.1" })
	activators.older.Store(false)
	eventually.True(t, "both activators", func() bool { return listed() == "10.0.0.1 10.0.0.2" })
	store.Remove(httpRoutes, "knative-serving", "common-local-1")
	eventually.True(t, "the HTTPRoute is back", func() bool { return routes() == 6 })

	on.Set(parsed(t, nil, nil))
	ahead.Store(int64(time.Hour))
	controller.Enqueue(controller.Keys()[0])
	eventually.True(t, "nothing is left", func() bool {
		ahead.Add(int64(time.Hour))
		controller.Enqueue(controller.Keys()[0])
		return routes() == 0 && listed() == "no slice" && store.Get(services, "knative-serving", plan.Resting) == nil
	})
}
