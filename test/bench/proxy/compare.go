package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"ebb.dev/ebb/test/internal/loopback"
	"ebb.dev/ebb/test/internal/result"
)

// compare measures the queue-proxy and activator in the directory before against those of this
// tree. All of them run at the same time and are measured in turn, in many short rounds of
// alternating order, so noise of the machine affects both. It prints the median of the rounds'
// ratios.
func compare(ctx context.Context, printer *result.Printer, quick bool, ours tools, before string, backend *backend, cluster *loopback.Cluster) error {
	old := ours
	old.queueProxy, old.activator = filepath.Join(before, "queue-proxy"), filepath.Join(before, "activator")
	var now, then []*target
	defer func() { stopAll(append(now, then...)) }()
	for _, side := range []struct {
		tools   tools
		suffix  string
		targets *[]*target
	}{{ours, "", &now}, {old, "-before", &then}} {
		direct, err := startQueueProxy(ctx, side.tools.queueProxy, "queue-proxy", 0, backend.http, benchRevision)
		if err != nil {
			return err
		}
		*side.targets = append(*side.targets, direct)
		calls, err := startQueueProxy(ctx, side.tools.queueProxy, "queue-proxy-grpc", 0, backend.grpc, benchRevision)
		if err != nil {
			return err
		}
		calls.http, calls.grpc = "", calls.http
		*side.targets = append(*side.targets, calls)
		activators, err := startActivator(ctx, side.tools, cluster, backend, side.suffix)
		*side.targets = append(*side.targets, activators...)
		if err != nil {
			return err
		}
	}
	rounds, span := 40, 400*time.Millisecond
	if quick {
		rounds, span = 12, 250*time.Millisecond
	}
	summary := result.Fields{}
	for i, t := range now {
		if t.http == "" && t.grpc == "" {
			continue // it runs behind another proxy
		}
		take := measure
		if t.grpc != "" {
			take = measureCalls
		}
		for _, s := range []shape{{1, 13}, {32, 13}} {
			ratios, err := alternate(ctx, t, then[i], s, rounds, span, take)
			if err != nil {
				return err
			}
			ratios["target"], ratios["connections"] = t.name, s.connections
			if err := printer.Line(ratios); err != nil {
				return err
			}
			summary[fmt.Sprintf("%s_%d_cpu_vs_before", t.name, s.connections)] = ratios["cpu_vs_before"]
			summary[fmt.Sprintf("%s_%d_p50_vs_before", t.name, s.connections)] = ratios["p50_vs_before"]
		}
	}
	return printer.Summary(summary)
}

// alternate measures two targets in turn and returns the medians of the rounds' ratios.
func alternate(ctx context.Context, now, then *target, s shape, rounds int, span time.Duration,
	measure func(context.Context, *target, shape, time.Duration) (measured, error)) (result.Fields, error) {
	all := map[string]map[shape]*figures{}
	pair := []struct {
		name string
		t    *target
	}{{"now", now}, {"before", then}}
	for range rounds {
		for _, side := range pair {
			m, err := measure(ctx, side.t, s, span)
			if err != nil {
				return nil, fmt.Errorf("%w%s", err, side.t.fate())
			}
			add(all, side.name, s, m)
		}
		slices.Reverse(pair)
	}
	divide := func(a, b float64) float64 { return a / b }
	a, b := all["now"][s], all["before"][s]
	return result.Fields{
		"rounds": rounds, "cpu_vs_before": ratio(all, "now", "before", s), "p50_vs_before": paired(a.p50, b.p50, divide),
		"rps_vs_before": paired(a.rps, b.rps, divide), "cpu_us_per_request": result.Median(a.cpu), "p50_us": result.Median(a.p50),
	}, nil
}
