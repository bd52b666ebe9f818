package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/test/internal/audit"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

type bench struct {
	*trial.Place
	out              *result.Printer
	at               []int
	image            string
	more, once, cold int
	switches         int

	audit   *audit.Log
	domain  string
	hash    string // of the first service's plan
	copies  int    // made so far
	added   int    // by Ebb itself
	base    map[string]float64
	baseAt  int
	summary result.Fields
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.audit, err = audit.Open(); err != nil {
		return err
	}
	b.summary = result.Fields{}
	if b.switches > 0 {
		if err := b.switchOver(ctx); err != nil {
			return err
		}
	}
	if err := b.makeFirst(ctx); err != nil {
		return err
	}
	for i, n := range b.at {
		if err := b.beside(ctx, n, i == 0, i == len(b.at)-1); err != nil {
			return fmt.Errorf("beside %d: %w", n, err)
		}
	}
	return b.out.Summary(b.summary)
}

// makeFirst makes the service that is copied, and those that will be started.
func (b *bench) makeFirst(ctx context.Context) error {
	if _, err := b.add(ctx, copyName(0)); err != nil {
		return err
	}
	url, err := b.AwaitReady(ctx, b.Namespace, copyName(0))
	if err != nil {
		return err
	}
	_, b.domain, _ = strings.Cut(url, "."+b.Namespace+".")
	b.copies = 1
	for i := range b.cold {
		if _, err := b.add(ctx, coldName(i)); err != nil {
			return err
		}
	}
	_, err = b.quiet(ctx)
	return err
}

// beside measures with n services.
func (b *bench) beside(ctx context.Context, n int, first, last bool) error {
	began := time.Now()
	if err := b.copyUntil(ctx, n-b.cold-b.added); err != nil {
		return err
	}
	made := time.Since(began)
	written, err := b.quiet(ctx)
	if err != nil {
		return err
	}
	if err := b.out.Line(result.Fields{"n": n, "made_s": made.Seconds(), "quiet_s": time.Since(began).Seconds(), "copies_written": written}); err != nil {
		return err
	}
	if err := b.memory(ctx, n); err != nil {
		return err
	}
	if first {
		if err := b.countObjects(ctx, n); err != nil {
			return err
		}
		if err := b.startCold(ctx); err != nil {
			return err
		}
	}
	if err := b.addOneByOne(ctx, n); err != nil {
		return err
	}
	if first {
		if err := b.addAtOnce(ctx); err != nil {
			return err
		}
	}
	if last {
		return b.restarts(ctx)
	}
	return nil
}

// addOneByOne adds services, each when the one before is Ready.
func (b *bench) addOneByOne(ctx context.Context, n int) error {
	var seconds []float64
	for range b.more {
		s, err := b.add(ctx, b.nextName())
		if err != nil {
			return err
		}
		seconds = append(seconds, s)
	}
	written, err := b.quiet(ctx)
	if err != nil {
		return err
	}
	b.summary[fmt.Sprintf("one_more_ready_p50_s_%d", n)] = result.Median(seconds)
	b.summary[fmt.Sprintf("one_more_ready_max_s_%d", n)] = slices.Max(seconds)
	b.summary[fmt.Sprintf("api_writes_per_service_%d", n)] = float64(written) / float64(b.more)
	return b.out.Line(result.Fields{"n": n, "one_more_ready_s": seconds, "writes": written})
}

// addAtOnce adds many services at once.
func (b *bench) addAtOnce(ctx context.Context) error {
	began := time.Now()
	for range b.once {
		if err := b.create(ctx, b.nextName()); err != nil {
			return err
		}
	}
	err := b.await(ctx, 10*time.Minute, func() (bool, string, error) {
		ready, err := b.countReady(ctx)
		return ready == b.added, fmt.Sprintf("%d of %d services are Ready", ready, b.added), err
	})
	if err != nil {
		return err
	}
	b.summary["ready_per_s"] = float64(b.once) / time.Since(began).Seconds()
	_, err = b.quiet(ctx)
	return err
}

func (b *bench) countReady(ctx context.Context) (n int, err error) {
	list, err := b.Dynamic.Resource(cluster.Services).Namespace(b.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "added=true"})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		if cluster.IsReady(&list.Items[i]) {
			n++
		}
	}
	return n, nil
}

// All names have the same length, so that a text that has one can be copied.
func copyName(i int) string { return fmt.Sprintf("copy-%05d", i) }
func coldName(i int) string { return fmt.Sprintf("cold-%05d", i) }

func (b *bench) nextName() string {
	b.added++
	return fmt.Sprintf("more-%05d", b.added)
}

// add applies a service and returns the seconds until it is Ready.
func (b *bench) add(ctx context.Context, name string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	began := time.Now()
	if err := b.create(ctx, name); err != nil {
		return 0, err
	}
	_, err := b.AwaitReady(ctx, b.Namespace, name)
	return time.Since(began).Seconds(), err
}

func (b *bench) create(ctx context.Context, name string) error {
	labels := map[string]any{}
	if strings.HasPrefix(name, "more-") {
		labels["added"] = "true"
	}
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": map[string]any{"name": name, "labels": labels},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{
				"autoscaling.knative.dev/initial-scale": "0", "autoscaling.knative.dev/window": "6s"}},
			"spec": map[string]any{"containers": []any{map[string]any{"image": b.image}}},
		}},
	}}
	if _, err := b.Dynamic.Resource(cluster.Services).Namespace(b.Namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("apply Service %s: %w", name, err)
	}
	return nil
}

// quietFor is how long nothing may be written before a state is taken for the last one.
const quietFor = 5 * time.Second

// quiet waits until Ebb writes nothing, and returns how much it has written since the last call.
func (b *bench) quiet(ctx context.Context) (writes int, err error) {
	since := time.Now()
	return writes, b.await(ctx, 30*time.Minute, func() (bool, string, error) {
		counts, err := b.audit.Writes(b.Namespace)
		for what, n := range counts {
			if writes += n; !strings.Contains(what, " events ") {
				since = time.Now()
			}
		}
		return time.Since(since) > quietFor, fmt.Sprintf("Ebb still writes: %v", slices.Sorted(maps.Keys(counts))), err
	})
}

func (b *bench) await(ctx context.Context, atMost time.Duration, look func() (bool, string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	return cluster.Until(ctx, look)
}

// resources returns those that can be in a namespace and are of Ebb or of what it makes.
func (b *bench) resources() ([]schema.GroupVersionResource, error) {
	lists, err := b.Kube.Discovery().ServerPreferredNamespacedResources()
	if err != nil {
		return nil, fmt.Errorf("read which resources there are: %w", err)
	}
	var found []schema.GroupVersionResource
	for _, list := range lists {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil || group.Group == "metrics.k8s.io" || group.Group == "events.k8s.io" {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "create") && r.Name != "events" {
				found = append(found, group.WithResource(r.Name))
			}
		}
	}
	return found, nil
}

// countObjects counts the objects of a resting service, in all resources.
func (b *bench) countObjects(ctx context.Context, n int) error {
	resources, err := b.resources()
	if err != nil {
		return err
	}
	sum := 0
	for _, resource := range resources {
		list, err := b.Dynamic.Resource(resource).Namespace(b.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		if len(list.Items) < n { // those of the namespace itself
			continue
		}
		sum += len(list.Items)
		if err := b.out.Line(result.Fields{"resource": resource.GroupResource().String(), "objects_per_service": float64(len(list.Items)) / float64(n)}); err != nil {
			return err
		}
	}
	b.summary["objects_per_service"] = float64(sum) / float64(n)
	return nil
}
