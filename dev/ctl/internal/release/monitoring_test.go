package release

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// The libraries of these tests are none that Ebb's own module needs.
const monitoring = "../../../../config/monitoring"

// The types of the Prometheus operator take the objects, strictly.
func TestThePrometheusOperatorTakesTheObjects(t *testing.T) {
	seen := map[string]int{}
	for _, name := range []string{"monitors.yaml", "rules.yaml", "knative-1.18/rules.yaml"} {
		text, err := os.ReadFile(filepath.Join(monitoring, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			var kind struct{ Kind string }
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatal(err)
			}
			var object any
			switch kind.Kind {
			case "PodMonitor":
				object = &monitoringv1.PodMonitor{}
			case "PrometheusRule":
				object = &monitoringv1.PrometheusRule{}
			}
			if err := yaml.UnmarshalStrict([]byte(document), object); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			seen[kind.Kind]++
		}
	}
	if seen["PodMonitor"] != 4 || seen["PrometheusRule"] != 2 || len(seen) != 2 {
		t.Errorf("the files have %v", seen)
	}
}

func TestKustomizeMakesTheMonitoring(t *testing.T) {
	for name, want := range map[string][]string{
		".":            {"PodMonitor ebb-components", "PodMonitor ebb-edge", "PodMonitor ebb-node-agent", "PodMonitor ebb-queue-proxy", "PrometheusRule ebb"},
		"knative-1.18": {"PrometheusRule ebb-knative-1.18-names"},
		"dashboards":   {"ConfigMap ebb-dashboard-cold-starts", "ConfigMap ebb-dashboard-control-plane", "ConfigMap ebb-dashboard-service"},
	} {
		made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(monitoring, name))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range made.Resources() {
			got = append(got, r.GetKind()+" "+r.GetName())
			if r.GetNamespace() != "knative-serving" {
				t.Errorf("%s is in namespace %q", r.GetName(), r.GetNamespace())
			}
			for file, text := range r.GetDataMap() {
				if r.GetLabels()["grafana_dashboard"] != "1" || !json.Valid([]byte(text)) {
					t.Errorf("%s of %s is no dashboard that Grafana finds", file, r.GetName())
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
