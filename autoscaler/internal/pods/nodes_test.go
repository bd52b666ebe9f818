package pods

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
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
	add(pod("starts-alone", corev1.PodPending, false, false), "f", "")
	all := index.Nodes(8)
	slices.Sort(all["b"])
	if f, known := all["f"]; !known || len(f) != 0 {
		t.Errorf("%v of f", f)
	}
	if len(all) != 4 || len(all["d"]) != 0 || !slices.Equal(all["b"], []string{"10.0.0.1", "10.0.0.2"}) || !slices.Equal(all["c"], []string{"10.0.0.3"}) {
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
	seen := map[string]bool{}
	for range 100 {
		seen[index.Nodes(1)["e"][0]] = true
	}
	if len(seen) < 2 {
		t.Errorf("of e only %v are ever listed", seen)
	}
	if b, d, none := index.On(key, "b"), index.On(key, "d"), index.On(loop.Key{Name: "x"}, "b"); b != 2 || d != 2 || none != 0 {
		t.Errorf("%d on b, %d on d, %d of another revision", b, d, none)
	}
	if node, ip := index.Where(key, "lapsed"); node != "c" || ip != "10.0.0.3" {
		t.Errorf("lapsed is on %q at %q", node, ip)
	}
	if node, ip := index.Where(key, "unknown"); node+ip != "" {
		t.Errorf("one that nobody knows is on %q at %q", node, ip)
	}
}

func TestWhetherPodsAreElsewhere(t *testing.T) {
	index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
	one := func(name, node string) *small {
		p := pod(name, corev1.PodRunning, true, false)
		p.Spec.NodeName = node
		stripped, err := strip(p)
		if err != nil {
			t.Fatal(err)
		}
		return stripped.(*small)
	}
	expect := func(when string, fromA, fromB bool) {
		t.Helper()
		if a, b := index.Elsewhere("a"), index.Elsewhere("b"); a != fromA || b != fromB {
			t.Errorf("%s: elsewhere than a %v, want %v; elsewhere than b %v, want %v", when, a, fromA, b, fromB)
		}
	}
	expect("without pods", false, false)
	waits, here := one("waits", ""), one("here", "a")
	index.put(nil, waits)
	expect("one has no node yet", false, false)
	index.put(nil, here)
	index.put(nil, one("beside", "a"))
	expect("two on a", false, true)
	placed := one("waits", "b")
	index.put(waits, placed)
	expect("one on b, too", true, true)
	index.put(placed, one("waits", "b"))
	index.put(here, one("here", "a"))
	expect("after updates", true, true)
	index.put(placed, nil)
	expect("on a again", false, true)
	index.put(here, nil)
	expect("one of two on a is gone", false, true)
	index.put(one("beside", "a"), nil)
	index.put(one("beside", "a"), nil)
	expect("all are gone", false, false)
	if len(index.nodes) > 0 {
		t.Errorf("%v", index.nodes)
	}
}

// Each round of package nodes asks this, and lists the pods only if some are elsewhere.
func BenchmarkNodes(b *testing.B) {
	const revisions = 20_000
	for name, nodes := range map[string]int{"one node": 1, "200 nodes": 200} {
		index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
		for n := range revisions {
			p := pod(fmt.Sprint("pod-", n), corev1.PodRunning, true, false)
			p.Namespace, p.Labels[names.RevisionLabel] = fmt.Sprint("ns-", n%500), fmt.Sprint("rev-", n)
			p.Spec.NodeName, p.Status.PodIP = fmt.Sprint("node-", n%nodes), fmt.Sprintf("10.%d.%d.%d", n>>16, n>>8&255, n&255)
			one, err := strip(p)
			if err != nil {
				b.Fatal(err)
			}
			index.put(nil, one.(*small))
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if index.Elsewhere("node-0") {
					index.Nodes(32)
				}
			}
		})
	}
}

