// Package process is the autoscaler as one process, or as a part of one.
//
// Owns: its environment, what it is built of (build.go), its ports, and the order in which its
// parts start; they stop the other way round, so it gives its leases up and hands over first.
// Reads: the environment. Writes: nothing. Never: decides about a revision.
package process

import (
	"context"
	"io"

	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/wire"
)

// options is what the environment says to autoscalers alone.
type options struct {
	ip, node   string
	scrapePort int
}

// Run is the autoscaler until ctx is done. env is its environment.
func Run(ctx context.Context, env func(string) string, stdout io.Writer) error {
	c := component.New("autoscaler", env, stdout)
	c.QPS, c.Burst = callsPerSecond, callsAtOnce
	o := options{
		ip:         c.Env.NeededIP("POD_IP", "Address of this pod.").String(),
		node:       c.Env.Text("EBB_NODE_NAME", "", "Name of this node. Without it, nothing is found out about nodes that do not answer."),
		scrapePort: c.Env.Port("EBB_SCRAPE_PORT", wire.PortMetrics, "The pods' port for stats."),
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	keys, err := c.Keys(ctx)
	if err != nil {
		return err
	}
	p, err := build(c, o, keys)
	if err != nil {
		return err
	}
	defer p.events.Shutdown()
	defer p.scraper.Close()
	now := c.Settings.Load()
	c.Log.Info("autoscaler is built", "version", version.Version, "pod", c.Pod, "buckets", now.LeaderElection.Buckets, "class", now.Autoscaler.Class)
	return c.Run(ctx,
		run.Part{Name: "orders", Run: func(ctx context.Context) error { return p.writer.Run(ctx, p.engine.Found) }},
		run.Part{Name: "decisions", Run: p.engine.Run},
		run.Part{Name: "memory of sleeping pods", Run: p.memory.Run},
		run.Part{Name: "CPU of pods that start", Run: p.booster.Run},
		run.Part{Name: "informers", Run: p.follow},
		run.Part{Name: "memory of load", Run: func(ctx context.Context) error { return p.records.Run(ctx, p.engine.Each) }},
		run.Part{Name: "what judges of rollouts ask for", Run: p.witness.Run},
		run.Part{Name: "nodes that do not answer", Run: p.nodes.Run},
		run.Part{Name: "activators to ask", Run: p.others.Run},
		run.Part{Name: "node agents to ask", Run: p.agents.Run},
		run.Part{Name: "nodes that are told to be silent", Run: p.publisher.Run},
		run.Part{Name: "API server's front proxy", Run: p.access.Run},
		run.Part{Name: "certificate of the API", Run: p.rotator.Run},
		run.Part{Name: "API", Run: (&viewServer{p.rotator.Certificate, p.access.Verify, p.view}).listen(c.Address(wire.PortView))},
		run.Part{Name: "streams of the API", Run: p.view.Run}, // they end before their server
		telemetry.Server("stats", c.Address(wire.PortStats), p.stats),
		// Stopping, it gives its leases up, tells its successors what it knows, and forwards to
		// them what still comes here.
		run.Part{Name: "handing over", Run: p.handover.Linger},
		run.Part{Name: "election", Run: p.elect},
	)
}
