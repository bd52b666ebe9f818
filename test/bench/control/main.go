// Command control measures the control plane: the seconds from apply to Ready for many services at once, then for one more, and
// the CPU time and anonymous memory of Ebb's components before and after. It prints JSON lines and a summary.
//
// Owns: its namespace. Reads: Services, by a watch, and the components' metrics. Writes: N Services that start no pod, and while
// it runs allow-zero-initial-scale in config-autoscaler. Never: asserts a figure.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

func main() {
	n := flag.Int("n", 200, "services to apply at once; the variable N overrides it")
	image := flag.String("image", "dev.local/ebb-test/autoscale:dev", "image of the services, never started")
	settle := flag.Duration("settle", 20*time.Second, "how long the cluster must be idle before components are measured")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if text := os.Getenv("N"); text != "" {
		var err error
		if *n, err = strconv.Atoi(text); err != nil || *n < 1 {
			fmt.Fprintf(os.Stderr, "control: N=%q: want a whole number, at least 1\n", text)
			os.Exit(2)
		}
	}
	b := bench{n: *n, image: *image, settle: *settle, out: &result.Printer{Bench: "control", Out: os.Stdout}}
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "control:", err)
		stop()
		os.Exit(1)
	}
}

type bench struct {
	*cluster.Cluster
	out       *result.Printer
	n         int
	image     string
	settle    time.Duration
	namespace string
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.Cluster, err = cluster.Connect(ctx); err != nil {
		return err
	}
	var undo cluster.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	undo = append(undo, b.awaitRemoved) // runs last: an interrupted run restores everything before it waits
	restore, err := b.SetConfig(ctx, "config-autoscaler", map[string]string{"allow-zero-initial-scale": "true"})
	if err != nil {
		return err
	}
	undo = append(undo, restore)
	var remove func(context.Context) error
	if b.namespace, remove, err = b.Namespace(ctx, "control"); err != nil {
		return err
	}
	undo = append(undo, remove)

	before, err := b.rest(ctx, "before")
	if err != nil {
		return err
	}
	seconds, err := b.applyAtOnce(ctx, "many", b.n)
	if err != nil {
		return err
	}
	for i, s := range seconds {
		if err := b.out.Line(result.Fields{"service": i, "ready_s": s}); err != nil {
			return err
		}
	}
	after, err := b.rest(ctx, "after")
	if err != nil {
		return err
	}
	more, err := b.applyAtOnce(ctx, "more", 1)
	if err != nil {
		return err
	}
	if err := b.out.Line(result.Fields{"n": b.n, "anon_mib_with_n": after.AnonBytes / (1 << 20)}); err != nil {
		return err
	}
	return b.out.Summary(result.Fields{
		"median_ready_s":       result.Median(seconds),
		"p99_ready_s":          result.Quantile(seconds, 0.99),
		"one_more_ready_s":     more[0],
		"anon_mib_idle":        before.AnonBytes / (1 << 20),
		"anon_mib_per_service": (after.AnonBytes - before.AnonBytes) / (1 << 20) / float64(b.n),
		"cpu_s":                after.CPUSeconds - before.CPUSeconds,
	})
}
