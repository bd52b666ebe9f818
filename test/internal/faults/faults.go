// Package faults breaks parts of the dev cluster in the ways that happen to real ones, and counts
// what requests see of it.
//
// Owns: the faults and their names. Reads: pods, objects, /proc. Writes: signals to processes of
// the cluster's pods, objects of the gateway, of the cluster's DNS and of the webhook's
// certificate; evictions, a ResourceQuota and a policy for the namespace under load,
// config-gateway; which nodes take new pods, and where components run. Never: signals a process
// outside of a pod: the dev cluster's own program, which knows what it started, does that.
package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
)

// Fault is one way to break the cluster. It needs the dev cluster, whose programs are processes of
// this machine. docs/faults.md has a row for each.
type Fault struct {
	Name string
	// Loses says what HTTP does not allow to keep, "" if no request may fail.
	Loses string
	// Refused says that the only pod on the path may be out of service meanwhile, so that any
	// number of requests is refused, besides those that are lost.
	Refused bool
	// Behind says that it may lose only requests that go through the activator.
	Behind bool
	// Node says that it is a fault of one of several nodes, Keeps that the node is alive all the
	// time, so nobody may call it lost.
	Node, Keeps bool
	// Do breaks something and mends it, at once if ctx ends.
	Do func(ctx context.Context) error
}

// Set is the faults of a cluster under load.
type Set struct {
	*cluster.Cluster
	// Namespace has the services under load.
	Namespace string
	// Longest bounds how long anything is broken. The faults that a cluster must stand for some
	// time last for 5 minutes or 90 s otherwise.
	Longest time.Duration
	// Nodes are needed by faults of nodes, which break one of Ends. Hit, if set, receives which.
	Nodes Nodes
	Ends  []string
	Hit   func(Hit)
	// Image is the test image autoscale, if it has another name.
	Image string
}

// gatewayProbe is longer than the period of the readiness probe of Istio's gateways.
const gatewayProbe = 20 * time.Second

// All returns every fault but those of one of several nodes.
func (s Set) All() []Fault {
	program := func(verb, name string, d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { return ctl(ctx, verb, name, min(d, s.Longest).String()) }
	}
	cut := "" // what is short is over before a client gives up
	if s.Longest > 10*time.Second {
		cut = "requests under way to those pods, if their client gives up before TCP sends them again"
	}
	list := []Fault{
		{Name: "API server away", Do: program("away", "kube-apiserver", 5*time.Minute)},
		{Name: "API server frozen", Do: program("freeze", "kube-apiserver", time.Minute)},
		{Name: "etcd restarted", Do: program("away", "etcd", 2*time.Second)},
		{Name: "kubelet restarted", Refused: true, Loses: "requests that the gateway's Service refuses: a kubelet that starts reports " +
			"pods with a startup probe as not ready until it has probed them", Do: func(ctx context.Context) error {
			if err := program("away", "kubelet", 5*time.Second)(ctx); err != nil {
				return err
			}
			return cluster.Pause(ctx, gatewayProbe)
		}},
		{Name: "containerd restarted", Do: program("away", "containerd", 2*time.Second)},
		{Name: "kube-proxy restarted", Do: program("away", "kube-proxy", 5*time.Second)},
		{Name: "DNS away", Do: s.dnsAway},
		{Name: "gateway replaced", Do: s.replaceGateway},
		{Name: "activator cut off from half of the pods", Loses: cut, Do: s.cutOff},
		{Name: "webhook certificate expired", Do: s.expireCertificate},
		{Name: "pods evicted", Do: s.evictPods},
		{Name: "quota full", Do: s.fillQuota},
		{Name: "updates refused", Do: s.refuseUpdates},
		{Name: "gateway setting wrong", Do: s.misplaceGateways},
	}
	const inHand = "the requests that the process has in hand"
	for _, program := range s.Programs {
		f, p := Fault{}, container{cluster.System, "app=" + program, program}
		switch program {
		case "activator":
			f = Fault{Behind: true, Loses: inHand}
		case cluster.Edge:
			f = Fault{Behind: true, Loses: inHand + ", and those that the gateway refuses until it runs again", Refused: true}
		}
		killed, frozen := f, f
		killed.Name, killed.Do = program+" killed", func(ctx context.Context) error { return s.kill(ctx, p) }
		frozen.Name, frozen.Do = program+" frozen", func(ctx context.Context) error { return s.freeze(ctx, p) }
		list = append(list, killed, frozen)
	}
	for _, name := range []string{"agent", "guard"} {
		p := container{cluster.System, "app=node-agent", name}
		list = append(list, Fault{Name: "node-" + name + " killed", Do: func(ctx context.Context) error { return s.kill(ctx, p) }},
			Fault{Name: "node-" + name + " frozen", Do: func(ctx context.Context) error { return s.freeze(ctx, p) }})
	}
	sidecar := container{s.Namespace, "serving.knative.dev/revision", "queue-proxy"}
	return append(list, Fault{Name: "queue-proxy killed", Loses: inHand, Do: func(ctx context.Context) error { return s.kill(ctx, sidecar) }},
		Fault{Name: "queue-proxy frozen", Loses: inHand, Do: func(ctx context.Context) error { return s.freeze(ctx, sidecar) }})
}

