package route

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
)

var update = flag.Bool("update", false, "write what is seen into testdata")

// The status of Routes as kn, dashboards and waiting scripts read it, but for the times of transitions.
func TestStatus(t *testing.T) {
	for _, row := range []struct {
		name    string
		targets []string
		local   bool
		ready   string
	}{
		{"latest-and-tags", []string{"latest=90", "blue:hello-00001=10", "green:hello-00002=0"}, false, "True "},
		{"cluster-local", []string{"latest=100", "blue:hello-00001=0"}, true, "True "},
		{"missing-revision", []string{"hello-00007=100"}, false, "False RevisionMissing"},
		{"waiting-revision", []string{"hello-00003=100"}, false, "Unknown RevisionMissing"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := set(t)
			for _, name := range []string{"hello-00001", "hello-00002"} {
				s.revision(name, corev1.ConditionTrue)
				s.service(name)
			}
			s.revision("hello-00003", corev1.ConditionUnknown)
			s.configuration("hello-00002")
			if row.local {
				route := &servingv1.Route{}
				route.Name, route.Namespace, route.Labels = "hello", "ns", map[string]string{names.VisibilityLabel: names.VisibilityClusterLocal}
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
			file := filepath.Join("testdata", row.name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-in file +seen; -update writes it):\n%s", file, diff)
			}
		})
	}
}
