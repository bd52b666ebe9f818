package faults

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
		set := Set{Cluster: &cluster.Cluster{Programs: programs}, Longest: time.Second}
		for _, f := range slices.Concat(set.All(), set.ofNodes(), set.harmless()) {
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

func TestFaultsOfNodesNeedThreeNodes(t *testing.T) {
	c := &cluster.Cluster{Programs: cluster.Components}
	edge := &cluster.Cluster{Programs: []string{cluster.Edge}}
	for name, row := range map[string]struct {
		nodes Nodes
		says  string
	}{
		"one node":              {Nodes{c, []string{"ebb-dev"}}, "this cluster has 1 node, and a fault of a node needs 3"},
		"two nodes":             {Nodes{c, []string{"a", "b"}}, "this cluster has 2 nodes"},
		"three nodes":           {Nodes{c, []string{"a", "b", "c"}}, ""},
		"the profile edge":      {Nodes{edge, []string{"a", "b", "c"}}, "the profile edge"},
		"nobody listed any yet": {Nodes{}, "this cluster has 0 nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			set := Set{Cluster: c, Nodes: row.nodes}
			for names, want := range map[string]int{"nodes": 5, "harmless": 5, "node busy": 1, "node drained": 1, "etcd restarted,node power cut": 2} {
				got, err := set.Choose(names)
				if row.says == "" && (err != nil || len(got) != want) {
					t.Errorf("%s: %v, %v", names, Names(got), err)
				}
				if row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)) {
					t.Errorf("%s: %v", names, err)
				}
			}
			if _, err := set.Choose("all"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAllHarmlessFaultsKeepTheNode(t *testing.T) {
	for _, f := range (Set{Cluster: &cluster.Cluster{Programs: cluster.Components}}).harmless() {
		if !f.Keeps || !f.Node || f.Do == nil {
			t.Errorf("%+v", f)
		}
	}
}

func TestWhatAnActivatorDoesNotHear(t *testing.T) {
	pod := func(ip string) corev1.Pod { return corev1.Pod{Status: corev1.PodStatus{PodIP: ip}} }
	if got := losing([]corev1.Pod{pod("10.88.4.2"), pod(""), pod("10.88.8.3"), pod("fd00::1")}); !strings.Contains(got, "ip saddr { 10.88.4.2, 10.88.8.3 } drop\n") {
		t.Error(got)
	}
	if got := losing([]corev1.Pod{pod("")}); got != "" {
		t.Error(got)
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
