package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
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

// memoryAwake measures what the first pod of each sample takes while it works.
func (b *bench) memoryAwake(ctx context.Context, groups []*group) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	working := make(chan error, len(groups))
	for _, g := range groups {
		go func() {
			for ctx.Err() == nil {
				if _, err := b.request(context.WithoutCancel(ctx), g.sleepers[0]); err != nil {
					working <- err
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
			working <- nil
		}()
	}
	err := settled(ctx)
	for _, g := range groups {
		var used usage
		if err == nil {
			used, err = b.usage(ctx, b.namespace, func(pod string) bool { return pod == g.sleepers[0].pod })
		}
		g.awakeMiB, g.figures["awake_memory_mib"] = used.memoryMiB, used.memoryMiB
	}
	cancel()
	for _, g := range groups {
		err = errors.Join(err, <-working)
		g.sleepers[0].woke = time.Now()
	}
	return err
}

// measureAsleep measures what pods cost that have been asleep for long. What zram takes is theirs
// in proportion to what they were relieved of.
func (b *bench) measureAsleep(ctx context.Context, groups []*group) error {
	samples := map[string]*group{}
	for _, g := range groups {
		for _, s := range g.sleepers {
			if err := b.awaitAsleep(ctx, s, compressed, b.deep); err != nil {
				return err
			}
			samples[s.pod] = g
		}
	}
	before, after := make([]usage, len(groups)), make([]usage, len(groups))
	var agentBefore, agentAfter usage
	for _, one := range []struct {
		pods  []usage
		agent *usage
	}{{before, &agentBefore}, {after, &agentAfter}} {
		if err := settled(ctx); err != nil {
			return err
		}
		var err error
		for i, g := range groups {
			if one.pods[i], err = b.usage(ctx, b.namespace, func(pod string) bool { return samples[pod] == g }); err != nil {
				return err
			}
		}
		if *one.agent, err = b.usage(ctx, cluster.System, isAgent); err != nil {
			return err
		}
		if one.agent == &agentBefore {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(restFor):
			}
		}
	}
	n, relieved := float64(b.services), 0.0
	for i, g := range groups {
		relieved += max(g.awakeMiB-after[i].memoryMiB/n, 0)
	}
	agent := 1000 * (agentAfter.cpuSeconds - agentBefore.cpuSeconds) / agentAfter.at.Sub(agentBefore.at).Seconds() / float64(len(samples))
	for i, g := range groups {
		rss := after[i].memoryMiB / n
		swapped := zram() / n * max(g.awakeMiB-rss, 0) / relieved
		g.figures["asleep_cpu_millicores"] = agent + 1000*(after[i].cpuSeconds-before[i].cpuSeconds)/after[i].at.Sub(before[i].at).Seconds()/n
		g.figures["asleep_agent_cpu_millicores"] = agent
		g.figures["asleep_rss_mib"], g.figures["asleep_zram_mib"] = rss, swapped
		g.figures["asleep_memory_ratio"] = (rss + swapped) / g.awakeMiB
	}
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
