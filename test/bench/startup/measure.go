package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

type bench struct {
	*trial.Place
	options
}

// service is one program, with or without more CPU while it starts, and what was measured of it.
type service struct {
	program, name, url string
	boosted            bool

	total, start, back []float64
	restarts           int
}

// services makes all services, those of one program next to each other.
func (b *bench) services(ctx context.Context) (all []*service, err error) {
	for _, program := range programs {
		for _, boosted := range []bool{false, true} {
			s := &service{program: program.name, name: program.name + "-plain", boosted: boosted}
			annotations := map[string]string{"autoscaling.knative.dev/window": "6s", "autoscaling.knative.dev/max-scale": "1"}
			if boosted {
				s.name = program.name + "-boosted"
				annotations["autoscaling.ebb.dev/startup-cpu"] = b.startup
			}
			s.url, err = b.ApplyFunction(ctx, b.Namespace, cluster.Function{Name: s.name, Image: program.image, Annotations: annotations,
				Container: cluster.Object{"resources": cluster.Object{"requests": cluster.Object{"cpu": "50m"}, "limits": cluster.Object{"cpu": b.limit}}}})
			if err != nil {
				return nil, fmt.Errorf("apply %s: %w", s.name, err)
			}
			all = append(all, s)
		}
	}
	return all, nil
}

// one is one cold start.
type one struct {
	total, start time.Duration
	// raised is whether the container had more CPU, back the time from the end of the grace until
	// it had its own limit again.
	raised   bool
	back     time.Duration
	restarts int
}

func (o one) fields(s *service, run int) result.Fields {
	fields := result.Fields{"run": run, "program": s.program, "boosted": s.boosted, "raised": o.raised,
		"total_ms": result.Milliseconds(o.total), "start_ms": result.Milliseconds(o.start), "restarts": o.restarts}
	if s.boosted {
		fields["limits_back_ms"] = result.Milliseconds(o.back)
	}
	return fields
}

func (s *service) add(o one) {
	s.total, s.start = append(s.total, result.Milliseconds(o.total)), append(s.start, result.Milliseconds(o.start))
	s.restarts += o.restarts
	if s.boosted {
		s.back = append(s.back, result.Milliseconds(o.back))
	}
}

// summary compares the services of each program. The ratio is of the medians of all that a client
// waits for.
func summary(services []*service, o options) result.Fields {
	fields := result.Fields{"runs": o.n, "limit": o.limit, "startup_cpu": o.startup}
	var back []float64
	restarts := 0
	for _, program := range programs {
		var total, start [2]float64
		for _, s := range services {
			if s.program != program.name {
				continue
			}
			i, name := 0, program.name+"_plain"
			if s.boosted {
				i, name = 1, program.name+"_boosted"
				back = append(back, s.back...)
			}
			total[i], start[i] = result.Median(s.total), result.Median(s.start)
			fields[name+"_median_total_ms"], fields[name+"_median_start_ms"] = total[i], start[i]
			fields[name+"_slowest_total_ms"] = result.Quantile(s.total, 1)
			restarts += s.restarts
		}
		fields[program.name+"_boost_ratio"] = total[1] / total[0]
		fields[program.name+"_start_ratio"] = start[1] / start[0]
	}
	fields["limits_back_median_ms"], fields["limits_back_slowest_ms"] = result.Median(back), result.Quantile(back, 1)
	fields["restarts"] = restarts
	return fields
}

var errNotRaised = errors.New("the container never had more CPU")

// measure calls a service at zero and follows its pod.
func (b *bench) measure(ctx context.Context, s *service) (one, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	if err := b.AwaitNoPods(ctx, b.Namespace, s.name); err != nil {
		return one{}, fmt.Errorf("wait for the service to sleep: %w", err)
	}
	// Let the machine become idle: work left from removing the last pod must not count in the next
	// start.
	select {
	case <-ctx.Done():
		return one{}, ctx.Err()
	case <-time.After(2 * time.Second):
	}
	watcher, err := b.Kube.CoreV1().Pods(b.Namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + s.name})
	if err != nil {
		return one{}, fmt.Errorf("watch pods of %s: %w", s.name, err)
	}
	defer watcher.Stop()
	answered := make(chan probe.Reply, 1)
	client := b.Client(2 * time.Minute)
	defer client.CloseIdleConnections()
	go func() { answered <- probe.Get(ctx, client, s.url) }()

	own, o := resource.MustParse(b.limit), one{}
	var ready time.Time
	for {
		select {
		case reply := <-answered:
			if !reply.OK() {
				return one{}, fmt.Errorf("the request failed: %s", reply)
			}
			o.total = reply.Took
		case event, open := <-watcher.ResultChan():
			pod, is := event.Object.(*corev1.Pod)
			if !open || !is {
				return one{}, fmt.Errorf("watch pods of %s: it ended: %v", s.name, event)
			}
			user, proxy := containers(pod)
			if user == nil {
				continue
			}
			o.restarts = int(user.RestartCount + proxy.RestartCount)
			limit := actual(user)
			o.raised = o.raised || limit != nil && limit.Cmp(own) > 0
			if ready.IsZero() && user.State.Running != nil && cluster.PodIsReady(pod) {
				ready = time.Now()
				o.start = ready.Sub(user.State.Running.StartedAt.Time)
			}
			if s.boosted && o.back == 0 && !ready.IsZero() && limit != nil && limit.Equal(own) {
				o.back = time.Since(ready) - grace
			}
		}
		if o.total == 0 || ready.IsZero() || s.boosted && o.back == 0 {
			continue
		}
		if s.boosted && !o.raised {
			return one{}, errNotRaised
		}
		return o, nil
	}
}

// containers are the status of the user container and that of queue-proxy.
func containers(pod *corev1.Pod) (user, proxy *corev1.ContainerStatus) {
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.Name == "queue-proxy" {
			proxy = c
		} else {
			user = c
		}
	}
	if proxy == nil {
		return nil, nil
	}
	return user, proxy
}

// actual is the CPU limit that a container has on its node, nil if that does not say.
func actual(c *corev1.ContainerStatus) *resource.Quantity {
	if c.Resources == nil || c.State.Running == nil {
		return nil
	}
	if limit, there := c.Resources.Limits[corev1.ResourceCPU]; there {
		return &limit
	}
	return nil
}
