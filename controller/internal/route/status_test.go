package route

import (
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	listers "ebb.dev/ebb/api/client/listers/serving/v1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/test/golden"
)

// The status of Routes as kn, dashboards and waiting scripts read it, but for the times of
// transitions.
func TestStatus(t *testing.T) {
	for _, row := range []struct {
		name    string
		targets []string
		local   bool
		ready   string
		network string
		labels  map[string]string
	}{
		{"latest-and-tags", []string{"latest=90", "blue:hello-00001=10", "green:hello-00002=0"}, false, "True ", "", nil},
		{"cluster-local", []string{"latest=100", "blue:hello-00001=0"}, true, "True ", "", nil},
		{"missing-revision", []string{"hello-00007=100"}, false, "False RevisionMissing", "", nil},
		{"waiting-revision", []string{"hello-00003=100"}, false, "Unknown RevisionMissing", "", nil},
		{"failed-revision", []string{"hello-00004=100"}, false, "False RevisionMissing", "", nil},
		{"revision-of-another-service", []string{"hello-00001=100"}, false, "False RevisionNotOwned", "", map[string]string{names.ServiceLabel: "hello"}},
		{"https-in-front-of-the-gateway", []string{"latest=100", "blue:hello-00001=0"}, false, "True ", "default-external-scheme=https", nil},
		{"a-host-that-is-none", []string{"latest=100"}, false, "False ErrorConfig", "domain-template={{.Name}}.{{.Labels.team}}.{{.Domain}}", map[string]string{"team": "not_a.host"}},
		{"two-targets-with-one-host", []string{"latest=100", "blue:hello-00001=0"}, false, "False ErrorConfig", "domain-template={{.Namespace}}.{{.Domain}}", nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := set(t)
			for _, name := range []string{"hello-00001", "hello-00002"} {
				s.revision(name, corev1.ConditionTrue)
				s.service(name)
			}
			s.revision("hello-00003", corev1.ConditionUnknown)
			s.revision("hello-00004", corev1.ConditionFalse)
			if row.network != "" {
				s.network(row.network)
			}
			s.configuration("hello-00002")
			if row.local {
				row.labels = map[string]string{names.VisibilityLabel: names.VisibilityClusterLocal}
			}
			if row.labels != nil {
				route := &servingv1.Route{}
				route.Name, route.Namespace, route.Labels = "hello", "ns", row.labels
				s.put(routes, "serving.knative.dev/v1", "Route", route)
			}
			s.route(row.targets...)
			s.until(row.name, func(r *servingv1.Route) bool {
				return condition(r, "Ready") == row.ready && (row.ready != "True " || len(r.Status.Traffic) == len(row.targets))
			})
			status, _, _ := unstructured.NestedMap(s.store.Get(routes, "ns", "hello").Object, "status")
			list, _, _ := unstructured.NestedSlice(status, "conditions")
			for _, c := range list {
				delete(c.(map[string]any), "lastTransitionTime")
			}
			status["conditions"] = list
			delete(status, "observedGeneration") // how often the test has put the Route
			got, err := yaml.Marshal(status)
			if err != nil {
				t.Fatal(err)
			}
			golden.File(t, filepath.Join("testdata", row.name+".yaml"), string(got))
		})
	}
}

// A Service makes its Configuration before its Route, but the caches may learn of them in the other
// order. A new Route does not fail for that; later, and without a Service, it does.
func TestANewRouteWaitsForItsConfiguration(t *testing.T) {
	configurations := listers.NewConfigurationLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{}))
	for _, row := range []struct {
		service string
		seen    int64
		want    corev1.ConditionStatus
	}{{"hello", 0, corev1.ConditionUnknown}, {"hello", 1, corev1.ConditionFalse}, {"", 0, corev1.ConditionFalse}} {
		route := &servingv1.Route{}
		route.Labels, route.Status.ObservedGeneration = map[string]string{names.ServiceLabel: row.service}, row.seen
		route.Spec.Traffic = []servingv1.TrafficTarget{{ConfigurationName: "hello"}}
		if _, ok, err := resolve(route, configurations, nil); ok || err != nil {
			t.Errorf("%+v: %v, %v", row, ok, err)
		}
		if c := route.Status.GetCondition(servingv1.RouteConditionReady); c == nil || c.Status != row.want {
			t.Errorf("%+v: Ready is %+v", row, c)
		}
	}
}
