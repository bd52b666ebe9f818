package cluster

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Components are the components of Ebb that have Deployments in System.
var Components = []string{"activator", "autoscaler", "controller", "webhook"}

// Edge is the Deployment of all of them in the edge profile (docs/edge.md).
const Edge = "ebb"

// findPrograms returns the Deployments in which the components run.
func (c *Cluster) findPrograms(ctx context.Context) ([]string, error) {
	switch _, err := c.Kube.AppsV1().Deployments(System).Get(ctx, Edge, metav1.GetOptions{}); {
	case err == nil:
		return []string{Edge}, nil
	case apierrors.IsNotFound(err):
		return Components, nil
	default:
		return nil, fmt.Errorf("read Deployment %s/%s: %w", System, Edge, err)
	}
}

// OneProcess reports whether all components run in one process: the edge profile.
func (c *Cluster) OneProcess() bool { return slices.Contains(c.Programs, Edge) }

// Program returns the Deployment in which a component runs. Its name is also that of the container
// and of the pods' label app.
func (c *Cluster) Program(component string) string {
	if c.OneProcess() {
		return Edge
	}
	return component
}

// Usage is the resource usage of a program's processes: CPU time since they started and current
// anonymous memory.
type Usage struct {
	CPUSeconds float64
	AnonBytes  float64
}

// Usage reads process_cpu_seconds_total and process_anonymous_memory_bytes of each pod of each
// program, through the API server's proxy, and adds up the pods of each program.
func (c *Cluster) Usage(ctx context.Context) (map[string]Usage, error) {
	used := map[string]Usage{}
	for _, program := range c.Programs {
		pods, err := c.Kube.CoreV1().Pods(System).List(ctx, metav1.ListOptions{LabelSelector: "app=" + program})
		if err != nil {
			return nil, fmt.Errorf("list pods of %s: %w", program, err)
		}
		if len(pods.Items) == 0 {
			return nil, fmt.Errorf("namespace %s has no pod with the label app=%s", System, program)
		}
		for _, pod := range pods.Items {
			text, err := c.Kube.CoreV1().RESTClient().Get().Namespace(System).Resource("pods").Name(pod.Name + ":9090").
				SubResource("proxy").Suffix("metrics").DoRaw(ctx)
			if err != nil {
				return nil, fmt.Errorf("read metrics of %s: %w", pod.Name, err)
			}
			cpu, err := metric(text, "process_cpu_seconds_total")
			if err != nil {
				return nil, fmt.Errorf("metrics of %s: %w", pod.Name, err)
			}
			anon, err := metric(text, "process_anonymous_memory_bytes")
			if err != nil {
				return nil, fmt.Errorf("metrics of %s: %w", pod.Name, err)
			}
			sum := used[program]
			used[program] = Usage{sum.CPUSeconds + cpu, sum.AnonBytes + anon}
		}
	}
	return used, nil
}

// AwaitComponents waits until each pod of each program is Ready and none is terminating. An
// activator that ends with its last request, up to ten minutes later, is not waited for.
func (c *Cluster) AwaitComponents(ctx context.Context) error {
	return Until(ctx, func() (bool, string, error) {
		for _, program := range c.Programs {
			pods, err := c.Kube.CoreV1().Pods(System).List(ctx, metav1.ListOptions{LabelSelector: "app=" + program})
			if err != nil {
				return false, err.Error(), nil
			}
			ready := 0
			for _, pod := range pods.Items {
				if pod.DeletionTimestamp != nil {
					if program == "activator" {
						continue
					}
					return false, pod.Name + " is terminating", nil
				}
				if !PodIsReady(&pod) {
					return false, pod.Name + " is not Ready", nil
				}
				ready++
			}
			if ready == 0 {
				return false, program + " has no pod", nil
			}
		}
		return true, "", nil
	})
}

// AwaitFewest waits until each HorizontalPodAutoscaler of System is at its minimum. After load that
// takes minutes.
func (c *Cluster) AwaitFewest(ctx context.Context) error {
	return Until(ctx, func() (bool, string, error) {
		list, err := c.Kube.AutoscalingV2().HorizontalPodAutoscalers(System).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, hpa := range list.Items {
			if fewest := ptr.Deref(hpa.Spec.MinReplicas, 1); hpa.Status.CurrentReplicas > fewest {
				return false, fmt.Sprintf("%s has %d pods, %d more than its minimum", hpa.Name, hpa.Status.CurrentReplicas, hpa.Status.CurrentReplicas-fewest), nil
			}
		}
		return true, "", nil
	})
}

// metric returns the value of a metric without labels, from Prometheus' text format.
func metric(text []byte, name string) (float64, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		rest, found := strings.CutPrefix(lines.Text(), name+" ")
		if found {
			value, _, _ := strings.Cut(rest, " ")
			return strconv.ParseFloat(value, 64)
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, fmt.Errorf("metric %s is missing", name)
}
