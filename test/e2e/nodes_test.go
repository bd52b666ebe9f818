//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/wire"
)

// beginOnNodes is beginAlone for a test that needs several nodes. On fewer it is skipped.
func beginOnNodes(t *testing.T, limit time.Duration) (*story, faults.Nodes) {
	t.Helper()
	s := beginAlone(t, limit)
	nodes, err := faults.NodesOf(s.ctx, s.Cluster)
	if err != nil {
		t.Fatal(err)
	}
	if err := nodes.Several(); err != nil {
		t.Skip(err)
	}
	return s, nodes
}

// ends cuts the power of a node until the test ends.
func (s *story) ends(nodes faults.Nodes, node string) {
	s.Helper()
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		if err := faults.Node(ctx, node, "back"); err != nil {
			s.Error(err)
		}
		if err := (faults.Set{Cluster: s.Cluster, Namespace: s.namespace, Nodes: nodes}).Recover(ctx); err != nil {
			s.Error(err)
		}
	})
	if err := faults.Node(s.ctx, node, "off"); err != nil {
		s.Fatal(err)
	}
}

// placed lets new pods go to some nodes only, until the test ends.
func (s *story) placed(nodes faults.Nodes, only ...string) {
	s.Helper()
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := nodes.Only(ctx, nodes.All...); err != nil {
			s.Error(err)
		}
	})
	if err := nodes.Only(s.ctx, only...); err != nil {
		s.Fatal(err)
	}
}

// awaitReadyPods waits until a Service has so many Ready pods on nodes that are not this one.
func (s *story) awaitReadyPods(name, but string, n int) {
	s.Helper()
	s.until(fmt.Sprintf("%d pods of %s are ready", n, name), func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, name, false)
		if err != nil {
			return false, err.Error(), nil
		}
		ready := 0
		for _, pod := range cluster.ReadyPods(pods) {
			if pod.Spec.NodeName != but {
				ready++
			}
		}
		return ready >= n, fmt.Sprintf("%d pods", ready), nil
	})
}

// awaitSomeAsleep waits until one pod of a Service is awake and all others sleep. How many these
// are is open: an autoscaler that was drained itself begins with the pods that it finds, and some
// of them were just being replaced.
func (s *story) awaitSomeAsleep(name string) {
	s.Helper()
	s.until("one pod of "+name+" is awake, and the others sleep", func() (bool, string, error) {
		asleep, awake, err := s.asleep(name)
		if err != nil {
			return false, err.Error(), nil
		}
		pods, err := s.Pods(s.ctx, s.namespace, name, true)
		if err != nil {
			return false, err.Error(), nil
		}
		return asleep > 0 && awake == 1 && asleep+1 == int64(len(pods)), fmt.Sprintf("%d asleep, %d awake, %d pods", asleep, awake, len(pods)), nil
	})
}

