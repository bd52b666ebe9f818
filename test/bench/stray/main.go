// Command stray measures how many answers are somebody else's when a program sends bytes that no
// request asked for: after the answer to HEAD, 204 or 304, beyond Content-Length, or after the last
// chunk. Queue-proxy, Envoy and net/http's ReverseProxy are in front of the same program, in
// interleaved rounds, as JSON lines. Everything runs on loopback.
//
// Owns: the processes it starts and a temporary directory. Reads: responses. Writes: JSON lines.
// Never: asserts a figure.
//
// On HTTP/1.1 nobody can tell bytes that come after the next request was sent from its answer. So a
// share of zero is possible only for a proxy that does not keep such connections. Each delay has
// proxies of its own, since a proxy may learn from what it has seen. QUICK=1 measures less.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	log.SetOutput(io.Discard) // net/http's client tells of each unasked response
	trial.Main("stray", func(ctx context.Context) error { return run(ctx, os.Getenv("QUICK") != "") })
}

// delays are how long after an answer the unasked bytes come.
var delays = []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}

func run(ctx context.Context, quick bool) error {
	dir, err := os.MkdirTemp("", "bench-stray-")
	if err != nil {
		return fmt.Errorf("make a directory for the proxies: %w", err)
	}
	defer os.RemoveAll(dir)
	tools, err := build(ctx, dir)
	if err != nil {
		return err
	}
	rounds, span := 5, 2*time.Second
	if quick {
		rounds, span = 2, 500*time.Millisecond
	}
	printer := &result.Printer{Bench: "stray", Out: os.Stdout}
	all := map[string]*outcome{}
	for _, delay := range delays {
		if err := measure(ctx, printer, dir, tools, delay, rounds, span, all); err != nil {
			return fmt.Errorf("bytes %s after the answer: %w", delay, err)
		}
	}
	summary := result.Fields{}
	for name, o := range all {
		summary[name+"_stray_per_million"] = o.perMillion(o.stray)
		summary[name+"_failed_per_million"] = o.perMillion(o.failed)
		summary[name+"_requests"] = o.requests
	}
	return printer.Summary(summary)
}

// measure prints a line for each target with this delay, and adds to all.
func measure(ctx context.Context, printer *result.Printer, dir string, tools tools, delay time.Duration, rounds int, span time.Duration, all map[string]*outcome) error {
	program, err := startProgram(delay)
	if err != nil {
		return err
	}
	defer program.close()
	targets, err := startAll(ctx, dir, tools, program.address)
	defer func() {
		for _, t := range targets {
			t.stop()
		}
	}()
	if err != nil {
		return err
	}
	seen := map[string]*outcome{}
	order := slices.Clone(targets)
	for range rounds {
		for _, t := range order {
			if seen[t.name] == nil {
				seen[t.name] = &outcome{}
			}
			seen[t.name].add(load(ctx, t.address, span))
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	for _, t := range targets {
		o := seen[t.name]
		if o.requests == 0 || o.faults == 0 {
			return fmt.Errorf("%s: %d requests were answered, %d of the program's faults happened", t.name, o.requests, o.faults)
		}
		if all[t.name] == nil {
			all[t.name] = &outcome{}
		}
		all[t.name].add(*o)
		if err := printer.Line(result.Fields{"target": t.name, "delay_ms": result.Milliseconds(delay), "rounds": rounds, "requests": o.requests, "faults": o.faults,
			"stray": o.stray, "stray_per_million": o.perMillion(o.stray), "stray_per_fault": float64(o.stray) / float64(o.faults), "failed": o.failed, "failed_per_million": o.perMillion(o.failed)}); err != nil {
			return err
		}
	}
	return nil
}
