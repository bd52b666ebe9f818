package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// sleepers are the services that are called at zero, in turn. bare's pods have no volume.
var sleepers = []string{"sleeper", bare}

const bare = "bare"

// sleeper applies a service that scales to zero as early as allowed and has at most one pod.
func sleeper(ctx context.Context, c *cluster.Cluster, namespace, name, image string) (url string, err error) {
	var spec cluster.Object
	if name == bare {
		spec = cluster.Object{"automountServiceAccountToken": false}
	}
	return c.ApplyFunction(ctx, namespace, cluster.Function{Name: name, Image: image, Spec: spec, Annotations: map[string]string{
		"autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/max-scale": "1"}})
}

// phases are the times of one cold start.
type phases struct {
	sent, scaleWritten, podCreated, processStarted, answered time.Time
	cold                                                     wire.ColdStart
}

// begin is the earliest time at which Ebb knew of the request.
func (p phases) begin() time.Time {
	if p.cold.Received.IsZero() {
		return p.sent
	}
	return p.cold.Received
}

func (p phases) fields() result.Fields {
	after := func(at time.Time) any {
		if at.IsZero() {
			return nil
		}
		return result.Milliseconds(at.Sub(p.sent))
	}
	return result.Fields{
		"received_ms":            after(p.cold.Received),
		"scale_written_ms":       after(p.scaleWritten),
		"pod_created_ms":         after(p.podCreated),
		"process_started_ms":     after(p.processStarted),
		"announced_ms":           after(p.cold.Announced),
		"forwarded_ms":           after(p.cold.Forwarded),
		"answered_ms":            after(p.answered),
		"via":                    p.cold.Via,
		"after_process_start_ms": result.Milliseconds(p.answered.Sub(p.processStarted)),
	}
}

func measure(ctx context.Context, c *cluster.Cluster, namespace, service, url string) (phases, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	if err := rest(ctx, c, namespace, service); err != nil {
		return phases{}, err
	}
	watched, err := watchScale(ctx, c, namespace, service, 0)
	if err != nil {
		return phases{}, err
	}
	client := c.Client(2 * time.Minute)
	defer client.CloseIdleConnections()
	reply := probe.Get(ctx, client, url)
	if !reply.OK() {
		return phases{}, fmt.Errorf("the request failed: %s", reply)
	}
	p := phases{sent: reply.Sent, answered: reply.Sent.Add(reply.Took)}
	p.scaleWritten, p.podCreated = watched()
	if p.scaleWritten.IsZero() {
		return phases{}, errors.New("the request was answered without a scale-up: it was not a cold start")
	}
	started, err := strconv.ParseInt(reply.Header.Get("X-Process-Start"), 10, 64)
	if err != nil {
		return phases{}, fmt.Errorf("the image did not say when its process started: %w", err)
	}
	p.processStarted = time.Unix(0, started)
	p.cold, err = wire.ParseColdStart(reply.Header.Values(wire.HeaderServerTiming))
	return p, err
}

// rest waits until a service is at zero and the machine idle: work left from removing the last pod
// must not count in the next start.
func rest(ctx context.Context, c *cluster.Cluster, namespace, service string) error {
	if err := c.AwaitNoPods(ctx, namespace, service); err != nil {
		return fmt.Errorf("wait for the service to sleep: %w", err)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(2 * time.Second):
		return nil
	}
}

// watchScale records when a service's Deployment first has more than the given replicas and when
// the first new pod appears.
func watchScale(ctx context.Context, c *cluster.Cluster, namespace, service string, has int32) (stop func() (scaleWritten, podCreated time.Time), err error) {
	selector := "serving.knative.dev/service=" + service
	list, err := c.Kube.AppsV1().Deployments(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list Deployments in %s: %w", namespace, err)
	}
	from := metav1.ListOptions{LabelSelector: selector, ResourceVersion: list.ResourceVersion}
	deployments, err := c.Kube.AppsV1().Deployments(namespace).Watch(ctx, from)
	if err != nil {
		return nil, fmt.Errorf("watch Deployments in %s: %w", namespace, err)
	}
	pods, err := c.Kube.CoreV1().Pods(namespace).Watch(ctx, from)
	if err != nil {
		deployments.Stop()
		return nil, fmt.Errorf("watch pods in %s: %w", namespace, err)
	}
	var all sync.WaitGroup
	var scaled, created time.Time
	all.Go(func() {
		for event := range deployments.ResultChan() {
			if d, ok := event.Object.(*appsv1.Deployment); ok && scaled.IsZero() && d.Spec.Replicas != nil && *d.Spec.Replicas > has {
				scaled = time.Now()
			}
		}
	})
	all.Go(func() {
		for event := range pods.ResultChan() {
			if _, ok := event.Object.(*corev1.Pod); ok && created.IsZero() && event.Type == watch.Added {
				created = time.Now()
			}
		}
	})
	return func() (time.Time, time.Time) {
		deployments.Stop()
		pods.Stop()
		all.Wait()
		return scaled, created
	}, nil
}
