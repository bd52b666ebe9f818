package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// rest waits until the components are idle, prints what each of them uses, and returns the sum.
func (b *bench) rest(ctx context.Context, when string) (cluster.Usage, error) {
	// After load, extra activators stay for five minutes, and each takes minutes to terminate.
	idle, cancel := context.WithTimeout(ctx, 12*time.Minute)
	defer cancel()
	if err := b.AwaitFewest(idle); err != nil {
		return cluster.Usage{}, err
	}
	if err := b.AwaitComponents(idle); err != nil {
		return cluster.Usage{}, err
	}
	select {
	case <-ctx.Done():
		return cluster.Usage{}, ctx.Err()
	case <-time.After(b.settle):
	}
	used, err := b.Usage(ctx)
	if err != nil {
		return cluster.Usage{}, err
	}
	var sum cluster.Usage
	for _, program := range b.Programs {
		u := used[program]
		sum.CPUSeconds += u.CPUSeconds
		sum.AnonBytes += u.AnonBytes
		if err := b.out.Line(result.Fields{"component": program, "when": when, "anon_mib": u.AnonBytes / (1 << 20), "cpu_s": u.CPUSeconds}); err != nil {
			return cluster.Usage{}, err
		}
	}
	return sum, nil
}

// applyAtOnce applies n services, 16 at a time, as a user's script might. It returns the seconds
// from apply to Ready for each.
func (b *bench) applyAtOnce(ctx context.Context, prefix string, n int) ([]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	var mu sync.Mutex
	ready := map[string]time.Time{}
	informers := dynamicinformer.NewFilteredDynamicSharedInformerFactory(b.Dynamic, 0, b.namespace, nil)
	informer := informers.ForResource(cluster.Services).Informer()
	note := func(object any) {
		service, ok := object.(*unstructured.Unstructured)
		if !ok || !cluster.IsReady(service) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if _, known := ready[service.GetName()]; !known {
			ready[service.GetName()] = time.Now()
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: note, UpdateFunc: func(_, object any) { note(object) }}); err != nil {
		return nil, fmt.Errorf("watch Services: %w", err)
	}
	informers.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watch Services of %s: %w", b.namespace, ctx.Err())
	}

	applied := make([]time.Time, n)
	failures := make([]error, n)
	slots := make(chan struct{}, 16)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			applied[i] = time.Now()
			failures[i] = b.create(ctx, name(prefix, i))
		})
	}
	all.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, err
		}
	}
	err := cluster.Until(ctx, func() (bool, string, error) {
		mu.Lock()
		defer mu.Unlock()
		missing, example := 0, ""
		for i := range n {
			if _, ok := ready[name(prefix, i)]; !ok {
				missing++
				example = name(prefix, i)
			}
		}
		return missing == 0, fmt.Sprintf("%d of %d services are not Ready, one is %s", missing, n, example), nil
	})
	if err != nil {
		return nil, err
	}
	seconds := make([]float64, n)
	for i := range n {
		seconds[i] = ready[name(prefix, i)].Sub(applied[i]).Seconds()
	}
	return seconds, nil
}

func name(prefix string, i int) string { return fmt.Sprintf("%s-%04d", prefix, i) }

func (b *bench) create(ctx context.Context, name string) error {
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"autoscaling.knative.dev/initial-scale": "0"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"image": b.image}}},
		}},
	}}
	if _, err := b.Dynamic.Resource(cluster.Services).Namespace(b.namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("apply Service %s: %w", name, err)
	}
	return nil
}

// awaitRemoved waits until the namespace is gone, so that the next benchmark finds an idle cluster.
// This may take minutes: 200 services have about 3000 objects.
func (b *bench) awaitRemoved(ctx context.Context) error {
	if b.namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Minute)
	defer cancel()
	return cluster.Until(ctx, func() (bool, string, error) {
		_, err := b.Kube.CoreV1().Namespaces().Get(ctx, b.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprintf("namespace %s is still there", b.namespace), nil
	})
}
