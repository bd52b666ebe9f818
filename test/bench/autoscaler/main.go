// Command autoscaler measures what the autoscaler costs at the size of a large cluster, without
// one: it builds the autoscaler, runs it against an API server of its own that only holds what the
// autoscaler reads, lets pods on the loopback answer scrapes, and reports the rest of the load as
// activators do.
//
//	go run ./test/bench/autoscaler [-revisions 10000] [-pods 3] [-scraped 4000] [-lasts 30s] [-profile FILE]
//
// The load is offered at moments fixed beforehand, whatever the autoscaler does; what was asked
// for, offered late and taken, and what the generator itself used of the processors, is in the line
// before the summary. Each of the scraped revisions needs a connection per pod; the number of open
// files a process may have bounds them. The figures are the autoscaler's process alone: CPU from
// /proc, memory from /proc, and the time from a stat's arrival to the decision that counts it from
// its own histogram (the upper bound of the bucket that holds the quantile).
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
	profile                  string
}

// autoscalerIP is where the autoscaler listens, apart from whatever else has its ports on this
// machine; the pods' addresses begin behind it.
const autoscalerIP = "127.0.77.1"

// scrapePort is where the pods answer; the autoscaler's own metrics have the usual port.
const scrapePort = 9190
