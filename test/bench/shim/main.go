// Command shim measures what the shim costs: the same program as a server called directly, as a
// server behind the shim, as a process for each request, and started directly without HTTP, in
// interleaved rounds, as JSON lines. Everything runs on loopback.
//
// Owns: the processes it starts and a temporary directory. Reads: /proc. Writes: JSON lines. Never:
// asserts a figure.
//
// CPU is the user and system time of the shim and the program's processes, divided by the requests
// of all rounds. Nothing is pinned: client, shim and program share the machine's CPUs. QUICK=1
// measures less.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	trial.Main("shim", func(ctx context.Context) error { return run(ctx, os.Getenv("QUICK") != "") })
}

// figures are the rounds of one target with so many connections. The CPU time is of all of them
// together, because the kernel tells it in steps of 10 ms.
type figures struct {
	rps, p50, p99 []float64
	cpu           time.Duration
	requests      int
}

func (f *figures) cpuPerRequest() float64 { return float64(f.cpu.Microseconds()) / float64(f.requests) }

func run(ctx context.Context, quick bool) error {
	dir, err := os.MkdirTemp("", "bench-shim-")
	if err != nil {
		return fmt.Errorf("make a directory for the programs: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := process.Build(ctx, dir, "shim", "test/images/words"); err != nil {
		return err
	}
	targets, err := startAll(ctx, filepath.Join(dir, "shim"), filepath.Join(dir, "words"))
	defer func() {
		for _, t := range targets {
			t.stop()
		}
	}()
	if err != nil {
		return err
	}
	rounds, span := 15, time.Second
	if quick {
		rounds, span = 3, 300*time.Millisecond
	}
	printer := &result.Printer{Bench: "shim", Out: os.Stdout}
	summary := result.Fields{}
	for _, connections := range []int{1, 8} {
		all := map[string]*figures{}
		order := slices.Clone(targets)
		for range rounds {
			for _, t := range order {
				m, err := measure(ctx, t, connections, span)
				if err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				f := all[t.name]
				if f == nil {
					f = &figures{}
					all[t.name] = f
				}
				f.rps, f.p50, f.p99 = append(f.rps, m.rps), append(f.p50, m.p50), append(f.p99, m.p99)
				f.cpu, f.requests = f.cpu+m.cpu, f.requests+m.requests
			}
			slices.Reverse(order)
		}
		for _, t := range targets {
			f := all[t.name]
			if err := printer.Line(result.Fields{"target": t.name, "connections": connections, "rounds": rounds, "rps": result.Median(f.rps),
				"cpu_us_per_request": f.cpuPerRequest(), "p50_us": result.Median(f.p50), "p99_us": result.Median(f.p99)}); err != nil {
				return err
			}
			summary[fmt.Sprintf("%s_%d_rps", t.name, connections)] = result.Median(f.rps)
			summary[fmt.Sprintf("%s_%d_p50_us", t.name, connections)] = result.Median(f.p50)
			summary[fmt.Sprintf("%s_%d_cpu_us", t.name, connections)] = f.cpuPerRequest()
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "shim")); err == nil {
		summary["binary_mib"] = float64(info.Size()) / (1 << 20)
	}
	return printer.Summary(summary)
}
