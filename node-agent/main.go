// Command node-agent freezes and thaws the containers of pods that sleep, for the queue-proxies of
// its node. As "node-agent guard" it is the second process that thaws everything when the first one
// dies or stalls.
//
// Owns: the cgroup files that package cgroup names. Reads: the pods of its node. Writes: these
// files. Never: decides who sleeps, or is needed for a pod to run.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"k8s.io/client-go/rest"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/node-agent/internal/cgroup"
	"ebb.dev/ebb/node-agent/internal/guard"
	"ebb.dev/ebb/node-agent/internal/link"
	"ebb.dev/ebb/node-agent/internal/pods"
	"ebb.dev/ebb/standby"
)

func main() {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	if err := start(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "node-agent:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("node-agent", flag.ContinueOnError)
	node := flags.String("node", os.Getenv("NODE_NAME"), "name of this node")
	mount := flags.String("cgroups", "/sys/fs/cgroup", "where the node's cgroups are mounted")
	parent := flags.String("cgroup-root", "", "the kubelet's --cgroup-root")
	socket := flags.String("socket", "/run/ebb/guard", "path of the socket between agent and guard")
	metrics := flags.String("metrics", "", "address of /metrics; none if empty")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// A few megabytes on every node: the collector may work more often.
	debug.SetGCPercent(50)
	tree, err := cgroup.Open(*mount, *parent)
	if err != nil {
		return err
	}
	defer tree.Close()
	switch role := flags.Arg(0); role {
	case "guard":
		log, _ := telemetry.NewLogger(stdout, "node-agent-guard")
		return (&guard.Guard{Socket: *socket, ThawAll: tree.ThawAll, Log: log}).Run(ctx)
	case "":
		return serve(ctx, tree, *node, *socket, *metrics, stdout)
	default:
		return fmt.Errorf("unknown role %q: it is empty, for the agent, or guard", role)
	}
}

func serve(ctx context.Context, tree *cgroup.Tree, node, socket, metrics string, stdout io.Writer) error {
	log, _ := telemetry.NewLogger(stdout, "node-agent")
	if node == "" {
		return fmt.Errorf("the name of this node is missing: set NODE_NAME or -node")
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
	if metrics != "" {
		parts = append(parts, telemetry.Server("metrics", metrics, telemetry.Metrics(registry)))
	}
	return run.All(ctx, parts...)
}
