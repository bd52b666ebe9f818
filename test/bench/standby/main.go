// Command standby measures pods that sleep: how long a request to one takes, what one costs, and
// how soon ten pods serve when nine of them slept. It prints JSON lines.
//
// Owns: its own namespace. Reads: responses, PodAutoscalers, and the kubelets' statistics; with
// -trace logs. Writes: Services, and standby in config-autoscaler; with -trace the log level of
// queue-proxies and of the node agents, which start anew. It restores these. Never: asserts a
// figure.
//
// A wake is the first request to a pod whose queue-proxy says that it is frozen, or compressed.
// It is sent to the gateway over a connection that is open already. A warm request is the next
// one to the same pod. Both include the gateway, the activator and queue-proxy. ten_at_once_ms
// is how long the first ten answers take when the pods of one node are woken at once: the
// median of some rounds.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	var o options
	flag.IntVar(&o.wakes, "wakes", 100, "wakes of frozen pods to measure for each language")
	flag.IntVar(&o.compressed, "compressed", 20, "wakes of compressed pods to measure for each language")
	flag.IntVar(&o.rounds, "rounds", 10, "how often the pods of a node are woken at once, for each language")
	flag.IntVar(&o.cold, "cold", 5, "cold starts to measure for each language")
	flag.IntVar(&o.services, "services", 10, "services for each language; one sleeps while another wakes")
	flag.DurationVar(&o.trace, "trace", 0, "tell where the time of wakes was spent that took longer, such as 8ms; 0 for none")
	flag.DurationVar(&o.deep, "deep", time.Minute, "how long until a pod that sleeps is compressed")
	flag.Parse()
	trial.OnCluster("standby", map[string]map[string]string{"config-autoscaler": {
		"scale-to-zero-grace-period": "6s", "standby": "auto", "standby-after": "1s"}},
		func(ctx context.Context, p *trial.Place) error { return run(ctx, p, o) })
}

type options struct {
	wakes, compressed, rounds, cold, services int
	deep, trace                               time.Duration
}

// images are those of the samples, by language.
var images = map[string]string{
	"go":     "dev.local/ebb/hello-go:dev",
	"python": "dev.local/ebb/hello-python:dev",
}

type bench struct {
	*cluster.Cluster
	options
	namespace string
	out       *result.Printer
	lost      atomic.Int64
}

func run(ctx context.Context, p *trial.Place, o options) error {
	if o.trace > 0 {
		restore, err := logAll(ctx, p.Cluster)
		p.Undo = append(p.Undo, restore...)
		if err != nil {
			return err
		}
	}
	b := &bench{Cluster: p.Cluster, options: o, namespace: p.Namespace, out: &result.Printer{Bench: "standby", Out: os.Stdout}}

	summary := result.Fields{}
	groups, err := b.languages(ctx)
	if err != nil {
		return err
	}
	for _, g := range groups {
		if err := b.out.Line(g.figures); err != nil {
			return err
		}
		// The figures of the summary are those of the slower and larger program.
		maps.Copy(summary, g.figures)
		delete(summary, "language")
	}
	burst, err := b.burst(ctx)
	if err != nil {
		return fmt.Errorf("burst: %w", err)
	}
	agent, err := b.agentMemory(ctx)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	summary["burst_ten_served_s"], summary["agent_rss_mib"], summary["lost"] = burst, agent, b.lost.Load()
	return b.out.Summary(summary)
}
