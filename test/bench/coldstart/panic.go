package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

const (
	panicName = "burst"
	// burst is how many requests arrive at once. Each occupies the only pod for a tenth of a
	// second.
	burst     = 20
	burstPath = "?sleep=100"
)

// burster applies a service with one to three pods that handle one request at a time. Half a minute
// after a burst it is back at one pod.
func burster(ctx context.Context, c *cluster.Cluster, namespace, image string) (url string, err error) {
	return c.ApplyFunction(ctx, namespace, cluster.Function{Name: panicName, Image: image, Spec: cluster.Object{"containerConcurrency": 1},
		Annotations: map[string]string{"autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "3"}})
}

// panicked returns the time from the second request of a burst, the first that is queued, until the
// watch shows more replicas in the Deployment.
func panicked(ctx context.Context, c *cluster.Cluster, namespace, url string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	// Wait until the pods of the previous burst are deleted.
	err := cluster.Until(ctx, func() (bool, string, error) {
		pods, err := c.Pods(ctx, namespace, panicName, true)
		if err != nil {
			return false, err.Error(), nil
		}
		return len(pods) == 1, fmt.Sprintf("%d pods", len(pods)), nil
	})
	if err != nil {
		return 0, fmt.Errorf("wait for the service to be back at one pod: %w", err)
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(2 * time.Second):
	}
	watched, err := watchScale(ctx, c, namespace, panicName, 1)
	if err != nil {
		return 0, err
	}
	client := c.Client(2 * time.Minute)
	defer client.CloseIdleConnections()
	replies := probe.Burst(ctx, client, url+burstPath, burst)
	written, _ := watched()
	if failed := probe.Failed(replies); len(failed) > 0 {
		return 0, fmt.Errorf("%d of %d requests failed, such as: %s", len(failed), len(replies), failed[0])
	}
	if written.IsZero() {
		return 0, errors.New("the burst was answered without a scale-up")
	}
	slices.SortFunc(replies, func(a, b probe.Reply) int { return a.Sent.Compare(b.Sent) })
	return written.Sub(replies[1].Sent), nil
}

// panics measures the given number of bursts, one after another.
func panics(ctx context.Context, c *cluster.Cluster, namespace, image string, n int, out *result.Printer) ([]float64, error) {
	url, err := burster(ctx, c, namespace, image)
	if err != nil {
		return nil, err
	}
	var all []float64
	for i := range n {
		took, err := panicked(ctx, c, namespace, url)
		if err != nil {
			return nil, fmt.Errorf("burst %d: %w", i+1, err)
		}
		all = append(all, result.Milliseconds(took))
		if err := out.Line(result.Fields{"burst": i + 1, "scale_written_panic_ms": all[i]}); err != nil {
			return nil, err
		}
	}
	return all, nil
}
