// Command node-agent freezes and thaws the containers of pods that sleep, for the queue-proxies of
// its node, and says which nodes it reaches. As "node-agent guard" it is the second process that
// thaws everything when the first one dies or stalls.
//
// Owns: the cgroup files that package cgroup names. Reads: the pods of its node. Writes: these
// files. Never: decides who sleeps, or is needed for a pod to run.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"k8s.io/client-go/rest"

	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/node-agent/internal/cgroup"
	"ebb.dev/ebb/node-agent/internal/guard"
	"ebb.dev/ebb/node-agent/internal/link"
	"ebb.dev/ebb/node-agent/internal/pods"
	"ebb.dev/ebb/node-agent/internal/witness"
	"ebb.dev/ebb/standby"
)

func main() {
	telemetry.Main("node-agent", func(ctx context.Context, get func(string) string, stdout io.Writer) error {
		return start(ctx, os.Args[1:], env.New(get), stdout)
	})
}

// start is the agent, or the guard if that is the argument.
func start(ctx context.Context, args []string, e *env.Reader, stdout io.Writer) error {
	// A few megabytes on every node: the collector may work more often.
	debug.SetGCPercent(50)
	mount := e.Text("EBB_CGROUPS", "/sys/fs/cgroup", "Where the node's cgroups are mounted.")
	parent := e.Text("EBB_CGROUP_ROOT", "", "The kubelet's --cgroup-root.")
	socket := e.Text("EBB_GUARD_SOCKET", "/run/ebb/guard", "Path of the socket between agent and guard.")
	tree, err := cgroup.Open(mount, parent)
	if err != nil {
		return err
	}
	defer tree.Close()
	switch {
	case len(args) == 0:
		return serve(ctx, tree, socket, e, stdout)
	case args[0] == "guard":
		log, _ := telemetry.NewLogger(stdout, "node-agent-guard")
		return (&guard.Guard{Socket: socket, ThawAll: tree.ThawAll, Log: log}).Run(ctx)
	}
	return fmt.Errorf("unknown role %q: it is empty, for the agent, or guard", args[0])
}

func serve(ctx context.Context, tree *cgroup.Tree, socket string, e *env.Reader, stdout io.Writer) error {
	log, level := telemetry.NewLogger(stdout, "node-agent")
	if err := level.UnmarshalText([]byte(e.Text("EBB_LOG_LEVEL", "info", "What is logged: debug, info, warn or error. With debug, the times of all work on containers."))); err != nil {
		e.Refuse(fmt.Errorf("variable EBB_LOG_LEVEL: %w", err))
	}
	node := e.Needed("EBB_NODE_NAME", "Name of this node.")
	metrics := e.Text("EBB_LISTEN_METRICS", "", "Address of /metrics; none if not set.")
	reach := e.Text("EBB_LISTEN_REACH", "", "Address at which autoscalers ask which nodes this one reaches; none if not set.")
	tokens := e.Text("EBB_TOKENS", "/etc/ebb/tokens", "Folder with the tokens of who may ask.")
	if e.Err() != nil {
		return e.Err()
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	source, err := pods.Source(config, node)
	if err != nil {
		return err
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return fmt.Errorf("find out whether the node has swap: %w", err)
	}
	thawed, err := tree.ThawAll()
	if err != nil {
		return fmt.Errorf("thaw what an earlier agent left: %w", err)
	}
	swap := cgroup.HasSwap(string(meminfo))
	log.Info("started", "version", version.Version, "node", node, "swap", swap, "thawed", thawed)

	post, registry, all := guard.NewPost(), telemetry.NewRegistry(), pods.New()
	all.Cgroups, all.Port, all.Log = tree, standby.Port, log
	all.Link = link.Options{Allowed: post.Allowed, Away: post.Away, Swap: swap, Pool: link.NewPool(), Clock: link.SinceBoot, Count: observe(registry, all.Count, post.Allowed), Log: log}
	parts := []run.Part{
		{Name: "guard", Run: func(ctx context.Context) error { return post.Serve(ctx, socket) }},
		{Name: "pods", Run: func(ctx context.Context) error { return all.Run(ctx, source) }},
	}
	if reach != "" {
		parts = append(parts, run.Part{Name: "witness", Run: (&witness.Witness{Node: node, Address: reach, Tokens: tokens, Log: log}).Run})
	}
	if metrics != "" {
		parts = append(parts, telemetry.MetricsServer(metrics, registry))
	}
	return run.All(ctx, parts...)
}
