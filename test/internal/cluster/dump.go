package cluster

import (
	"context"
	"fmt"
	"io"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var dumped = []schema.GroupVersionResource{Services, Configurations, Revisions, Routes, DomainMappings, PodAutoscalers, HTTPRoutes,
	{Group: "apps", Version: "v1", Resource: "deployments"}, {Version: "v1", Resource: "services"}}

// Dump writes what helps to explain a failure: the namespace's objects with their conditions, its
// pods, its events, and the components' log lines that name the namespace. It reports what it
// cannot read and continues.
func (c *Cluster) Dump(ctx context.Context, namespace string, out io.Writer) {
	fmt.Fprintf(out, "--- namespace %s ---\n", namespace)
	for _, resource := range dumped {
		list, err := c.Dynamic.Resource(resource).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(out, "%s: %v\n", resource.Resource, err)
			continue
		}
		for _, object := range list.Items {
			fmt.Fprintln(out, strings.TrimSpace(Describe(&object)+" "+more(&object)))
		}
	}
	c.dumpPods(ctx, namespace, out)
	c.dumpSlices(ctx, namespace, out)
	c.dumpEvents(ctx, namespace, out)
	c.dumpLogs(ctx, namespace, out)
}

// more returns what Describe lacks: the numbers that a test of the scale depends on.
func more(object *unstructured.Unstructured) string {
	var parts []string
	for _, path := range [][]string{{"spec", "replicas"}, {"status", "readyReplicas"}, {"status", "desiredScale"}, {"status", "actualScale"},
		{"status", "mode"}, {"status", "latestCreatedRevisionName"}, {"status", "latestReadyRevisionName"}, {"spec", "selector"}, {"status", "decision", "reason"}} {
		if value, found, _ := unstructured.NestedFieldNoCopy(object.Object, path...); found {
			parts = append(parts, fmt.Sprintf("%s=%v", strings.Join(path, "."), value))
		}
	}
	return strings.Join(parts, " ")
}

func (c *Cluster) dumpPods(ctx context.Context, namespace string, out io.Writer) {
	pods, err := c.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(out, "pods: %v\n", err)
		return
	}
	for _, pod := range pods.Items {
		fmt.Fprintf(out, "Pod %s %s %s deleted=%v\n", pod.Name, pod.Status.Phase, pod.Status.PodIP, pod.DeletionTimestamp)
		for _, container := range pod.Status.ContainerStatuses {
			fmt.Fprintf(out, "  %s ready=%v restarts=%d %s\n", container.Name, container.Ready, container.RestartCount, state(container.State))
			if !container.Ready {
				c.tail(ctx, namespace, pod.Name, container.Name, "", 15, out)
			}
		}
	}
}

func state(s corev1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return "waiting: " + s.Waiting.Reason + " " + s.Waiting.Message
	case s.Terminated != nil:
		return fmt.Sprintf("terminated: %d %s %s", s.Terminated.ExitCode, s.Terminated.Reason, s.Terminated.Message)
	case s.Running != nil:
		return "running since " + s.Running.StartedAt.Format("15:04:05")
	}
	return ""
}

func (c *Cluster) dumpSlices(ctx context.Context, namespace string, out io.Writer) {
	slices, err := c.Kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(out, "endpointslices: %v\n", err)
		return
	}
	for _, slice := range slices.Items {
		var addresses []string
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready
			addresses = append(addresses, fmt.Sprintf("%v ready=%v", endpoint.Addresses, ready))
		}
		fmt.Fprintf(out, "EndpointSlice %s: %s\n", slice.Name, strings.Join(addresses, ", "))
	}
}

func (c *Cluster) dumpEvents(ctx context.Context, namespace string, out io.Writer) {
	events, err := c.Kube.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(out, "events: %v\n", err)
		return
	}
	items := events.Items
	sort.SliceStable(items, func(i, j int) bool { return items[i].LastTimestamp.Before(&items[j].LastTimestamp) })
	if len(items) > 40 {
		items = items[len(items)-40:]
	}
	for _, event := range items {
		fmt.Fprintf(out, "%s %s %s/%s: %s\n", event.LastTimestamp.Format("15:04:05"), event.Reason, event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Message)
	}
}

func (c *Cluster) dumpLogs(ctx context.Context, namespace string, out io.Writer) {
	pods, err := c.Kube.CoreV1().Pods(System).List(ctx, metav1.ListOptions{})
	if err != nil {
		fmt.Fprintf(out, "pods of %s: %v\n", System, err)
		return
	}
	for _, pod := range pods.Items {
		fmt.Fprintf(out, "--- %s %s, lines that name %s ---\n", pod.Name, pod.Status.Phase, namespace)
		for _, container := range pod.Status.ContainerStatuses {
			if container.RestartCount > 0 {
				fmt.Fprintf(out, "container %s has restarted %d times\n", container.Name, container.RestartCount)
			}
		}
		for _, container := range pod.Spec.Containers {
			c.tail(ctx, System, pod.Name, container.Name, namespace, 40, out)
		}
	}
}

// tail writes the last n lines of a container's log that contain match.
func (c *Cluster) tail(ctx context.Context, namespace, pod, container, match string, n int, out io.Writer) {
	read := int64(2000)
	limit := int64(1 << 20)
	log, err := c.Kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container, TailLines: &read, LimitBytes: &limit}).DoRaw(ctx)
	if err != nil {
		fmt.Fprintf(out, "log of %s/%s: %v\n", pod, container, err)
		return
	}
	var lines []string
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, match) {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	for _, line := range lines[max(0, len(lines)-n):] {
		if len(line) > 600 {
			line = line[:600] + "..."
		}
		fmt.Fprintln(out, "  "+line)
	}
}
