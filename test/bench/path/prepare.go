package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/trial"
	"ebb.dev/ebb/wire"
)

// prepare creates the Service and returns the paths to its only pod.
func prepare(ctx context.Context, c *trial.Place, o options) ([]target, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	namespace := c.Namespace
	sidecar := ""
	if o.sidecar != "" {
		sidecar = "\n        queue.sidecar.serving.knative.dev/cpu-resource-request: " + o.sidecar
	}
	if err := c.Apply(ctx, namespace, fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata:
  name: path
spec:
  template:
    metadata:
      annotations:
        autoscaling.knative.dev/min-scale: "1"
        autoscaling.knative.dev/max-scale: "1"
        autoscaling.knative.dev/target-burst-capacity: "-1"%s
    spec:
      containers:
      - image: %s
        resources: {requests: {cpu: %s}}
`, sidecar, o.image, o.cpu)); err != nil {
		return nil, err
	}
	url, err := c.AwaitReady(ctx, namespace, "path")
	if err != nil {
		return nil, err
	}
	host, err := cluster.HostOf(url)
	if err != nil {
		return nil, err
	}
	service, err := c.Get(ctx, cluster.Services, namespace, "path")
	if err != nil {
		return nil, fmt.Errorf("read Service %s/path: %w", namespace, err)
	}
	revision, _, _ := unstructured.NestedString(service.Object, "status", "latestReadyRevisionName")
	pod, port, err := one(ctx, c.Cluster, namespace, "serving.knative.dev/revision="+revision)
	if err != nil {
		return nil, err
	}
	activator, _, err := one(ctx, c.Cluster, cluster.System, "app=activator")
	if err != nil {
		return nil, err
	}
	reference, stop, err := besideContainer(ctx, pod, port)
	if err != nil {
		return nil, err
	}
	c.Undo = append(c.Undo, stop)
	data := fmt.Sprint(wire.PortHTTP1)
	toRevision := fmt.Sprintf("%s: %s\r\n%s: %s\r\n", wire.HeaderRevision, revision, wire.HeaderNamespace, namespace)
	return []target{
		{"direct", net.JoinHostPort(pod.Status.PodIP, fmt.Sprint(port)), host, ""},
		{"nginx", reference, host, ""},
		{"queue-proxy", net.JoinHostPort(pod.Status.PodIP, data), host, ""},
		{"both", net.JoinHostPort(activator.Status.PodIP, data), host, toRevision},
		{"gateway", c.Gateway, host, ""},
	}, nil
}

// one returns the first running pod with the label, and the first port of its first container.
func one(ctx context.Context, c *cluster.Cluster, namespace, label string) (pod *corev1.Pod, port int32, err error) {
	pods, err := c.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, 0, fmt.Errorf("list pods with %s: %w", label, err)
	}
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil || p.Status.PodIP == "" {
			continue
		}
		for _, container := range p.Spec.Containers {
			for _, containerPort := range container.Ports {
				if strings.HasPrefix(containerPort.Name, "user-port") || container.Name != "queue-proxy" {
					return &p, containerPort.ContainerPort, nil
				}
			}
		}
	}
	return nil, 0, fmt.Errorf("no running pod with %s in %s", label, namespace)
}
