package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"

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
