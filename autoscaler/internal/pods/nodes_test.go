package pods

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

// Of a pod that ends or has ended the node may not answer for any more.
func TestPodsByNode(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
	add := func(p *corev1.Pod, node, ip string) {
		p.Spec.NodeName, p.Status.PodIP = node, ip
		one, err := strip(p)
		if err != nil {
			t.Fatal(err)
		}
		index.put(nil, one.(*small))
	}
	add(pod("ready", corev1.PodRunning, true, false), "b", "10.0.0.1")
	add(pod("starts", corev1.PodRunning, false, false), "b", "10.0.0.2")
	add(ran(pod("lapsed", corev1.PodRunning, false, false), 1000, 2000), "c", "10.0.0.3")
	add(pod("ends", corev1.PodRunning, true, true), "d", "10.0.0.4")
	add(pod("evicted", corev1.PodFailed, false, false), "d", "10.0.0.5")
	add(pod("pending", corev1.PodPending, false, false), "d", "")
	add(pod("no-node", corev1.PodRunning, true, false), "", "10.0.0.6")
	all := index.Nodes(8)
	slices.Sort(all["b"])
	if len(all) != 2 || !slices.Equal(all["b"], []string{"10.0.0.1", "10.0.0.2"}) || !slices.Equal(all["c"], []string{"10.0.0.3"}) {
		t.Errorf("%v", all)
	}
	if one := index.Nodes(1); len(one["b"]) != 1 {
		t.Errorf("%v", one)
	}
	for i := range 5 {
		add(pod(fmt.Sprint("many-", i), corev1.PodRunning, true, false), "e", fmt.Sprint("10.0.1.", i))
	}
	stranger := pod("stranger", corev1.PodRunning, true, false)
	stranger.Namespace = "another"
	add(stranger, "e", "10.0.2.1")
	if e := index.Nodes(8)["e"]; len(e) != 3 || !slices.Contains(e, "10.0.2.1") {
		t.Errorf("%v speak for e", e)
	}
	if b, d, none := index.On(key, "b"), index.On(key, "d"), index.On(loop.Key{Name: "x"}, "b"); b != 2 || d != 2 || none != 0 {
		t.Errorf("%d on b, %d on d, %d of another revision", b, d, none)
	}
	if node := index.Node(key, "lapsed"); node != "c" || index.Node(key, "unknown") != "" {
		t.Errorf("lapsed is on %q", node)
	}
}
