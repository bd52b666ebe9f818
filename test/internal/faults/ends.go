package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
)

const (
	// nodeTime is how long a fault of a node lasts. After 40 s Kubernetes calls a node not ready
	// that its control plane does not hear.
	nodeTime = time.Minute
	// backTime bounds how long a node takes to come back.
	backTime = 3 * time.Minute
	// drainTime bounds how long the pods of a node take to go: an activator has ten minutes.
	drainTime = 11 * time.Minute
)

// Hit is what a fault of a node hit: how many pods of services and of activators were there.
type Hit struct {
	Node             string
	Pods, Activators int
}

// ofNodes returns the faults of one of several nodes.
func (s Set) ofNodes() []Fault {
	const led = "requests under way there, and those that are led there until the node is called silent, about 3 s"
	ctlNode := func(do ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			return s.hit(ctx, func(node string) error { return s.breakNode(ctx, node, do...) })
		}
	}
	return []Fault{
		{Name: "node power cut", Node: true, Loses: led, Do: ctlNode("off")},
		{Name: "node cut off from the control plane", Node: true, Keeps: true, Do: ctlNode("cut", "control")},
		{Name: "node cut off from the other nodes", Node: true, Loses: led, Do: ctlNode("cut", "nodes")},
		{Name: "node frozen", Node: true, Keeps: true, Loses: "requests that are led there, if their client gives up before the node goes on", Do: ctlNode("freeze")},
		{Name: "node drained", Node: true, Keeps: true, Do: func(ctx context.Context) error {
			return s.hit(ctx, func(node string) error { return errors.Join(s.Nodes.Drain(ctx, node), s.settled(ctx)) })
		}},
	}
}

// breakNode does something to a node for a time, and mends it, also if ctx ends.
func (s Set) breakNode(ctx context.Context, node string, do ...string) error {
	err := Node(ctx, node, do...)
	if err == nil {
		s.last(ctx, nodeTime)
	}
	mend, cancel := context.WithTimeout(context.WithoutCancel(ctx), backTime)
	defer cancel()
	return errors.Join(err, Node(mend, node, "back"))
}

// hit chooses a node, remembers what is there, and has something done to it.
func (s Set) hit(ctx context.Context, do func(node string) error) error {
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision"})
	if err != nil {
		return fmt.Errorf("choose a node: %w", err)
	}
	hit := busiest(pods.Items, s.Ends)
	activators, err := s.Nodes.On(ctx, hit.Node, cluster.System, "app="+s.Program("activator"))
	if err != nil {
		return err
	}
	hit.Activators = len(activators)
	if s.Hit != nil {
		s.Hit(hit)
	}
	return do(hit.Node)
}

// busiest is the node with most of the pods. A node that was drained has none for a while.
func busiest(pods []corev1.Pod, nodes []string) (hit Hit) {
	for _, node := range nodes {
		n := 0
		for _, pod := range pods {
			if pod.Spec.NodeName == node && pod.DeletionTimestamp == nil {
				n++
			}
		}
		if hit.Node == "" || n > hit.Pods {
			hit = Hit{Node: node, Pods: n}
		}
	}
	return hit
}

// Drain moves all pods away from a node, as kubectl drain does. The node then takes pods again.
func (n Nodes) Drain(ctx context.Context, node string) (err error) {
	defer func() {
		mend, cancel := mending(ctx)
		defer cancel()
		err = errors.Join(err, n.take(mend, node, true))
	}()
	if err := n.take(ctx, node, false); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	return cluster.Until(ctx, func() (bool, string, error) {
		pods, err := n.On(ctx, node, metav1.NamespaceAll, "")
		if err != nil {
			return false, err.Error(), nil
		}
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return stays(&p) })
		left := ""
		for _, pod := range pods {
			left = "pod " + pod.Namespace + "/" + pod.Name + " is on node " + node
			if pod.DeletionTimestamp != nil {
				continue
			}
			eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
			switch err := n.Kube.PolicyV1().Evictions(pod.Namespace).Evict(ctx, eviction); {
			case err == nil, apierrors.IsNotFound(err):
			case apierrors.IsTooManyRequests(err): // a budget lets it go later
				left += ": " + err.Error()
			default:
				return false, "", fmt.Errorf("evict pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
		return len(pods) == 0, left, nil
	})
}
