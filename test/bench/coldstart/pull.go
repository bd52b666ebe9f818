package main

import (
	"context"
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/registry"
	"ebb.dev/ebb/test/internal/result"
)

// pulls measures n times the first cold start of a service whose image the node does not have, and
// the second, when it has it. The registry is on the same machine, so what a network takes comes on
// top.
func pulls(ctx context.Context, c *cluster.Cluster, namespace string, n, mib int, out *result.Printer) error {
	images := registry.Start(0)
	defer images.Close()
	var pulled, there []float64
	for run := range n {
		image, err := images.Push(ctx, "samples/hello-go", mib<<20)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("pull-%d", run+1)
		url, err := c.ApplyFunction(ctx, namespace, cluster.Function{Name: name, Image: image, Annotations: map[string]string{
			"autoscaling.knative.dev/initial-scale": "0", "autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/max-scale": "1"}})
		if err != nil {
			return err
		}
		for _, all := range []*[]float64{&pulled, &there} {
			took, err := first(ctx, c, namespace, name, url)
			if err != nil {
				return fmt.Errorf("cold start %d of %s: %w", run+1, name, err)
			}
			*all = append(*all, result.Milliseconds(took))
			if err := out.Line(result.Fields{"run": run + 1, "pulled": all == &pulled, "total_ms": result.Milliseconds(took)}); err != nil {
				return err
			}
		}
	}
	return out.Summary(result.Fields{"runs": n, "mib": mib, "pulled_median_ms": result.Median(pulled), "pulled_slowest_ms": result.Quantile(pulled, 1),
		"there_median_ms": result.Median(there), "there_slowest_ms": result.Quantile(there, 1)})
}

// first waits until a service has no pod, and returns how long its next request takes.
func first(ctx context.Context, c *cluster.Cluster, namespace, name, url string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	if err := rest(ctx, c, namespace, name); err != nil {
		return 0, err
	}
	client := c.Client(2 * time.Minute)
	defer client.CloseIdleConnections()
	reply := probe.Get(ctx, client, url)
	if !reply.OK() {
		return 0, fmt.Errorf("the request failed: %s", reply)
	}
	return reply.Took, nil
}
