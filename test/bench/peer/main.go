// Command peer measures Ebb and Knative Serving on the same cluster, one after the other, and then
// again: first requests of services at zero, throughput and latency with and without the activator
// in the path, CPU time of a request by container, nine requests in flight where the target is ten,
// and memory. Beside both it measures the floor: a plain Deployment of the same image behind the
// same gateway. It prints JSON lines, and for each figure a summary with the median, the lowest,
// the highest, and Ebb's of Knative's.
//
// Owns: the installation of either system, by the commands it is given, which remove the other one
// with all Services; a namespace in each visit. Reads: pods, responses, control groups, so that the
// node must be this machine. Writes: Services, Deployments, scale-to-zero-grace-period in
// config-autoscaler. Never: asserts a figure; ends without trying to install Ebb again.
//
// Both systems are installed anew for each visit, with the settings and CPU requests that they
// ship, and get the same manifests, requests and gateways. Both are without HorizontalPodAutoscaler
// for the activator where the cluster has no metrics server. What may favour one of them:
//   - Knative's Ingresses become HTTPRoutes by a program of ours (dev/standin), not by one of its
//     plugins. Such a plugin is not in the path of requests. Its memory is not counted, nor is the
//     time until a Service is Ready, which the program reports without asking the gateways.
//   - The shipped requests differ, and a CPU request is a share of busy CPUs: Knative's activator
//     has 300m and at most one CPU, Ebb's has 100m and no limit. queue-proxy has 25m in both.
//   - Knative's activator ships with GOGC=500: more memory, less CPU time.
//   - Knative's queue-proxy ships with request metrics, Ebb's without. Ebb is loaded with them, too:
//     these figures begin with metered.
//   - Gateway, node, control plane of Kubernetes and client share the CPUs with what is measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

type options struct {
	rounds, services, cold, connections, rate int
	lasts, nine, settle                       time.Duration
	image                                     string
	commands                                  map[string]string
}

func main() {
	var o options
	var ebbCommand, knativeCommand string
	flag.IntVar(&o.rounds, "rounds", 2, "how often each system is installed and measured")
	flag.IntVar(&o.services, "services", 20, "services at zero while memory is read")
	flag.IntVar(&o.cold, "cold", 10, "first requests in a visit, each of another of the services; as many of the floor")
	flag.IntVar(&o.connections, "connections", 16, "connections of the load")
	flag.IntVar(&o.rate, "rate", 500, "requests a second where the rate is fixed")
	flag.DurationVar(&o.lasts, "lasts", 4*time.Second, "duration of one load")
	flag.DurationVar(&o.nine, "nine", 20*time.Second, "duration of nine requests in flight")
	flag.DurationVar(&o.settle, "settle", 8*time.Second, "how long a system rests before and while its memory and CPU time at rest are read")
	flag.StringVar(&o.image, "image", "dev.local/ebb-test/autoscale:dev", "the test image autoscale")
	flag.StringVar(&ebbCommand, ebb, "dev/ctl.sh up", "the command that installs Ebb in place of Knative")
	flag.StringVar(&knativeCommand, knative, "dev/ctl.sh up knative shipped", "the command that installs Knative in place of Ebb")
	flag.Parse()
	o.commands = map[string]string{ebb: ebbCommand, knative: knativeCommand}
	if o.cold > o.services {
		fmt.Fprintln(os.Stderr, "peer: -cold is more than -services: each first request needs a service")
		os.Exit(2)
	}
	b := &bench{options: o, out: &result.Printer{Bench: "peer", Out: os.Stdout}, figures: figures{}}
	trial.Main("peer", func(ctx context.Context) error {
		if _, err := cluster.Connect(ctx); err != nil { // rather than after minutes
			return err
		}
		return b.run(ctx)
	})
}
