// Command migration moves a real Knative Serving to Ebb and back with `kubectl ebb migrate`, while
// it sends requests to Services of all kinds. It prints JSON lines: the seconds of each step,
// requests and failures by Service, restarts of user containers. It exits with status 1 if a
// request got anything but a 2xx, or if a container of a user was restarted. `make up ARGS=knative`
// makes its cluster.
//
// Owns: its own namespace. Reads: objects, responses and what the command says. Writes: Services
// and DomainMappings; it kills the command, with -kill. Never: sends a request twice, nor lets
// net/http do so.
package main

import (
	"context"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	r := run{out: &result.Printer{Bench: "migration", Out: os.Stdout}}
	flag.IntVar(&r.services, "services", 3, "number of Services")
	flag.IntVar(&r.rps, "rps", 100, "requests a second, of all Services together")
	flag.BoolVar(&r.kill, "kill", false, "kill the command at random moments and run it again")
	flag.DurationVar(&r.rest, "rest", 45*time.Second, "how long the load goes on after each move")
	flag.StringVar(&r.manifests, "manifests", filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "ebb.yaml"), "manifests of Ebb")
	flag.StringVar(&r.command, "command", "kubectl-ebb", "the plugin")
	flag.StringVar(&r.image, "image", "dev.local/ebb/hello-go:dev", "image of the Services")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "seed of -kill; it is printed, to repeat a run")
	flag.Parse()
	r.random, r.seed = rand.New(rand.NewPCG(*seed, 0)), *seed
	trial.OnCluster("migration", nil, func(ctx context.Context, p *trial.Place) error {
		r.Place = p
		return r.all(ctx)
	})
}