// "We patch our machines: each node is drained in turn." Services with the activators in the path
// and without them, and one with pods that sleep, lose no request, and no node is called lost. The
// gateways are not Ebb's: they are moved before.
func TestNodesAreDrainedOneAfterAnotherUnderLoadWithNoFailedRequest(t *testing.T) {
	s, nodes := beginOnNodes(t, 20*time.Minute)
	s.scaleActivators(int32(len(nodes.All)))
	const pods = 3
	urls := map[string]string{}
	for name, capacity := range map[string]string{"direct": "0", "behind": "-1"} {
		urls[name] = s.ready(name, service{name: name, annotations: map[string]string{"autoscaling.knative.dev/min-scale": strconv.Itoa(pods),
			"autoscaling.knative.dev/target-burst-capacity": capacity}}.manifest())
	}
	s.awaitMode("direct", "Serve")
	s.awaitMode("behind", "Proxy")
	const sleepers = 3
	urls["napping"] = s.ready("napping", service{name: "napping", concurrency: 1, annotations: map[string]string{
		"autoscaling.ebb.dev/standby": strconv.Itoa(sleepers), "autoscaling.knative.dev/min-scale": "1",
		"autoscaling.knative.dev/initial-scale": strconv.Itoa(sleepers + 1), "autoscaling.knative.dev/max-scale": strconv.Itoa(sleepers + 1)}}.manifest())
	asleep := 0
	for _, node := range nodes.All {
		if err := nodes.ClearGateways(s.ctx, node); err != nil {
			t.Fatal(err)
		}
		for _, url := range urls {
			if err := s.AwaitAnswer(s.ctx, url); err != nil {
				t.Fatal(err)
			}
		}
		s.awaitSomeAsleep("napping")
		there, err := nodes.On(s.ctx, node, s.namespace, "serving.knative.dev/revision")
		if err != nil {
			t.Fatal(err)
		}
		napping := 0
		for _, pod := range there {
			if pod.Labels["serving.knative.dev/service"] == "napping" {
				napping++
			}
		}
		asleep += max(0, napping-1) // one of all is awake
		replaced, err := faults.Set{Cluster: s.Cluster, Namespace: s.namespace}.Replacing(s.ctx)
		if err != nil {
			t.Fatal(err)
		}
		probers := map[string]*probe.Prober{}
		for name, url := range urls {
			interval := 50 * time.Millisecond
			if name == "napping" {
				interval = 500 * time.Millisecond // one pod is enough
			}
			probers[name] = probe.StartOnce(s.client(), url, interval, 500, 1<<10)
		}
		began := time.Now()
		if err := nodes.Drain(s.ctx, node); err != nil {
			t.Fatal(err)
		}
		drained := time.Since(began)
		for _, name := range []string{"direct", "behind"} {
			s.awaitReadyPods(name, "", pods)
		}
		if err := s.AwaitComponents(s.ctx); err != nil {
			t.Fatal(err)
		}
		for name, prober := range probers {
			least := 100
			if name == "napping" {
				least = 10
			}
			if err := prober.StopAfter(s.ctx, least).Err(least); err != nil {
				t.Errorf("%s, while node %s was drained: %v", name, node, err)
			}
		}
		r, err := replaced()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("node %s was drained of %d pods of services, %d of them of the one that sleeps, in %.0f s; %d pods are new", node, len(there), napping, drained.Seconds(), r.Pods)
		if r.Lost > 0 {
			t.Errorf("node %s was called lost", node)
		}
		if len(there) == 0 {
			t.Errorf("node %s had no pod of a service", node)
		}
	}
	if asleep == 0 {
		t.Error("no pod was drained that certainly slept")
	}
	s.awaitSomeAsleep("napping")
	for _, failed := range probe.Failed(probe.Burst(s.ctx, s.client(), urls["napping"]+"?sleep=2000", sleepers+1)) {
		t.Error("after all drains: ", failed)
	}
}

