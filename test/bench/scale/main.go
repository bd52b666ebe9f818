// Command scale measures what one more service costs beside many that rest. It prints JSON lines
// and a summary with, for each number of services in -at, the seconds until one more is Ready, what
// Ebb writes for it, and the memory of the control plane and the gateways. With few services it
// also measures how many become Ready in a second, what a cold start costs, and how many objects a
// service has; with most, what the roll of an activator writes, and how long after the restart of a
// component one more is Ready. With -resting all of it is measured while hosts rest, and -switches
// counts the requests that are lost when one comes to rest or gets HTTPRoutes of its own.
//
// Making many services takes hours by Ebb's own path, so most are copies: one resting service is
// made by Ebb, and its objects are created again under other names, with their status, while Ebb
// and istiod stand still. What Ebb then writes about copies is printed as copies_written: one
// update of each Deployment, whose hash cannot be copied. Whether a service is Ready is read every
// 100 ms, so the seconds until then are up to that much too many.
//
// Owns: its namespace. Reads: objects, the components' metrics, what kubelets tell of pods, and the
// audit log that EBB_AUDIT_LOG names. Writes: services that rest; the replicas of controller,
// autoscaler and istiod during a copy; allow-zero-initial-scale in config-autoscaler and, if asked,
// resting-routes in config-gateway during the run. Never: asserts a figure.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	at := flag.String("at", "500,5000", "how many services to measure beside, in rising order")
	image := flag.String("image", "dev.local/ebb-test/autoscale:dev", "image of the services")
	more := flag.Int("more", 10, "services that are added one by one at each number")
	once := flag.Int("once", 100, "services that are added at once")
	cold := flag.Int("cold", 20, "cold starts")
	rests := flag.Bool("resting", false, "let hosts rest: resting-routes in config-gateway is Enabled during the run")
	switches := flag.Int("switches", 0, "how often a service gets HTTPRoutes of its own or loses them under 200 requests a second; it begins five minutes after the service")
	flag.Parse()
	b := bench{image: *image, more: *more, once: *once, cold: *cold, switches: *switches, out: &result.Printer{Bench: "scale", Out: os.Stdout}}
	for _, text := range strings.Split(*at, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || len(b.at) > 0 && n <= b.at[len(b.at)-1] {
			fmt.Fprintf(os.Stderr, "scale: -at=%q: want whole numbers in rising order, with commas between them\n", *at)
			os.Exit(2)
		}
		b.at = append(b.at, n)
	}
	config := map[string]map[string]string{"config-autoscaler": {"allow-zero-initial-scale": "true"}}
	if *rests || *switches > 0 {
		config["config-gateway"] = map[string]string{"resting-routes": "Enabled"}
	}
	trial.OnCluster("scale", config,
		func(ctx context.Context, p *trial.Place) error {
			b.Place = p
			return b.run(ctx)
		})
}
