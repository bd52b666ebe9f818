package process

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"ebb.dev/ebb/autoscaler/alive"
	"ebb.dev/ebb/autoscaler/internal/pods"
)

// A Lease that somebody made by hand may say nothing.
func TestWhatALeaseSaysOfItsNode(t *testing.T) {
	lease := func(name string, at *metav1.MicroTime) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}, Spec: coordinationv1.LeaseSpec{RenewTime: at}}
	}
	at := metav1.NewMicroTime(time.Unix(1000, 5000).UTC())
	read := renewals(fake.NewClientset(lease("a", &at), lease("b", nil)))
	for node, c := range map[string]struct{ renewed, fails string }{
		"a": {at.String(), ""},
		"b": {"", "the Lease of node b does not say when it was renewed"},
		"c": {"", "get the Lease of node c"},
	} {
		renewed, err := read(t.Context(), node)
		if renewed != c.renewed || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%s: %q, %v", node, renewed, err)
		}
	}
}

// An activator speaks for its node, with pods of services or without. About the own node nothing is
// decided, so where there is no other, nobody is listed.
func TestWhoIsAskedOnWhichNode(t *testing.T) {
	index, err := pods.NewIndex(fake.NewClientset())
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]string{}
	agents := map[string]string{"b": "192.168.0.2", "c": "192.168.0.3"}
	list := listed("a", index, func() map[string]string { return maps.Clone(there) }, func() map[string]string { return agents })
	if got := list(8); got != nil {
		t.Errorf("without anybody: %v", got)
	}
	there["a"] = "10.0.0.1"
	if got := list(8); got != nil {
		t.Errorf("with one here: %v", got)
	}
	there["b"] = "10.0.1.1"
	if got := list(8); len(got) != 2 || !slices.Equal(got["b"], []string{"10.0.1.1"}) || !slices.Equal(got["c"], []string{"192.168.0.3"}) {
		t.Errorf("with one elsewhere: %v", got)
	}
}

func TestWhereNodeAgentsAre(t *testing.T) {
	slice := func(name, service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "sys", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}}, Endpoints: endpoints}
	}
	at := func(address, node string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	}
	find := nodeAgents(fake.NewClientset(slice("one", "node-agent", at("192.168.0.1", "a", true), at("192.168.0.2", "b", false)),
		slice("two", "node-agent", at("192.168.0.3", "c", true), at("example.com", "d", true), discoveryv1.Endpoint{Addresses: []string{"192.168.0.5"}}),
		slice("three", "another", at("192.168.0.6", "e", true))), "sys")
	got, err := find(t.Context())
	if want := map[string]netip.Addr{"a": netip.MustParseAddr("192.168.0.1"), "c": netip.MustParseAddr("192.168.0.3")}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

// Three replicas come to the same verdicts at about the same time.
func TestOneReplicaTellsOfSilentNodesAndEachOfLostOnes(t *testing.T) {
	for state, want := range map[alive.State][2]string{
		alive.Silent: {"Warning NodeSilent why", ""},
		alive.Lost:   {"Warning NodeLost why", "Warning NodeLost why"},
		alive.Well:   {"Normal NodeAnswers why", ""},
	} {
		for i, first := range []bool{true, false} {
			recorder := record.NewFakeRecorder(1)
			tellOfNode(recorder, alive.Verdict{Node: "b", State: state, Reason: "why"}, first)
			close(recorder.Events)
			if got := <-recorder.Events; got != want[i] {
				t.Errorf("%s, first %t: %q, want %q", state, first, got, want[i])
			}
		}
	}
}