// Choose returns the named faults, separated by commas, all that any cluster can have, all of
// nodes, or those that are harmless: nothing may be replaced.
func (s Set) Choose(names string) ([]Fault, error) {
	all, nodes, harmless := s.All(), s.ofNodes(), s.harmless()
	switch names {
	case "all":
		return all, nil
	case "nodes":
		return nodes, s.Nodes.Several()
	case "harmless":
		return harmless, s.Nodes.Several()
	}
	list, out := slices.Concat(all, nodes, harmless), []Fault(nil)
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(list, func(f Fault) bool { return f.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no fault %q: want all, nodes, harmless, or some of %s", name, strings.Join(slices.Compact(slices.Sorted(slices.Values(Names(list)))), ", "))
		}
		if list[i].Node {
			if err := s.Nodes.Several(); err != nil {
				return nil, err
			}
		}
		out = append(out, list[i])
	}
	return out, nil
}

// Names returns the names of faults.
func Names(list []Fault) (names []string) {
	for _, f := range list {
		names = append(names, f.Name)
	}
	return names
}

// stale is how old the state of the node and of pods may be that the API server tells. A probe of
// a component fails after 2 s.
const stale = 3 * time.Second

// Recover waits until the API server answers, the node is ready and every component is.
func (s Set) Recover(ctx context.Context) error {
	if err := cluster.Pause(ctx, stale); err != nil {
		return err
	}
	return errors.Join(cluster.Until(ctx, func() (bool, string, error) {
		nodes, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, node := range nodes.Items {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return false, "node " + node.Name + ": " + c.Message, nil
				}
			}
		}
		return true, "", nil
	}), s.AwaitComponents(ctx))
}

// last waits for d, at most Longest, or until ctx ends.
func (s Set) last(ctx context.Context, d time.Duration) {
	_ = cluster.Pause(ctx, min(d, s.Longest))
}

// mending returns a context for the calls that mend the cluster, also after ctx has ended.
func mending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// kill kills the processes of a container in one pod, and returns when the kubelet has started the
// container again, or the pod has been deleted.
func (s Set) kill(ctx context.Context, c container) error {
	processes, err := s.processes(ctx, c)
	if err != nil {
		return err
	}
	one := processes.ofOnePod()
	if err := one.signal(syscall.SIGKILL); err != nil {
		return err
	}
	return cluster.Until(ctx, func() (bool, string, error) {
		pod, err := s.Kube.CoreV1().Pods(c.namespace).Get(ctx, one[0].pod, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
			return true, "", nil
		}
		if err != nil {
			return false, err.Error(), nil
		}
		id := running(pod, c.name)
		return id != "" && id != one[0].id, fmt.Sprintf("container %s of pod %s has not started again", c.name, pod.Name), nil
	})
}

// freeze stops the processes of one pod for a time. The kubelet may kill them meanwhile.
func (s Set) freeze(ctx context.Context, c container) error {
	processes, err := s.processes(ctx, c)
	if err != nil {
		return err
	}
	one := processes.ofOnePod()
	if err = one.signal(syscall.SIGSTOP); err == nil {
		s.last(ctx, 90*time.Second)
	}
	return errors.Join(err, one.signal(syscall.SIGCONT))
}
