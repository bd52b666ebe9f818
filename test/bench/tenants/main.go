// Command tenants measures what one tenant's flood costs another tenant: steady requests through a
// real activator and queue-proxy, first alone, then beside a flood of requests for a revision of
// another namespace, as JSON lines. Everything runs on loopback; the activator's cluster is an API
// server in memory.
//
// Owns: the processes it starts and a temporary directory. Reads: /proc. Writes: JSON lines. Never:
// asserts a figure; the summary line has the figures that have goals.
//
// The flood is slow readers, HTTP/2 clients with a window of zero, request heads that never end,
// uploads that the pod does not read, and connections without a request. It replaces each
// connection that the activator closes. The flood's pods are a plain server, because a tenant may
// run what it likes. Nothing is pinned: generator, activator and pods share the machine's CPUs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// bench is what the flags say.
type bench struct {
	connections int
	kind        int
	lasts       time.Duration
	out         *result.Printer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	b := &bench{out: &result.Printer{Bench: "tenants", Out: os.Stdout}}
	flag.IntVar(&b.connections, "connections", 25_000, "connections of the flood; fewer if the process may not open so many files")
	flag.IntVar(&b.kind, "kind", -1, "only this kind of flood (the case in flood.go), with its share of the connections; -1: all")
	flag.DurationVar(&b.lasts, "lasts", 20*time.Second, "how long requests are measured alone, and again beside the flood")
	pod := flag.Bool("pod", false, "be the server of both tenants; the benchmark starts it")
	flag.Parse()
	run := b.run
	if *pod {
		run = serve
	}
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tenants:", err)
		stop()
		os.Exit(1)
	}
}

// files raises the limit of open files for this process and those it starts, and returns it. The
// activator needs two for each connection.
func files(connections int) (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	wanted := uint64(2*connections + 4096)
	for _, raised := range []syscall.Rlimit{{Cur: wanted, Max: max(wanted, limit.Max)}, {Cur: min(wanted, limit.Max), Max: limit.Max}} {
		if limit.Cur < wanted && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			limit = raised
		}
	}
	return int(limit.Cur), nil
}
