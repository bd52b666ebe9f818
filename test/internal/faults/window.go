package faults

import (
	"context"
	"fmt"
	"math"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// Window counts what the services saw from the begin of a fault until the cluster was whole again.
type Window struct {
	Requests, Failed, Resets, Skipped int
	ByStatus                          map[string]int
	Gap                               time.Duration // the longest of any service
	WrongScale, Unseen                float64       // pod-seconds, and seconds in which the API did not answer
}

// Watch counts for the services until the returned function is called.
func (s Set) Watch(ctx context.Context, probers map[string]*probe.Prober) (done func() Window) {
	before := map[string]probe.Report{}
	for name, prober := range probers {
		before[name] = prober.Seen()
		prober.LongestGap()
	}
	sampling, stop := context.WithCancel(ctx)
	sampled := make(chan Window, 1)
	go func() { sampled <- s.sampleScale(sampling) }()
	return func() Window {
		stop()
		w := <-sampled
		for name, prober := range probers {
			w.add(before[name], prober.Seen(), prober.LongestGap())
		}
		return w
	}
}

func (w *Window) add(before, after probe.Report, gap time.Duration) {
	w.Requests += after.Sent - before.Sent
	w.Failed += after.Failed - before.Failed
	w.Resets += after.Resets - before.Resets
	w.Skipped += after.Skipped - before.Skipped
	w.Gap = max(w.Gap, gap)
	if w.ByStatus == nil {
		w.ByStatus = map[string]int{}
	}
	for status, n := range after.Statuses {
		if n -= before.Statuses[status]; n > 0 {
			name := fmt.Sprint(status)
			if status == 0 {
				name = "no response"
			}
			w.ByStatus[name] += n
		}
	}
}

// sampleScale compares each second the Ready pods of each revision with the scale that the
// autoscaler wants, until ctx is done.
func (s Set) sampleScale(ctx context.Context) (w Window) {
	last := time.Now()
	for cluster.Pause(ctx, time.Second) == nil {
		wrong, err := s.wrongPods(ctx)
		now := time.Now()
		if took := now.Sub(last).Seconds(); err == nil {
			w.WrongScale += wrong * took
		} else if ctx.Err() == nil {
			w.Unseen += took
		}
		last = now
	}
	return w
}

func (s Set) wrongPods(ctx context.Context) (wrong float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	scalers, err := s.Dynamic.Resource(cluster.PodAutoscalers).Namespace(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	ready := map[string]int64{}
	for _, pod := range cluster.ReadyPods(pods.Items) {
		ready[pod.Labels["serving.knative.dev/revision"]]++
	}
	for _, scaler := range scalers.Items {
		want, found, _ := unstructured.NestedInt64(scaler.Object, "status", "desiredScale")
		if found && want >= 0 {
			wrong += math.Abs(float64(want - ready[scaler.GetName()]))
		}
	}
	return wrong, nil
}
