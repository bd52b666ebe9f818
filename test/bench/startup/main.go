// Command startup measures cold starts of programs that a CPU limit slows down, with and without
// autoscaling.ebb.dev/startup-cpu, in turns. It prints JSON lines.
//
// Owns: its own namespace. Reads: watches of its pods, and the responses. Writes: four Services,
// and shorter timings in config-autoscaler, which it restores. Never: asserts a figure.
//
// total_ms is from the request to its answer, start_ms from the start of the user container, which
// a node tells in whole seconds, to the pod's Ready, so it says something in the median only.
// limits_back_ms is from the end of the grace to the status of the pod that has its own limit
// again: below 0 if the pod's Ready was seen late.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

// grace is startup-cpu-grace.
const grace = 3 * time.Second

func main() {
	var o options
	flag.IntVar(&o.n, "n", 10, "cold starts to measure of each service")
	flag.StringVar(&o.limit, "limit", "250m", "CPU limit of the containers")
	flag.StringVar(&o.startup, "startup", "1", "startup-cpu of those that have it")
	flag.Parse()
	trial.OnCluster("startup", map[string]map[string]string{"config-autoscaler": {
		"scale-to-zero-grace-period": "6s", "startup-cpu": "0", "startup-cpu-grace": grace.String()}},
		func(ctx context.Context, p *trial.Place) error { return run(ctx, &bench{Place: p, options: o}) })
}

type options struct {
	n              int
	limit, startup string
}

// programs are the samples that are measured.
var programs = []struct{ name, image string }{
	{"java", "dev.local/ebb/hello-java:dev"},
	{"python", "dev.local/ebb/hello-python:dev"},
}

func run(ctx context.Context, b *bench) error {
	services, err := b.services(ctx)
	if err != nil {
		return err
	}
	out := &result.Printer{Bench: "startup", Out: os.Stdout}
	for i := range b.n {
		for _, s := range services {
			one, err := b.measure(ctx, s)
			if err != nil {
				return fmt.Errorf("cold start %d of %s: %w", i+1, s.name, err)
			}
			s.add(one)
			if err := out.Line(one.fields(s, i+1)); err != nil {
				return err
			}
		}
	}
	return out.Summary(summary(services, b.options))
}
