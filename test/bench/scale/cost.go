package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// memory prints the memory of Ebb's components, of istiod and of the gateways. The summary has the
// slope between the first and the last number of services.
func (b *bench) memory(ctx context.Context, n int) error {
	if err := cluster.Pause(ctx, kubeletLooks); err != nil {
		return err
	}
	now, err := b.istioMemory(ctx)
	if err != nil {
		return err
	}
	used, err := b.Usage(ctx)
	if err != nil {
		return err
	}
	for program, u := range used {
		now[program] = u.AnonBytes
	}
	line := result.Fields{"n": n}
	for name, bytes := range now {
		line["mib_"+name] = bytes / (1 << 20)
		if b.base != nil {
			b.summary["bytes_per_service_"+name] = (bytes - b.base[name]) / float64(n-b.baseAt)
		}
	}
	if b.base == nil {
		b.base, b.baseAt = now, n
	}
	return b.out.Line(line)
}

// kubeletLooks is how often kubelet looks at the memory of pods, and a little more.
const kubeletLooks = 20 * time.Second

// istioMemory returns the anonymous memory of istiod and of each gateway, as kubelet tells it.
func (b *bench) istioMemory(ctx context.Context) (map[string]float64, error) {
	nodes, err := b.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	sum := map[string]float64{}
	for _, node := range nodes.Items {
		text, err := b.Kube.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("read what kubelet of %s tells: %w", node.Name, err)
		}
		var told struct {
			Pods []struct {
				PodRef struct{ Name, Namespace string }
				Memory struct{ RSSBytes float64 }
			}
		}
		if err := json.Unmarshal(text, &told); err != nil {
			return nil, fmt.Errorf("what kubelet of %s tells: %w", node.Name, err)
		}
		for _, p := range told.Pods {
			for _, name := range []string{"istiod", "ebb-external", "ebb-local"} {
				if strings.HasPrefix(p.PodRef.Name, name+"-") {
					sum[name] += p.Memory.RSSBytes
				}
			}
		}
	}
	return sum, nil
}

// startCold sends one request to each of the services for it, one after the other, and waits until
// all are at zero again.
func (b *bench) startCold(ctx context.Context) error {
	rest, err := b.restingCPU(ctx)
	if err != nil {
		return err
	}
	before, err := b.Usage(ctx)
	if err != nil {
		return err
	}
	client, began := b.Client(time.Minute), time.Now()
	var seconds []float64
	for i := range b.cold {
		url, err := b.AwaitReady(ctx, b.Namespace, coldName(i))
		if err != nil {
			return err
		}
		reply := probe.Get(ctx, client, url)
		if !reply.OK() {
			return fmt.Errorf("the first request to %s: %v", url, reply)
		}
		seconds = append(seconds, reply.Took.Seconds())
	}
	for i := range b.cold {
		if err := b.AwaitNoPods(ctx, b.Namespace, coldName(i)); err != nil {
			return err
		}
	}
	writes, err := b.quiet(ctx)
	if err != nil {
		return err
	}
	after, err := b.Usage(ctx)
	if err != nil {
		return err
	}
	lasted := time.Since(began).Seconds()
	b.summary["writes_per_cold_start_and_back"] = float64(writes) / float64(b.cold)
	line, all, resting := result.Fields{"cold_starts": b.cold, "median_s": result.Median(seconds), "writes": writes}, 0.0, 0.0
	for program, u := range after {
		ms := 1000 * (u.CPUSeconds - before[program].CPUSeconds - rest[program]*lasted) / float64(b.cold)
		line["cpu_ms_per_cold_start_"+program], all, resting = ms, all+ms, resting+rest[program]
	}
	line["resting_cpus"] = resting
	b.summary["ebb_cpu_ms_per_cold_start_and_back"] = all
	return b.out.Line(line)
}

// restingCPU returns the CPUs that each of Ebb's programs uses while nothing happens. It takes as
// long as the cold starts: what is wrong with it counts for each of their seconds.
func (b *bench) restingCPU(ctx context.Context) (map[string]float64, error) {
	const lasts = time.Minute
	before, err := b.Usage(ctx)
	if err != nil {
		return nil, err
	}
	if err := cluster.Pause(ctx, lasts); err != nil {
		return nil, err
	}
	after, err := b.Usage(ctx)
	cpus := map[string]float64{}
	for program, u := range after {
		cpus[program] = (u.CPUSeconds - before[program].CPUSeconds) / lasts.Seconds()
	}
	return cpus, err
}

// restarts measures what the roll of an activator writes, and how long after the end of each
// component one more service is Ready.
func (b *bench) restarts(ctx context.Context) error {
	for _, d := range []struct{ namespace, name string }{
		{cluster.System, "activator"}, {cluster.System, "controller"}, {"istio-system", "istiod"},
	} {
		if err := b.deletePods(ctx, d.namespace, d.name); err != nil {
			return err
		}
		seconds, err := b.add(ctx, b.nextName())
		if err != nil {
			return err
		}
		writes, err := b.quiet(ctx)
		if err != nil {
			return err
		}
		b.summary["restart_to_one_more_ready_s_"+d.name] = seconds
		if d.name == "activator" {
			b.summary["activator_roll_writes"] = writes // with the few of one more service
		}
		if err := b.out.Line(result.Fields{"restarted": d.name, "one_more_ready_s": seconds, "writes": writes}); err != nil {
			return err
		}
		if err := b.awaitAvailable(ctx, d.namespace, d.name); err != nil {
			return err
		}
	}
	return nil
}

// deletePods ends the pods of a Deployment without a grace.
func (b *bench) deletePods(ctx context.Context, namespace, name string) error {
	pods, err := b.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return err
	}
	ended := false
	for _, pod := range pods.Items {
		if pod.Status.Phase != corev1.PodRunning || !strings.HasPrefix(pod.Name, name) {
			continue
		}
		var now int64
		if err := b.Kube.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			return err
		}
		ended = true
	}
	if !ended {
		return fmt.Errorf("%s has no running pod in %s", name, namespace)
	}
	return nil
}
