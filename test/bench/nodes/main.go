// Command nodes measures what the end of a node costs: it cuts the power of one of several nodes
// under load and prints JSON lines, one for each service, and how soon all was as before. With
// -false it does for a time what looks like the end of a node and is not, and counts what was
// replaced nevertheless.
//
// Owns: its own namespace, and which nodes take new pods. Reads: responses; pods; events of nodes.
// Writes: Services of Ebb and plain Deployments, the number of activators and autoscalers, shorter
// timings in config-autoscaler; it moves the components and the gateways away from the node. It
// restores all, but for where these run. Never: asserts a figure.
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
	gather := flag.Bool("gather", false, "with activators on that node and on the autoscaler's alone, as after a drain: only node agents ask from a third place")
	still := flag.Duration("false", 0, "do not end it: for so long, do what must replace nothing, and count what was replaced (1h)")
	image := flag.String("image", "dev.local/ebb-test/autoscale:dev", "image of the services")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, options{*node, *image, *lasts, *still, *leader, *gather}); err != nil {
		fmt.Fprintln(os.Stderr, "nodes:", err)
		stop()
		os.Exit(1)
	}
}

type options struct {
	node, image  string
	lasts, still time.Duration
	leader       bool
	gather       bool
}

func run(ctx context.Context, o options) (err error) {
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
	place, err := place(ctx, c, o.node)
	if err != nil {
		return err
	}
	if err := place.Room(ctx); err != nil {
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
	if o.leader {
		restore, err = place.lead(ctx)
		if restore != nil {
			undo = append(undo, restore)
		}
		if err != nil {
			return err
		}
	}
	if o.gather {
		if err := place.gather(ctx); err != nil {
			return err
		}
	}
	namespace, remove, err := c.Namespace(ctx, "nodes")
	if err != nil {
		return err
	}
	undo = append(undo, remove)
	b := bench{Cluster: c, namespace: namespace, image: o.image, place: place}
	out := &result.Printer{Bench: "nodes", Out: os.Stdout}
	measure := func() (result.Fields, error) { return b.still(ctx, o.still, out) }
	if o.still == 0 {
		if err := b.services(ctx); err != nil {
			return err
		}
		measure = func() (result.Fields, error) { return b.cut(ctx, o.node, o.lasts, out) }
	}
	undo = append(undo, func(ctx context.Context) error { return faults.Node(ctx, o.node, "back") })
	rows, err := measure()
	if err = errors.Join(err, place.Room(ctx)); err != nil {
		return err
	}
	return out.Summary(rows)
}
