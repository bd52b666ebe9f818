package faults

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"ebb.dev/ebb/test/internal/cluster"
)

// docs/faults.md says what users see of each fault.
func TestEachFaultIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, programs := range [][]string{cluster.Components, {cluster.Edge}} {
		for _, f := range (Set{Cluster: &cluster.Cluster{Programs: programs}, Longest: time.Second}).All() {
			if !strings.Contains(string(page), "| "+f.Name+" |") {
				t.Errorf("docs/faults.md has no row for %s", f.Name)
			}
		}
	}
}

func TestFaultsAreChosenByName(t *testing.T) {
	set := Set{Cluster: &cluster.Cluster{Programs: cluster.Components}}
	all := set.All()
	for names, want := range map[string]int{"all": len(all), "etcd restarted": 1, "etcd restarted,gateway replaced": 2} {
		if got, err := set.Choose(names); err != nil || len(got) != want {
			t.Errorf("%s: %v, %v", names, Names(got), err)
		}
	}
	if _, err := set.Choose("etcd restarted,flood"); err == nil || !strings.Contains(err.Error(), `no fault "flood"`) || !strings.Contains(err.Error(), all[0].Name) {
		t.Errorf("got %v", err)
	}
}

// A process whose number was given to another is left alone.
func TestAProcessOfAnotherContainerIsLeftAlone(t *testing.T) {
	if err := (processes{{pid: os.Getpid(), id: "no-such-container"}}).signal(9); err != nil {
		t.Error(err)
	}
	if (process{pid: os.Getpid()}).alive() {
		t.Error("a container without an ID has a process")
	}
}

// The policy refuses writes of the namespace under load and no others.
func TestUpdatesAreRefusedInOneNamespace(t *testing.T) {
	policy, binding := refusing("soak-1")
	selector, err := metav1.LabelSelectorAsSelector(binding.Spec.MatchResources.NamespaceSelector)
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]bool{"soak-1": true, "soak-2": false, cluster.System: false} {
		if selector.Matches(labels.Set{"kubernetes.io/metadata.name": namespace}) != want {
			t.Errorf("namespace %s: refused is not %v", namespace, want)
		}
	}
	if binding.Spec.PolicyName != policy.Name || len(policy.Spec.MatchConstraints.ResourceRules) != 1 {
		t.Errorf("%+v %+v", policy, binding)
	}
}
