package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// experiment is one of the papers'.
type experiment struct {
	name string
	run  func(*bench, context.Context) error
}

var experiments = []experiment{
	{"hello-baseline", (*bench).hello},
	{"http-workload", (*bench).httpWorkload},
	{"payload", (*bench).payload},
	{"call-path", (*bench).callPath},
	{"breakdown", (*bench).breakdown},
	{"steady", (*bench).steady},
	{"bursty", (*bench).bursty},
	{"nine-outstanding", (*bench).nine},
	{"sticky-connections", (*bench).sticky},
	{"hpa", (*bench).hpa},
	{"workers", (*bench).workers},
	{"watchdog-modes", (*bench).watchdog},
	{"success-ratio", (*bench).success},
	{"concurrency", (*bench).concurrency},
	{"backoff", (*bench).backoff},
	{"sieve", (*bench).sieve},
}

func names() (all []string) {
	for _, e := range experiments {
		all = append(all, e.name)
	}
	return all
}

func known(wanted []string) error {
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("there is no experiment %q, but %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// bench is one experiment: its output, its clients and its namespace.
type bench struct {
	*cluster.Cluster
	options
	out        *result.Printer
	experiment string
	namespace  string
	began      string // of the whole run, which its lines tell
}

// run runs one experiment after another. One that fails says so in a line, and the next begins.
func run(ctx context.Context, c *cluster.Cluster, o options, out *result.Printer) error {
	began := time.Now().UTC()
	var failed []string
	for _, e := range experiments {
		if !slices.Contains(o.experiments, e.name) || ctx.Err() != nil {
			continue
		}
		b := &bench{Cluster: c, options: o, out: out, experiment: e.name, began: began.Format(time.RFC3339)}
		if err := b.one(ctx, e); err != nil {
			failed = append(failed, e.name)
			fmt.Fprintf(os.Stderr, "seeds: %s: %v\n", e.name, err)
			if err := b.line(result.Fields{"error": err.Error()}); err != nil {
				return err
			}
		}
	}
	if err := out.Summary(result.Fields{"run": began.Format(time.RFC3339), "failed": failed, "minutes": time.Since(began).Minutes()}); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s failed", strings.Join(failed, ", "))
	}
	return ctx.Err()
}

// one gives an experiment a namespace, and waits until its pods are gone, so that they take no CPU
// from the next one.
func (b *bench) one(ctx context.Context, e experiment) (err error) {
	namespace, remove, err := b.Namespace(ctx, "seeds")
	if err != nil {
		return err
	}
	b.namespace = namespace
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		err = errors.Join(err, remove(ctx), b.awaitNothing(ctx))
	}()
	busy := busy()
	began := time.Now()
	if err := e.run(b, ctx); err != nil {
		return err
	}
	version, err := b.Kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("read the version of Kubernetes: %w", err)
	}
	return b.line(result.Fields{"done": true, "scale": b.scale, "cpus": runtime.NumCPU(), "kubernetes": version.GitVersion, "load_before": busy,
		"took_s": time.Since(began).Seconds()})
}

// busy is the load average of the last minute, nil where the kernel does not tell: what else the
// machine does.
func busy() any {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(data), " ")
	average, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return nil
	}
	return average
}

// line prints one line of this experiment.
func (b *bench) line(fields result.Fields) error {
	fields["experiment"], fields["run"] = b.experiment, b.began
	return b.out.Line(fields)
}

// full reports whether the experiments have the papers' size.
func (b *bench) full() bool { return b.scale >= 1 }

// count is a number of the paper at this scale, and at least least.
func (b *bench) count(paper, least int) int { return max(least, int(float64(paper)*b.scale)) }

// span is a duration of the paper at this scale, and at least least.
func (b *bench) span(paper, least time.Duration) time.Duration {
	return max(least, time.Duration(float64(paper)*b.scale))
}

// rounds is how often each cell is measured.
func (b *bench) rounds() int {
	if b.full() {
		return 5
	}
	return 2
}

// either is the paper's list, or a shorter one below the full size.
func either[T any](b *bench, paper, shorter []T) []T {
	if b.full() {
		return paper
	}
	return shorter
}