// Whatever Kubernetes and the pods say, nothing on a lost node is ready or asleep, and nothing
// starts on a silent one.
func TestPodsOnLostNodesAreNotReady(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
	add := func(p *corev1.Pod, node string) {
		p.Spec.NodeName = node
		one, err := strip(p)
		if err != nil {
			t.Fatal(err)
		}
		index.put(nil, one.(*small))
	}
	add(pod("ready", corev1.PodRunning, true, false), "a")
	add(pod("ready-there", corev1.PodRunning, true, false), "b")
	add(pod("asleep-there", corev1.PodRunning, true, false), "b")
	add(ran(pod("lapsed-there", corev1.PodRunning, false, false), 1000, 2000), "b")
	add(pod("starts-there", corev1.PodPending, false, false), "b")
	add(pod("ends-there", corev1.PodRunning, true, true), "b")
	add(pod("evicted-there", corev1.PodFailed, false, false), "b")
	index.Said(key, "asleep-there", 1, "")
	var changed []loop.Key
	note := func(k loop.Key) { changed = append(changed, k) }
	before := index.Count(key)
	if before.Ready != 2 || before.Asleep != 1 || before.Lost != 0 {
		t.Fatalf("%+v", before)
	}
	index.SetSilent(map[string]bool{"c": true}, note) // it has no pod
	if got := index.Count(key); got != before || len(changed) != 0 {
		t.Errorf("%+v, changed %v", got, changed)
	}
	index.SetSilent(map[string]bool{"b": false, "c": true}, note)
	silent := before
	silent.Lost = 1
	if got := index.Count(key); got != silent || len(changed) != 1 {
		t.Errorf("%+v, want %+v, changed %v", got, silent, changed)
	}
	index.SetSilent(map[string]bool{"b": true}, note)
	want := revision.Counts{Ready: 1, NotReady: 5, Pending: 1, Terminating: 1, Lost: 4}
	if got := index.Count(key); got != want || len(changed) != 2 {
		t.Errorf("%+v, want %+v, changed %v", got, want, changed)
	}
	if got := index.Count(key); got.Running() != before.Running() {
		t.Errorf("%d run, %d before", got.Running(), before.Running())
	}
	if all := index.ToScrape(key); len(all) != 1 || all[0].Name != "ready" {
		t.Errorf("%+v are asked for their load", all)
	}
	if asleep, lapsed := index.NotReady(key); len(asleep)+len(lapsed) != 0 {
		t.Errorf("%v sleep, %v may", asleep, lapsed)
	}
	index.SetSilent(nil, note)
	if got := index.Count(key); got != before || len(changed) != 3 {
		t.Errorf("%+v, changed %v", got, changed)
	}
}

// Kubernetes places pods on a dead node until it notices itself. No kubelet says anything of them.
func TestAPodThatIsPlacedOnASilentNodeIsLostAtOnce(t *testing.T) {
	key := loop.Key{Namespace: "default", Name: "hello-00001"}
	for _, c := range []struct {
		node         string
		lost, placed int32 // is counted as lost; is news when it is placed
	}{{"silent", 1, 1}, {"lost", 1, 1}, {"well", 0, 0}} {
		index := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
		news := int32(0)
		handler := index.handler(func(loop.Key) { news++ })
		index.SetSilent(map[string]bool{"silent": false, "lost": true}, func(k loop.Key) { t.Errorf("%v has no pod there", k) })
		one := func(node string, deleted bool) any {
			p := pod("starts", corev1.PodPending, false, deleted)
			p.Spec.NodeName = node
			stripped, err := strip(p)
			if err != nil {
				t.Fatal(err)
			}
			return stripped
		}
		waits, placed, deleted := one("", false), one(c.node, false), one(c.node, true)
		handler.OnAdd(waits, false)
		if got := index.Count(key); news != 1 || got.Lost != 0 {
			t.Errorf("without a node: %d times news, %+v", news, got)
		}
		handler.OnUpdate(waits, placed)
		if got := index.Count(key); news != 1+c.placed || got.Lost != c.lost || got.Pending != 1 || got.NotReady != 1 {
			t.Errorf("placed on a node that is %s: %d times news, %+v", c.node, news, got)
		}
		handler.OnUpdate(placed, deleted)
		if got := index.Count(key); news != 1+2*c.placed || got.Lost != 0 || got.Pending != 1 {
			t.Errorf("deleted on a node that is %s: %d times news, %+v", c.node, news, got)
		}
	}
}
