// Command autoscaler measures what the autoscaler costs at the size of a large cluster, without
// one: it builds the autoscaler, runs it against an API server of its own that only holds what the
// autoscaler reads, lets pods on the loopback answer scrapes, and reports the rest of the load as
// activators do.
//
//	go run ./test/bench/autoscaler [-revisions 10000] [-pods 3] [-scraped 4000] [-lasts 30s] [-profile FILE] [-binary FILE]
//
// The load is offered at times fixed beforehand, whatever the autoscaler does. The line before the
// summary says what was offered, late and taken, and how much CPU the generator used. Each scraped
// revision needs a connection per pod, so the limit of open files bounds them.
//
// The figures are of the autoscaler's process alone: CPU and memory from /proc (anon_mib is
// anonymous memory), and the time from a stat's arrival to the decision that counts it from its own
// histogram (the upper bound of the bucket that holds the quantile).
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

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b := bench{out: &result.Printer{Bench: "autoscaler", Out: os.Stdout}}
	flag.IntVar(&b.revisions, "revisions", 10_000, "revisions")
	flag.IntVar(&b.pods, "pods", 3, "pods of each revision")
	flag.IntVar(&b.scraped, "scraped", 4_000, "revisions whose pods are scraped; the others' stats are POSTed")
	flag.DurationVar(&b.lasts, "lasts", 30*time.Second, "how long to measure")
	flag.StringVar(&b.binary, "binary", "", "autoscaler to measure; built from this tree if not given")
	flag.StringVar(&b.profile, "profile", "", "file for the autoscaler's CPU profile; its heap goes beside it")
	flag.Parse()
	if err := b.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench autoscaler:", err)
		os.Exit(1)
	}
}

type bench struct {
	out                      *result.Printer
	revisions, pods, scraped int
	lasts                    time.Duration
	profile, binary          string
}

// autoscalerIP is where the autoscaler listens, away from anything else on its ports. The pods'
// addresses begin behind it.
const autoscalerIP = "127.0.77.1"

// scrapePort is where the pods answer. The autoscaler's own metrics have the usual port.
const scrapePort = 9190
