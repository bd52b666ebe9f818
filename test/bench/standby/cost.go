package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// restFor is how long pods sleep undisturbed while their CPU time is measured.
const restFor = time.Minute

// usage is what the containers of pods have used, by the kubelets' statistics.
type usage struct {
	cpuSeconds, memoryMiB float64
	at                    time.Time
}

// usage adds up the containers of the pods that match. The pod's pause container is none of them.
func (b *bench) usage(ctx context.Context, namespace string, match func(pod string) bool) (usage, error) {
	nodes, err := b.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return usage{}, fmt.Errorf("list nodes: %w", err)
	}
	total := usage{at: time.Now()}
	for _, node := range nodes.Items {
		text, err := b.Kube.CoreV1().RESTClient().Get().Resource("nodes").Name(node.Name).SubResource("proxy").
			Suffix("stats/summary").Param("only_cpu_and_memory", "true").DoRaw(ctx)
		if err != nil {
			return usage{}, fmt.Errorf("read the statistics of %s: %w", node.Name, err)
		}
		var summary struct {
			Pods []struct {
				PodRef     struct{ Name, Namespace string }
				Containers []struct {
					CPU    struct{ UsageCoreNanoSeconds float64 }
					Memory struct{ RSSBytes float64 }
				}
			}
		}
		if err := json.Unmarshal(text, &summary); err != nil {
			return usage{}, fmt.Errorf("read the statistics of %s: %w", node.Name, err)
		}
		for _, pod := range summary.Pods {
			if pod.PodRef.Namespace != namespace || !match(pod.PodRef.Name) {
				continue
			}
			for _, container := range pod.Containers {
				total.cpuSeconds += container.CPU.UsageCoreNanoSeconds / 1e9
				total.memoryMiB += container.Memory.RSSBytes / (1 << 20)
			}
		}
	}
	return total, nil
}

// zram is what compressed memory takes on this machine, in MiB. It is 0 without zram, and when the
// nodes are other machines.
func zram() (mib float64) {
	files, err := filepath.Glob("/sys/block/zram*/mm_stat")
	if err != nil {
		return 0
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it was removed
		}
		var data, compressed, used float64
		if _, err := fmt.Sscan(string(text), &data, &compressed, &used); err == nil {
			mib += used / (1 << 20)
		}
	}
	return mib
}

// settled waits for statistics that are as new as the present: a kubelet reads them every ten to
// fifteen seconds.
func settled(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(20 * time.Second):
		return nil
	}
}

// memoryAwake is what the pod of a service takes while it works.
func (b *bench) memoryAwake(ctx context.Context, s *sleeper) (mib float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	working := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if _, err := b.request(context.WithoutCancel(ctx), s); err != nil {
				working <- err
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
		working <- nil
	}()
	err = settled(ctx)
	var used usage
	if err == nil {
		used, err = b.usage(ctx, b.namespace, func(pod string) bool { return pod == s.pod })
	}
	cancel()
	if failed := <-working; err == nil {
		err = failed
	}
	s.woke = time.Now()
	return used.memoryMiB, err
}

// measureAsleep measures what pods cost that have been asleep for long. zramBefore is what zram
// took before they were compressed.
func (b *bench) measureAsleep(ctx context.Context, sleepers []*sleeper, awakeMiB, zramBefore float64, figures result.Fields) error {
	names := map[string]bool{}
	for _, s := range sleepers {
		if err := b.awaitAsleep(ctx, s, b.deep); err != nil {
			return err
		}
		names[s.pod] = true
	}
	pods := func(pod string) bool { return names[pod] }
	var before, after, agentBefore, agentAfter usage
	for _, one := range []struct{ pods, agent *usage }{{&before, &agentBefore}, {&after, &agentAfter}} {
		if err := settled(ctx); err != nil {
			return err
		}
		var err error
		if *one.pods, err = b.usage(ctx, b.namespace, pods); err != nil {
			return err
		}
		if *one.agent, err = b.usage(ctx, cluster.System, isAgent); err != nil {
			return err
		}
		if one.pods == &before {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(restFor):
			}
		}
	}
	n := float64(len(sleepers))
	seconds := after.at.Sub(before.at).Seconds() * n
	figures["asleep_cpu_millicores"] = 1000 * (after.cpuSeconds - before.cpuSeconds + agentAfter.cpuSeconds - agentBefore.cpuSeconds) / seconds
	figures["asleep_agent_cpu_millicores"] = 1000 * (agentAfter.cpuSeconds - agentBefore.cpuSeconds) / seconds
	figures["awake_memory_mib"] = awakeMiB
	figures["asleep_rss_mib"] = after.memoryMiB / n
	figures["asleep_zram_mib"] = (zram() - zramBefore) / n
	figures["asleep_memory_ratio"] = (after.memoryMiB + zram() - zramBefore) / n / awakeMiB
	return nil
}

func isAgent(pod string) bool { return strings.HasPrefix(pod, "node-agent-") }

// agentMemory is what the agent of one node takes, its guard included.
func (b *bench) agentMemory(ctx context.Context) (float64, error) {
	nodes, err := b.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list nodes: %w", err)
	}
	used, err := b.usage(ctx, cluster.System, isAgent)
	return used.memoryMiB / float64(len(nodes.Items)), err
}
