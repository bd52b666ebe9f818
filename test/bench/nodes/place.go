package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
)

// places are the nodes, and the one that ends.
type places struct {
	faults.Nodes
	ends string
}

func place(ctx context.Context, c *cluster.Cluster, name string) (p places, err error) {
	if p.Nodes, err = faults.NodesOf(ctx, c); err != nil {
		return p, err
	}
	if err := p.Several(); err != nil {
		return p, err
	}
	p.ends, err = p.Named(name)
	return p, err
}

// stay are the other nodes.
func (p places) stay() []string { return p.But(p.ends) }

// on lists the pods of a namespace that are on the node that ends.
func (p places) on(ctx context.Context, namespace, labels string) ([]corev1.Pod, error) {
	return p.On(ctx, p.ends, namespace, labels)
}

// gather moves activators until they are on the node that ends and on the autoscaler's alone.
func (p places) gather(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	pods := p.Kube.CoreV1().Pods(cluster.System)
	list := func(app string) ([]corev1.Pod, error) {
		all, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return nil, fmt.Errorf("list the pods of %s: %w", app, err)
		}
		return all.Items, nil
	}
	autoscalers, err := list("autoscaler")
	if err != nil {
		return err
	}
	places := []string{p.ends}
	for _, pod := range autoscalers {
		if pod.DeletionTimestamp == nil {
			places = append(places, pod.Spec.NodeName)
		}
	}
	if len(places) != 2 || places[0] == places[1] {
		return fmt.Errorf("autoscalers are on %v, and -gather needs one on another node than %s", places[1:], p.ends)
	}
	if err := p.Only(ctx, places...); err != nil {
		return err
	}
	err = cluster.Until(ctx, func() (bool, string, error) {
		activators, err := list("activator")
		if err != nil {
			return false, err.Error(), nil
		}
		on := map[string]bool{}
		for _, pod := range activators {
			if pod.Spec.NodeName == "" {
				return false, pod.Name + " has no node", nil
			}
			if pod.DeletionTimestamp == nil && !slices.Contains(places, pod.Spec.NodeName) {
				return false, "activators are on other nodes", pods.Delete(ctx, pod.Name, metav1.DeleteOptions{})
			}
			on[pod.Spec.NodeName] = true
		}
		return len(on) == 2, fmt.Sprintf("activators are on %v", on), nil
	})
	return errors.Join(err, p.AwaitComponents(ctx), p.Only(ctx, p.All...))
}