// A hundred requests wait for a cold start in each activator, and the power of a node with one is
// cut. Its hundred are lost, those of activators elsewhere are answered, and a service without
// activators in the path loses none. The node has no pod of a service, and gateways leave out its
// activator before Kubernetes notices.
func TestOnlyTheRequestsInTheActivatorOfADeadNodeAreLost(t *testing.T) {
	s, nodes := beginOnNodes(t, 10*time.Minute)
	s.scaleActivators(int32(len(nodes.All)))
	activators, err := s.Kube.CoreV1().Pods(cluster.System).List(s.ctx, metav1.ListOptions{LabelSelector: "app=activator"})
	if err != nil {
		t.Fatal(err)
	}
	running := slices.DeleteFunc(activators.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	at := slices.IndexFunc(running, func(p corev1.Pod) bool { return slices.Contains(nodes.Spare(), p.Spec.NodeName) })
	if at < 0 {
		t.Fatalf("no activator is on any of the nodes %v", nodes.Spare())
	}
	dies := running[at].Spec.NodeName
	if err := nodes.Clear(s.ctx, dies); err != nil {
		t.Fatal(err)
	}
	s.placed(nodes, nodes.But(dies)...)
	beside := s.ready("beside", service{name: "beside", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "2",
		"autoscaling.knative.dev/target-burst-capacity": "0"}}.manifest())
	s.awaitMode("beside", "Serve")
	// Long enough to cut the power meanwhile.
	url := s.readyAtZero("waits", service{name: "waits", revision: "waits-1", env: map[string]string{"START_DELAY_MS": "20000"}}.manifest())
	const each = 100
	replies := map[bool][]probe.Reply{} // by whether the node dies
	var mutex sync.Mutex
	var waiting sync.WaitGroup
	on := map[bool]int{}
	for _, activator := range running {
		there := activator.Spec.NodeName == dies
		on[there]++
		client := s.ClientOf(net.JoinHostPort(activator.Status.PodIP, strconv.Itoa(wire.PortHTTP1)), 90*time.Second)
		t.Cleanup(client.CloseIdleConnections)
		for range each {
			waiting.Go(func() {
				request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, url, nil)
				if err != nil {
					t.Error(err)
					return
				}
				request.Header.Set(wire.HeaderNamespace, s.namespace)
				request.Header.Set(wire.HeaderRevision, "waits-1")
				reply := probe.Do(client, request)
				mutex.Lock()
				defer mutex.Unlock()
				replies[there] = append(replies[there], reply)
			})
		}
	}
	prober := probe.StartOnce(s.client(), beside, 25*time.Millisecond, 500, 1<<10)
	s.awaitScale("the requests wait for a pod", "waits-1-deployment", 1)
	s.ends(nodes, dies)
	s.until("the node is called silent, although there is only an activator, and gateways leave that out", func() (bool, string, error) {
		lease, err := s.Kube.CoordinationV1().Leases(cluster.System).Get(s.ctx, wire.SilentNodes, metav1.GetOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		if all := lease.Annotations[wire.SilentNodesAnnotation]; !slices.Contains(wire.DecodeSilentNodes(all), dies) {
			return false, "silent: " + all, nil
		}
		lists, err := s.Kube.DiscoveryV1().EndpointSlices(s.namespace).List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, list := range lists.Items {
			for _, e := range list.Endpoints {
				if e.NodeName != nil && *e.NodeName == dies {
					return false, list.Name + " lists an activator there", nil
				}
			}
		}
		return true, "", nil
	})
	if node, err := s.Kube.CoreV1().Nodes().Get(s.ctx, dies, metav1.GetOptions{}); err != nil || !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		t.Errorf("Kubernetes was sooner: %v", err)
	}
	waiting.Wait()
	if lost := len(probe.Failed(replies[true])); len(replies[true]) != on[true]*each || lost != len(replies[true]) {
		t.Errorf("%d of %d requests in the activator on node %s were lost, want all of %d: did they wait?", lost, len(replies[true]), dies, on[true]*each)
	}
	failed := probe.Failed(replies[false])
	if on[false] == 0 || len(replies[false]) != on[false]*each || len(failed) > 0 {
		t.Errorf("%d of %d requests in %d other activators were lost", len(failed), len(replies[false]), on[false])
	}
	for _, reply := range failed[:min(5, len(failed))] {
		t.Error(reply)
	}
	if err := prober.StopAfter(s.ctx, 400).Err(400); err != nil {
		t.Errorf("beside the activators: %v", err)
	}
	// The clients of the lost ones have waited long enough for the others to know of the node.
	for _, reply := range probe.Failed(probe.Burst(s.ctx, s.client(), url, 50)) {
		t.Error("a new request: ", reply)
	}
}

// The node with one of two pods dies, and no other node has room for a third. What runs answers all
// requests, and the pod that waits says what it lacks.
func TestANodeDiesAndTheOthersAreFull(t *testing.T) {
	s, nodes := beginOnNodes(t, 10*time.Minute)
	spare := nodes.Spare()
	dies, full := spare[len(spare)-1], spare[0]
	if err := nodes.Clear(s.ctx, dies); err != nil {
		t.Fatal(err)
	}
	s.scaleActivators(int32(len(nodes.All)))
	s.slotsOn(dies, 1)
	s.slotsOn(full, 1)
	url := s.ready("tight", service{name: "tight", annotations: map[string]string{"autoscaling.knative.dev/min-scale": "2",
		"autoscaling.knative.dev/max-scale": "2"}}.manifest()+fmt.Sprintf("        resources:\n          limits:\n            %s: 1\n", slot))
	s.awaitReadyPods("tight", dies, 1)
	s.awaitReadyPods("tight", full, 1)
	s.ends(nodes, dies)
	s.awaitScale("a pod is to take the place of the lost one", "tight-00001-deployment", 3)
	prober := probe.StartOnce(s.client(), url, 25*time.Millisecond, 500, 1<<10)
	s.until("the pod without room says what it lacks", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "tight", false)
		if err != nil {
			return false, err.Error(), nil
		}
		seen := ""
		for _, pod := range pods {
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
					seen = c.Message
				}
			}
		}
		return strings.Contains(seen, "Insufficient "+slot), seen, nil
	})
	if err := prober.StopAfter(s.ctx, 400).Err(400); err != nil {
		t.Errorf("with one pod of two: %v", err)
	}
	if object, err := s.Get(s.ctx, services, s.namespace, "tight"); err != nil || !isReady(object) {
		t.Errorf("the Service with a pod that serves is not Ready: %s, %v", describe(object), err)
	}
}
