package process

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"

	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/testing/process"
)

// Argo CD's script counts the conditions of a Service, and takes each that is False for a failure:
// one more than these three, for information only, would make Services Degraded.
func TestArgoCDJudgesAServiceAsReadyDoes(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program")
	}
	wanted := map[corev1.ConditionStatus]string{"": "Progressing", corev1.ConditionUnknown: "Progressing", corev1.ConditionTrue: "Healthy", corev1.ConditionFalse: "Degraded"}
	all, counts := servicesOfScenarios(t), map[string]int{}
	for i, got := range process.Ask[verdict](t, "../../dev/argocd", all) {
		status := all[i].Status.Conditions
		ready := all[i].Status.GetCondition(apis.ConditionReady)
		var types []string
		for _, c := range status {
			types = append(types, string(c.Type))
		}
		slices.Sort(types)
		if three := strings.Join(types, " "); three != "" && three != "ConfigurationsReady Ready RoutesReady" {
			t.Errorf("a Service has the conditions %s", three)
		}
		var is corev1.ConditionStatus
		if ready != nil {
			is = ready.Status
		}
		if got.Status != wanted[is] {
			t.Errorf("Argo CD says %s of a Service whose conditions are %v", got.Status, status)
		}
		counts[got.Status]++
	}
	if len(counts) != 3 {
		t.Errorf("the scenarios lead to %v only", counts)
	}
}

// servicesOfScenarios returns Services in all states that the scenarios lead them to.
func servicesOfScenarios(t *testing.T) (all []servingv1.Service) {
	files, err := filepath.Glob("testdata/*.scenario")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		play(t, string(text), func(w *world) {
			for key := range w.store.Versions(services, labels.Everything()) {
				namespace, name, _ := strings.Cut(key, "/")
				var service servingv1.Service
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(w.store.Get(services, namespace, name).Object, &service); err != nil {
					t.Fatal(err)
				}
				all = append(all, service)
			}
		})
	}
	return all
}

type verdict struct{ Status, Message string }
