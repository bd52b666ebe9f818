// Command nodes measures what the end of a node costs: it cuts the power of one of several nodes
// under load and prints JSON lines, one for each service, and how soon all was as before.
//
// Owns: its own namespace, and which nodes take new pods. Reads: responses; watches of pods.
// Writes: Services of Ebb and a plain Deployment, the number of activators and autoscalers,
// shorter timings in config-autoscaler; it moves the components and the gateways away from the
// node. It restores all, but for where these run. Never: asserts a figure.
//
// All times are seconds after the power was cut. A request has failed if it has no answer with
// success within 5 s. What did not end before the run is null.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/result"
)

func main() {
	node := flag.String("node", "b", "the node that ends")
	lasts := flag.Duration("lasts", time.Minute, "how long it has no power: Kubernetes alone replaces its pods after 340 s")
	leader := flag.Bool("leader", false, "with the leading autoscaler on that node")
	image := flag.String("image", "dev.local/ebb-test/autoscale:dev", "image of the services")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *node, *image, *lasts, *leader); err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, name, image string, lasts time.Duration, leader bool) (err error) {
	c, err := cluster.Connect(ctx)
	if err != nil {
		return err
	}
	var undo cluster.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	restore, err := c.SetConfig(ctx, "config-autoscaler", map[string]string{"scale-to-zero-grace-period": "6s", "allow-zero-initial-scale": "true"})
	if err != nil {
		return err
	}
	undo = append(undo, restore)
	place, err := place(ctx, c, name)
	if err != nil {
		return err
	}
	undo = append(undo, func(ctx context.Context) error { return place.Only(ctx, place.All...) })
	if err := place.Clear(ctx, place.ends); err != nil {
		return err
	}
	restore, err = c.ScaleActivators(ctx, int32(len(place.All)))
	if restore != nil {
		undo = append(undo, restore)
	}
	if err != nil {
		return err
	}
	if leader {
		restore, err = place.lead(ctx)
		if restore != nil {
			undo = append(undo, restore)
		}
		if err != nil {
			return err
		}
	}
	namespace, remove, err := c.Namespace(ctx, "nodes")
	if err != nil {
		return err
	}
	undo = append(undo, remove)
	b := bench{Cluster: c, namespace: namespace, image: image, place: place}
	if err := b.services(ctx); err != nil {
		return err
	}
	undo = append(undo, func(ctx context.Context) error { return faults.Node(ctx, name, "back") })
	out := &result.Printer{Bench: "nodes", Out: os.Stdout}
	rows, err := b.cut(ctx, name, lasts, out)
	if err != nil {
		return err
	}
	return out.Summary(rows)
}
