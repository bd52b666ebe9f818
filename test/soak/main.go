// Command soak keeps several services under load while it disturbs them in the ways that happen in
// a cluster, and counts each request that did not get a 2xx, or got an answer that is not its own.
// Each request and its answer carry a tag, to tell. Other clients, which are not counted, leave
// early, do not read, and send HEAD to a program that answers it with a body. It prints JSON lines
// and a summary. It exits with status 1 if a request was lost or got another's answer, or if it
// sent too few to mean anything. Half of the requests are POSTs with a body. With -faults it breaks
// the cluster instead: its programs, Ebb's components and what is around them, one after another,
// and prints what the requests saw of each, and of faults of nodes whether anything was replaced.
//
// Owns: its own namespace. Reads: objects and responses. Writes: Services and annotations of
// Revisions; it deletes pods of these services and of the activator, and for faults of nodes it
// moves what there is one of to one node. Never: sends a request twice, nor lets net/http do so.
package main

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	s := soak{out: &result.Printer{Bench: "soak", Out: os.Stdout}}
	flag.DurationVar(&s.lasts, "lasts", 3*time.Minute, "duration of the load")
	flag.IntVar(&s.rps, "rps", 500, "requests a second, of all services together")
	flag.DurationVar(&s.every, "every", 4*time.Second, "time between two disturbances")
	flag.StringVar(&s.image, "image", "dev.local/ebb-test/autoscale:dev", "the test image autoscale")
	breaks := flag.String("faults", "", "all, nodes (of one of several), harmless (nothing may be replaced), or the names of faults, separated by commas: break these, one after another, instead of the usual disturbances")
	flag.DurationVar(&s.longest, "longest", 5*time.Minute, "how long a fault lasts at most")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the disturbances; it is printed, to repeat a run")
	flag.Parse()
	s.random = rand.New(rand.NewPCG(*seed, 0))
	s.seed, s.breaks = *seed, *breaks
	trial.OnCluster("soak", map[string]map[string]string{"config-autoscaler": {"stable-window": "10s", "scale-to-zero-grace-period": "6s", "standby-after": "1s"}},
		func(ctx context.Context, p *trial.Place) error {
			s.Place = p
			return s.run(ctx)
		})
}
