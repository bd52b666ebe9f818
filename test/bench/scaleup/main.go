// Command scaleup measures how fast pods follow load, and compares it with a floor: a plain
// Deployment of the same image that is scaled to as many pods. It prints one JSON line for each
// experiment and floor, and a summary. test/bench/seeds has the papers' experiments.
//
// Owns: its own namespace. Reads: pods, by a watch, and responses. Writes: Services, one
// Deployment. Never: asserts a figure.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	b := bench{summary: result.Fields{}, out: &result.Printer{Bench: "scaleup", Out: os.Stdout}}
	only := flag.String("only", "steady,nine,adaptive", "experiments to run, separated by commas")
	flag.StringVar(&b.image, "image", "dev.local/ebb-test/autoscale:dev", "the test image autoscale")
	flag.DurationVar(&b.lasts, "lasts", 60*time.Second, "duration of the loads of steady and nine; adaptive takes half of it")
	flag.DurationVar(&b.fixedLasts, "fixed-lasts", 6*time.Second, "duration of the loads of nine at a fixed number of pods")
	flag.IntVar(&b.rounds, "rounds", 3, "rounds of steady; rounds after the first take a third of the time")
	flag.Parse()
	if b.rounds < 1 {
		fmt.Fprintln(os.Stderr, "scaleup: -rounds must be at least 1")
		os.Exit(2)
	}
	trial.OnCluster("scaleup", nil, func(ctx context.Context, p *trial.Place) error {
		b.Place = p
		return b.run(ctx, strings.Split(*only, ","))
	})
}

// bench is one run: its output, its clients and the summary so far.
type bench struct {
	*trial.Place
	out               *result.Printer
	summary           result.Fields
	image             string
	lasts, fixedLasts time.Duration
	rounds            int
}

type experiment struct {
	name string
	run  func(context.Context) error
}

func (b *bench) run(ctx context.Context, only []string) error {
	experiments := []experiment{
		{"steady", b.steady},
		{"nine", b.nine},
		{"adaptive", b.adaptive},
	}
	for _, name := range only {
		if !slices.ContainsFunc(experiments, func(e experiment) bool { return e.name == name }) {
			return fmt.Errorf("there is no experiment %q", name)
		}
	}
	for _, e := range experiments {
		if !slices.Contains(only, e.name) {
			continue
		}
		if err := e.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	return b.out.Summary(b.summary)
}
