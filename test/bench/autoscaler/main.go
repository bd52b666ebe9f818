// Command autoscaler measures the cost of the autoscaler at the size of a large cluster, without a
// cluster. It builds the autoscaler and runs it against a fake API server that holds only what the
// autoscaler reads. Fake pods on loopback answer scrapes, and the rest of the load is reported as
// activators do.
//
//	go run ./test/bench/autoscaler [-revisions 10000] [-pods 3] [-scraped 4000] [-lasts 30s] [-profile FILE] [-binary FILE]
//
// The load follows a fixed schedule, whatever the autoscaler does. The line before the summary says
// how much was offered, late and accepted, and how much CPU the generator used. Each pod of a
// scraped revision needs a connection, so the limit of open files bounds their number.
//
// The figures describe the autoscaler's process alone. CPU and memory come from /proc (anon_mib is
// anonymous memory). The time from a stat's arrival to the decision that uses it comes from the
// autoscaler's histogram (the upper bound of the bucket that holds the quantile).
package main

import (
	"flag"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	b := bench{out: &result.Printer{Bench: "autoscaler", Out: os.Stdout}}
	flag.IntVar(&b.revisions, "revisions", 10_000, "revisions")
	flag.IntVar(&b.pods, "pods", 3, "pods per revision")
	flag.IntVar(&b.scraped, "scraped", 4_000, "revisions whose pods are scraped; stats of the others are POSTed")
	flag.DurationVar(&b.lasts, "lasts", 30*time.Second, "how long to measure")
	flag.StringVar(&b.binary, "binary", "", "autoscaler binary to measure; default: built from this tree")
	flag.StringVar(&b.profile, "profile", "", "file for the autoscaler's CPU profile; the heap profile is written next to it")
	flag.Parse()
	trial.Main("autoscaler", b.run)
}

type bench struct {
	out                      *result.Printer
	revisions, pods, scraped int
	lasts                    time.Duration
	profile, binary          string
}

// autoscalerIP is where the autoscaler listens, so that nothing else uses its ports. The addresses
// of the pods follow.
const autoscalerIP = "127.0.77.1"

// scrapePort is the port of the pods. The autoscaler's own metrics use the usual port.
const scrapePort = 9190
