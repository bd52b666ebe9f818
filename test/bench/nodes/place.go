package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
)

// places are the nodes, and where new pods go.
type places struct {
	*cluster.Cluster
	ends string // the node that will have no power
	all  []string
}

func place(ctx context.Context, c *cluster.Cluster, name string) (places, error) {
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return places{}, err
	}
	p := places{Cluster: c}
	for _, n := range nodes.Items {
		p.all = append(p.all, n.Name)
		if strings.HasSuffix(n.Name, "-"+name) {
			p.ends = n.Name
		}
	}
	if p.ends == "" || len(p.all) < 3 {
		return places{}, fmt.Errorf("there are the nodes %v, none called %s beside two others: run `make up NODES=3`", p.all, name)
	}
	return p, nil
}

// stay are the other nodes.
func (p places) stay() []string {
	return slices.DeleteFunc(slices.Clone(p.all), func(n string) bool { return n == p.ends })
}

// only lets new pods go to these nodes.
func (p places) only(ctx context.Context, nodes ...string) error {
	for _, name := range p.all {
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, !slices.Contains(nodes, name))
		if _, err := p.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("say whether node %s takes pods: %w", name, err)
		}
	}
	return nil
}

// on lists the pods of a namespace that are on the node.
func (p places) on(ctx context.Context, namespace, labels string) ([]corev1.Pod, error) {
	list, err := p.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: labels, FieldSelector: "spec.nodeName=" + p.ends})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s on node %s: %w", namespace, p.ends, err)
	}
	return list.Items, nil
}

// clear moves the components, the gateways and what they need away from the node.
func (p places) clear(ctx context.Context) error {
	if err := p.only(ctx, p.stay()...); err != nil {
		return err
	}
	for _, namespace := range []string{cluster.System, "istio-system", "kube-system"} {
		pods, err := p.on(ctx, namespace, "")
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if owner := metav1.GetControllerOf(&pod); owner == nil || owner.Kind == "DaemonSet" {
				continue
			}
			if err := p.Kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
				return fmt.Errorf("move pod %s: %w", pod.Name, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if err := cluster.Until(ctx, func() (bool, string, error) {
		deployments, err := p.Kube.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, d := range deployments.Items {
			if d.Status.ReadyReplicas < d.Status.Replicas {
				return false, d.Name + " is not ready", nil
			}
		}
		return true, "", nil
	}); err != nil {
		return err
	}
	if err := p.AwaitComponents(ctx); err != nil {
		return err
	}
	return p.only(ctx, p.all...)
}
