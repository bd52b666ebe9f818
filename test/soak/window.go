package main

import (
	"context"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// window counts what the services saw from the begin of a fault until the cluster was whole again.
type window struct {
	requests, failed, resets, skipped int
	byStatus                          map[string]int
	gap                               time.Duration // the longest of any service
	wrongScale, unseen                float64       // pod-seconds, and seconds in which the API did not answer
}

// watch counts for the services until the returned function is called.
func (s *soak) watch(ctx context.Context, probers map[string]*probe.Prober) (done func() window) {
	before := map[string]probe.Report{}
	for name, prober := range probers {
		before[name] = prober.Seen()
		prober.LongestGap()
	}
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan window, 1)
	go func() { sampled <- s.sampleScale(sampling) }()
	return func() window {
		stop()
		w := <-sampled
		for name, prober := range probers {
			w.add(before[name], prober.Seen(), prober.LongestGap())
		}
		return w
	}
}

func (w *window) add(before, after probe.Report, gap time.Duration) {
	w.requests += after.Sent - before.Sent
	w.failed += after.Failed - before.Failed
	w.resets += after.Resets - before.Resets
	w.skipped += after.Skipped - before.Skipped
	w.gap = max(w.gap, gap)
	if w.byStatus == nil {
		w.byStatus = map[string]int{}
	}
	for status, n := range after.Statuses {
		if n -= before.Statuses[status]; n > 0 {
			name := fmt.Sprint(status)
			if status == 0 {
				name = "no response"
			}
			w.byStatus[name] += n
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// sampleScale compares each second the Ready pods of each revision with the scale that the
// autoscaler wants, until ctx is done.
func (s *soak) sampleScale(ctx context.Context) (w window) {
	last := time.Now()
	for pause(ctx, time.Second) == nil {
		wrong, err := s.wrongPods(ctx)
		now := time.Now()
		if took := now.Sub(last).Seconds(); err == nil {
			w.wrongScale += wrong * took
		} else if ctx.Err() == nil {
			w.unseen += took
		}
		last = now
	}
	return w
}

func (s *soak) wrongPods(ctx context.Context) (wrong float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	scalers, err := s.Dynamic.Resource(cluster.PodAutoscalers).Namespace(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	pods, err := s.Kube.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	ready := map[string]int64{}
	for _, pod := range pods.Items {
		for _, c := range pod.Status.Conditions {
			if pod.DeletionTimestamp == nil && c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				ready[pod.Labels["serving.knative.dev/revision"]]++
			}
		}
	}
	for _, scaler := range scalers.Items {
		want, found, _ := unstructured.NestedInt64(scaler.Object, "status", "desiredScale")
		if found && want >= 0 {
			wrong += math.Abs(float64(want - ready[scaler.GetName()]))
		}
	}
	return wrong, nil
}
