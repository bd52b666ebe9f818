package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// arm is one side of a comparison: a way to a workload.
type arm struct {
	name     string
	url      string
	client   *http.Client
	selector string // of its pods
}

const (
	// plainPort is the port of the workload in its container.
	plainPort = 8080
	// answerTime is the longest time that a client waits for an answer.
	answerTime = time.Minute
)

type object = cluster.Object

func env(name string, value any) object {
	return object{"env": []any{object{"name": name, "value": fmt.Sprint(value)}}}
}

// merge returns all fields of several objects.
func merge(all ...object) object {
	merged := object{}
	for _, o := range all {
		maps.Copy(merged, o)
	}
	return merged
}

// cpu is the CPU request of the container in an experiment with one pod. Without a request the pod
// would get the smallest share.
var cpu = object{"resources": object{"requests": object{"cpu": "100m"}}}

// onePod is a Service that always has one pod, and gets its requests straight from the gateway.
var onePod = map[string]string{"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1",
	"autoscaling.knative.dev/target-burst-capacity": "0"}

// ebb applies a Service of the test image, or of another one that container names, and returns the
// way through the gateway.
func (b *bench) ebb(ctx context.Context, arm string, annotations map[string]string, container, spec object) (arm, error) {
	url, err := b.ApplyFunction(ctx, b.namespace, cluster.Function{Name: arm, Image: b.image, Annotations: annotations, Container: container, Spec: spec})
	if err != nil {
		return gone, err
	}
	if annotations["autoscaling.knative.dev/target-burst-capacity"] == "0" {
		if err := b.awaitServe(ctx, arm); err != nil {
			return gone, err
		}
	}
	return b.through(arm, url, "serving.knative.dev/service="+arm), nil
}

// gone is no arm.
var gone arm

// floor applies a plain Deployment with that many pods, waits until it answers and returns the way
// through the gateway.
func (b *bench) floor(ctx context.Context, name string, pods int, container object) (arm, error) {
	host := name + "." + b.namespace + ".test"
	if err := b.ApplyPlain(ctx, b.namespace, cluster.Plain{Name: name, Image: b.image, Host: host, Replicas: pods, Container: container}); err != nil {
		return gone, err
	}
	a := b.through(name, "http://"+host, "app="+name)
	if pods == 0 {
		return a, nil
	}
	if err := b.awaitPods(ctx, a.selector, pods); err != nil {
		return gone, err
	}
	return a, b.AwaitAnswer(ctx, a.url)
}

func (b *bench) through(name, url, selector string) arm {
	return arm{name: name, url: url, client: b.Client(answerTime), selector: selector}
}

// direct is the way to a port of an arm's only pod, past the gateway.
func (b *bench) direct(ctx context.Context, a arm, name string, port int) (arm, error) {
	pod, err := b.pod(ctx, a)
	if err != nil {
		return gone, err
	}
	address := net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port))
	return arm{name: name, url: a.url, client: b.ClientOf(address, answerTime), selector: a.selector}, nil
}

// queueProxyPort is where queue-proxy takes requests.
const queueProxyPort = wire.PortHTTP1

func (b *bench) pod(ctx context.Context, a arm) (*corev1.Pod, error) {
	pods, err := b.Kube.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{LabelSelector: a.selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", a.name, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Status.PodIP != "" && p.DeletionTimestamp == nil {
			return p, nil
		}
	}
	return nil, errors.New(a.name + " has no pod with an address")
}

// awaitServe waits until the gateway sends the requests of a Service to its pods.
func (b *bench) awaitServe(ctx context.Context, service string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	_, err := b.Await(ctx, cluster.PodAutoscalers, b.namespace, service+"-00001", func(pa *unstructured.Unstructured) bool {
		mode, _, _ := unstructured.NestedString(pa.Object, "status", "mode")
		return mode == "Serve"
	})
	if err != nil {
		return fmt.Errorf("requests of %s do not go straight to its pods: %w", service, err)
	}
	return nil
}

// awaitPods waits until exactly n pods exist and are Ready.
func (b *bench) awaitPods(ctx context.Context, selector string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	return cluster.Until(ctx, func() (bool, string, error) {
		list, err := b.Kube.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return false, err.Error(), nil
		}
		ready := len(cluster.ReadyPods(list.Items))
		return len(list.Items) == n && ready == n, fmt.Sprintf("%d of %d pods of %s are Ready, want %d", ready, len(list.Items), selector, n), nil
	})
}

// awaitNothing waits until the namespace has no pod.
func (b *bench) awaitNothing(ctx context.Context) error {
	return cluster.Until(ctx, func() (bool, string, error) {
		list, err := b.Kube.CoreV1().Pods(b.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		return len(list.Items) == 0, fmt.Sprintf("%d pods", len(list.Items)), nil
	})
}

// cell is one column of an experiment's table: what is sent, and the value that tells it apart.
type cell struct {
	x     int
	query string
	loop  load.Loop
	more  result.Fields
}

// cells measures each cell of each arm in each round. The order of the arms is reversed in every
// second round, so that none benefits from its position.
func (b *bench) cells(ctx context.Context, arms []arm, cells []cell) error {
	for _, a := range arms {
		warm := load.Loop{Client: a.client, URL: a.url + cells[0].query, Outstanding: 2, Requests: 20, Body: cells[0].loop.Body}.Run(ctx)
		if warm.Failed > 0 {
			return fmt.Errorf("%s does not answer: %s", a.name, warm.Failure)
		}
	}
	for _, c := range cells {
		order := slices.Clone(arms)
		for round := range b.rounds() {
			for _, a := range order {
				c.loop.Client, c.loop.URL = a.client, a.url+c.query
				report := c.loop.Run(ctx)
				a.client.CloseIdleConnections()
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				fields := fieldsOf(a, report)
				fields["x"], fields["round"] = c.x, round+1
				maps.Copy(fields, c.more)
				if err := b.line(fields); err != nil {
					return err
				}
			}
			slices.Reverse(order)
		}
	}
	return nil
}

// shares are the quantiles of the distribution of latencies that a line tells.
var shares = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}

func fieldsOf(a arm, r *load.Report) result.Fields {
	fields := r.Fields()
	fields["arm"] = a.name
	fields["success_percent"] = 100 * float64(r.Total-r.Failed-r.TooLate) / float64(max(1, r.Total))
	if r.Total > 0 {
		var quantiles []float64
		for _, share := range shares {
			quantiles = append(quantiles, rounded(r.Quantile(share)))
		}
		fields["quantiles_ms"] = quantiles
	}
	if r.Failed > 0 {
		fields["failure"] = r.Failure.String()
	}
	return fields
}
