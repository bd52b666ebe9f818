package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

const (
	// switchRate is how many requests come in a second while hosts change between rest and
	// HTTPRoutes of their own.
	switchRate = 200
	// settled is how long a service is not served past the activators before it may rest: the
	// controller's time, and some.
	settled = 5*time.Minute + 20*time.Second
	resting = "networking.ebb.dev/resting"
)

// switchOver has a service get HTTPRoutes of its own and lose them, again and again, while requests
// come, and counts those that are not answered with success.
func (b *bench) switchOver(ctx context.Context) error {
	const name = "switching"
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{
			// With this the autoscaler keeps the activators in the path, so nothing but
			// the annotation counts.
			"metadata": map[string]any{"annotations": map[string]any{"autoscaling.knative.dev/target-burst-capacity": "-1", "autoscaling.knative.dev/min-scale": "1"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"image": b.image}}},
		}},
	}}
	if _, err := b.Dynamic.Resource(cluster.Services).Namespace(b.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("apply Service %s: %w", name, err)
	}
	url, err := b.AwaitReady(ctx, b.Namespace, name)
	if err != nil {
		return err
	}
	if err := cluster.Pause(ctx, settled); err != nil {
		return err
	}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	counts := make(chan result.Fields, 1)
	go func() { counts <- b.askAtRate(loading, url) }()
	var seconds [2][]float64
	for i := range b.switches {
		began := time.Now()
		own := i%2 == 0
		if err := b.switchTo(ctx, name, own); err != nil {
			return err
		}
		seconds[i%2] = append(seconds[i%2], time.Since(began).Seconds())
		if err := cluster.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	stop()
	fields := <-counts
	fields["switches"], fields["to_own_p50_s"] = b.switches, result.Median(seconds[0])
	if len(seconds[1]) > 0 {
		fields["to_rest_p50_s"] = result.Median(seconds[1])
	}
	b.summary["switch_lost"] = fields["lost"]
	return b.out.Line(fields)
}

// switchTo sets the annotation and waits until the hosts are as it says.
func (b *bench) switchTo(ctx context.Context, name string, own bool) error {
	value := "enabled"
	if own {
		value = "disabled"
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{resting: value}}})
	if err != nil {
		return err
	}
	if _, err := b.Dynamic.Resource(cluster.Services).Namespace(b.Namespace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("set the annotation of Service %s: %w", name, err)
	}
	return b.await(ctx, 2*time.Minute, func() (bool, string, error) {
		list, err := b.Dynamic.Resource(cluster.HTTPRoutes).Namespace(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/route=" + name})
		if err != nil {
			return false, err.Error(), nil
		}
		route, err := b.Get(ctx, cluster.Routes, b.Namespace, name)
		if err != nil {
			return false, err.Error(), nil
		}
		plan, _, _ := unstructured.NestedString(route.Object, "status", "annotations", "networking.ebb.dev/plan")
		bridges, err := b.Dynamic.Resource(cluster.HTTPRoutes).Namespace(cluster.System).List(ctx, metav1.ListOptions{LabelSelector: "networking.ebb.dev/bridge=" + string(route.GetUID())})
		if err != nil {
			return false, err.Error(), nil
		}
		seen := fmt.Sprintf("%d HTTPRoutes and %d bridges, wanted own: %v", len(list.Items), len(bridges.Items), own)
		if own {
			return len(list.Items) == 2 && len(bridges.Items) == 0 && plan == "", seen, nil
		}
		return len(list.Items)+len(bridges.Items) == 0, seen, nil
	})
}

// askAtRate sends requests at a rate until ctx ends, and counts them.
func (b *bench) askAtRate(ctx context.Context, url string) result.Fields {
	client := b.Client(time.Minute)
	defer client.CloseIdleConnections()
	var sent, lost atomic.Int64
	var first atomic.Pointer[string]
	var all sync.WaitGroup
	ticker := time.NewTicker(time.Second / switchRate)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-ticker.C:
		}
		all.Go(func() {
			sent.Add(1)
			// A request outlives the load, so that none is lost by its end.
			if reply := probe.Get(context.WithoutCancel(ctx), client, url); !reply.OK() {
				lost.Add(1)
				what := reply.String()
				first.CompareAndSwap(nil, &what)
			}
		})
	}
	all.Wait()
	fields := result.Fields{"requests": sent.Load(), "lost": lost.Load()}
	if what := first.Load(); what != nil {
		fields["first_lost"] = *what
	}
	return fields
}
