// Command path measures what each hop costs, as JSON lines: the same request to the container's own
// port, through queue-proxy, through activator and queue-proxy, and through the gateway and both.
// queue-proxy is compared with an nginx in the same place: in the pod's network namespace, in front
// of the same container.
//
// Owns: its own namespace and the nginx. Reads: addresses and processes of pods. Writes: one
// Service with exactly one pod and the activator in its path. Never: asserts a figure. The load
// generator shares the machine with everything else, so compare ratios, not absolute figures.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
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
	o := options{rounds: 5, lasts: 4 * time.Second, parallel: []int{1, 32}}
	if os.Getenv("QUICK") == "1" {
		o.rounds, o.lasts = 1, 2*time.Second
	}
	flag.StringVar(&o.image, "image", "dev.local/ebb-test/autoscale:dev", "a service that answers quickly")
	flag.StringVar(&o.path, "path", "/", "path of the requests")
	flag.StringVar(&o.cpu, "cpu", "100m", "the container's CPU request; 0 gives it the scheduler's smallest share")
	flag.StringVar(&o.sidecar, "sidecar-cpu", "", "queue-proxy's CPU request; if empty, the cluster's default")
	flag.IntVar(&o.rounds, "rounds", o.rounds, "number of rounds; each measures every target once")
	flag.DurationVar(&o.lasts, "lasts", o.lasts, "duration of one measurement")
	flag.Func("connections", "numbers of connections, such as 1,32; the summary is about 32", func(list string) error {
		o.parallel = nil
		for number := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(number)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a number of connections", number)
			}
			o.parallel = append(o.parallel, n)
		}
		return nil
	})
	flag.Parse()
	trial.OnCluster("path", nil, func(ctx context.Context, p *trial.Place) error { return run(ctx, p, o) })
}

// target is one path to the pod.
type target struct {
	name    string
	address string
	host    string
	header  string // more header lines
}

func run(ctx context.Context, p *trial.Place, o options) error {
	targets, err := prepare(ctx, p, o)
	if err != nil {
		return err
	}
	out := &result.Printer{Bench: "path", Out: os.Stdout}
	rates, vsNginx, err := rounds(ctx, o, targets, out)
	if err != nil {
		return err
	}
	direct := result.Median(rates["direct"])
	return out.Summary(result.Fields{
		"queue_proxy_rps_vs_nginx":  result.Median(vsNginx),
		"queue_proxy_rps_vs_direct": result.Median(rates["queue-proxy"]) / direct,
		"both_rps_vs_direct":        result.Median(rates["both"]) / direct,
		"nginx_rps_vs_direct":       result.Median(rates["nginx"]) / direct,
		"gateway_rps_vs_direct":     result.Median(rates["gateway"]) / direct,
	})
}
