// Command path measures what each hop costs: the same request to the pod's own port, through queue-proxy, through
// activator and queue-proxy, and through the gateway and all of it, as JSON lines. The reference of queue-proxy is an nginx that
// stands where it does: in the pod's network namespace, in front of the same container.
//
// Owns: a namespace of its own, the nginx. Reads: addresses and processes of pods. Writes: one Service with one pod that stays, and the activator in its path.
// Never: asserts a figure. The load generator shares the machine with everything else, so compare ratios, not absolutes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

type options struct {
	image    string
	cpu      string
	sidecar  string
	path     string
	rounds   int
	lasts    time.Duration
	parallel []int
}

func main() {
	o := options{rounds: 3, lasts: 4 * time.Second, parallel: []int{1, 32}}
	if os.Getenv("QUICK") == "1" {
		o.rounds, o.lasts = 1, 2*time.Second
	}
	flag.StringVar(&o.image, "image", "dev.local/ebb-test/autoscale:dev", "a service that answers quickly")
	flag.StringVar(&o.path, "path", "/", "the path that is requested")
	flag.StringVar(&o.cpu, "cpu", "100m", "what the container requests of the processors; 0 is no more than the scheduler's least share")
	flag.StringVar(&o.sidecar, "sidecar-cpu", "", "what queue-proxy requests of the processors; if empty, what the cluster gives it")
	flag.IntVar(&o.rounds, "rounds", o.rounds, "how often each is measured, interleaved")
	flag.DurationVar(&o.lasts, "lasts", o.lasts, "how long one measurement lasts")
	flag.Func("connections", "how many requests at once, such as 1,32 (32 makes the summary)", func(list string) error {
		o.parallel = nil
		for number := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is no number of connections", number)
			}
			o.parallel = append(o.parallel, n)
		}
		return nil
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "path:", err)
		stop()
		os.Exit(1)
	}
}

// target is one way to the pod.
type target struct {
	name    string
	address string
	host    string
	header  string // further lines
}

func run(ctx context.Context, o options) (err error) {
	c, err := cluster.Connect(ctx)
	if err != nil {
		return err
	}
	var undo cluster.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	namespace, remove, err := c.Namespace(ctx, "path")
	if err != nil {
		return err
	}
	undo = append(undo, remove)
	targets, err := prepare(ctx, c, namespace, o, &undo)
	if err != nil {
		return err
	}
	out := &result.Printer{Bench: "path", Out: os.Stdout}
	rates := map[string][]float64{}
	for _, connections := range o.parallel {
		for round := range o.rounds {
			for _, t := range targets {
				m, err := load(ctx, t, o.path, connections, o.lasts)
				if err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				if err := out.Line(result.Fields{"target": t.name, "connections": connections, "round": round + 1,
					"rps": m.rate, "p50_us": m.p50, "p99_us": m.p99, "failed": m.failed,
					"cpu_us_per_request": m.cpu, "generator_cpu_us_per_request": m.own}); err != nil {
					return err
				}
				if connections == 32 {
					rates[t.name] = append(rates[t.name], m.rate)
				}
			}
		}
	}
	direct := result.Median(rates["direct"])
	return out.Summary(result.Fields{
		"queue_proxy_rps_vs_direct": result.Median(rates["queue-proxy"]) / direct,
		"both_rps_vs_direct":        result.Median(rates["both"]) / direct,
		"nginx_rps_vs_direct":       result.Median(rates["nginx"]) / direct,
		"gateway_rps_vs_direct":     result.Median(rates["gateway"]) / direct,
	})
}
