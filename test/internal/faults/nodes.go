package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/test/internal/cluster"
)

// MinNodes is how many nodes a fault of one needs. With fewer, nobody can tell the end of a node
// from being cut off oneself.
const MinNodes = 3

// moveTime bounds how long pods take to start elsewhere.
const moveTime = 3 * time.Minute

// Nodes are the nodes of a cluster, and where new pods go.
type Nodes struct {
	*cluster.Cluster
	All []string
}

// NodesOf lists them.
func NodesOf(ctx context.Context, c *cluster.Cluster) (Nodes, error) {
	list, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return Nodes{}, fmt.Errorf("list the nodes: %w", err)
	}
	n := Nodes{Cluster: c}
	for _, node := range list.Items {
		n.All = append(n.All, node.Name)
	}
	return n, nil
}

// Several returns an error if there are too few.
func (n Nodes) Several() error {
	switch have := len(n.All); {
	case have < MinNodes:
		text := fmt.Sprintf("%d nodes", have)
		if have == 1 {
			text = "1 node"
		}
		return fmt.Errorf("this cluster has %s, and a fault of a node needs %d, so that two can agree on the third: run `make down` and `make up NODES=%d`", text, MinNodes, MinNodes)
	case n.OneProcess():
		return errors.New("the profile edge has one process for all components, so nobody is left when its node ends: run `make up NODES=3` without it")
	}
	return nil
}

// Room returns an error if a node is short of disk, or was in the last minutes: the kubelet then
// refuses and evicts pods, which is no fault of who is measured.
func (n Nodes) Room(ctx context.Context) error {
	list, err := n.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for _, node := range list.Items {
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeDiskPressure && c.Status == corev1.ConditionTrue {
				return fmt.Errorf("node %s has DiskPressure (%s), so its kubelet refuses and evicts pods: make room on the disk, and begin anew once it is over", node.Name, c.Message)
			}
		}
	}
	return nil
}

// Spare are the nodes that may end: all but the first, where Clear takes what there is one of.
func (n Nodes) Spare() []string { return n.All[min(1, len(n.All)):] }

// Named returns the node that `make node` calls name.
func (n Nodes) Named(name string) (string, error) {
	for _, node := range n.All {
		if name != "" && (node == name || strings.HasSuffix(node, "-"+name)) {
			return node, nil
		}
	}
	return "", fmt.Errorf("there is no node %q, only %s", name, strings.Join(n.All, ", "))
}

// But are the other nodes.
func (n Nodes) But(node string) []string {
	return slices.DeleteFunc(slices.Clone(n.All), func(other string) bool { return other == node })
}

// Only lets new pods go to these nodes.
func (n Nodes) Only(ctx context.Context, nodes ...string) error {
	for _, name := range n.All {
		if err := n.take(ctx, name, slices.Contains(nodes, name)); err != nil {
			return err
		}
	}
	return nil
}

// take says whether new pods go to a node.
func (n Nodes) take(ctx context.Context, node string, pods bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, !pods)
	if _, err := n.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("say whether node %s takes pods: %w", node, err)
	}
	return nil
}

// On lists the pods on a node, of one namespace or of all.
func (n Nodes) On(ctx context.Context, node, namespace, labels string) ([]corev1.Pod, error) {
	list, err := n.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %q on node %s: %w", namespace, node, err)
	}
	return list.Items, nil
}

// Clear moves the components, the gateways and what they need away from some nodes, which take new
// pods again after it. Activators stay where they are.
func (n Nodes) Clear(ctx context.Context, nodes ...string) error {
	return n.move(ctx, []string{n.Program("activator")}, nodes)
}

// ClearGateways moves the gateways and what they need, and no component.
func (n Nodes) ClearGateways(ctx context.Context, nodes ...string) error {
	return n.move(ctx, n.Programs, nodes)
}

// move moves what other programs than these run on some nodes.
func (n Nodes) move(ctx context.Context, but, nodes []string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	defer func() {
		mend, cancel := mending(ctx)
		defer cancel()
		err = errors.Join(err, n.Only(mend, n.All...))
	}()
	if err := n.Only(ctx, slices.DeleteFunc(slices.Clone(n.All), func(node string) bool { return slices.Contains(nodes, node) })...); err != nil {
		return err
	}
	namespaces := []string{cluster.System, "istio-system", "envoy-gateway-system", "kube-system"}
	for _, node := range nodes {
		for _, namespace := range namespaces {
			pods, err := n.On(ctx, node, namespace, "")
			if err != nil {
				return err
			}
			for _, pod := range pods {
				if stays(&pod) || pod.DeletionTimestamp != nil || namespace == cluster.System && slices.Contains(but, pod.Labels["app"]) {
					continue
				}
				if err := gone(n.Kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})); err != nil {
					return fmt.Errorf("move pod %s: %w", pod.Name, err)
				}
			}
		}
	}
	if err := cluster.Until(ctx, func() (bool, string, error) {
		deployments, err := n.Kube.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, d := range deployments.Items {
			if !slices.Contains(namespaces, d.Namespace) { // pods of services that sleep are not ready
				continue
			}
			pods, err := n.Kube.CoreV1().Pods(d.Namespace).List(ctx, metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
			if err != nil {
				return false, err.Error(), nil
			}
			if len(cluster.ReadyPods(pods.Items)) < int(ptr.Deref(d.Spec.Replicas, 1)) {
				return false, d.Name + " is not ready", nil
			}
		}
		return true, "", nil
	}); err != nil {
		return err
	}
	return n.AwaitComponents(ctx)
}

// stays reports whether a pod belongs to its node, or to nobody who would make another one.
func stays(pod *corev1.Pod) bool {
	owner := metav1.GetControllerOf(pod)
	return owner == nil || owner.Kind == "DaemonSet"
}
