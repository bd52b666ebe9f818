// Command coldstart measures cold starts, one after another, each with the times of its phases.
// Then it measures the time from a burst on one busy pod until the scale is raised. It prints JSON
// lines. With -order it measures cold starts of four samples with either order of the containers,
// with -pull those whose node has to pull an image first.
//
// Owns: its own namespace. Reads: watches of the Deployment and its pods, and the response. Writes:
// Services, shorter timings in config-autoscaler, the cold-start header in config-observability,
// whether pods have a token in config-defaults, with -order a MutatingAdmissionPolicy; it restores
// all. Never: asserts a figure.
//
// All times are milliseconds after the request was sent. This process's clock gives sent,
// scale_written, pod_created and answered; scale_written and pod_created are taken when the watch
// reports them, so they are upper bounds. The activator's clock gives received, announced and
// forwarded, and the user process's clock gives process_started. On a cluster of several machines
// these clocks must agree.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

func main() {
	n := flag.Int("n", 10, "cold starts to measure")
	bursts := flag.Int("bursts", 10, "bursts to measure")
	image := flag.String("image", "dev.local/ebb-test/autoscale:dev", "an image that sends X-Process-Start")
	token := flag.String("token", "default", "automount-service-account-token in config-defaults: default, or false for pods without volumes")
	order := flag.Bool("order", false, "measure both orders of a pod's containers in turns, and nothing else")
	pull := flag.Int("pull", 0, "measure cold starts whose node pulls an image of so many MiB, beside those whose node has it, and nothing else")
	flag.Parse()
	trial.OnCluster("coldstart", map[string]map[string]string{
		"config-autoscaler":    {"scale-to-zero-grace-period": "6s", "allow-zero-initial-scale": "true"},
		"config-observability": {"cold-start-header": "enabled"},
		"config-defaults":      {"automount-service-account-token": *token},
	}, func(ctx context.Context, p *trial.Place) error {
		out := &result.Printer{Bench: "coldstart", Out: os.Stdout}
		switch {
		case *order:
			return orders(ctx, p.Cluster, p.Namespace, *n, out)
		case *pull > 0:
			return pulls(ctx, p.Cluster, p.Namespace, *n, *pull, out)
		}
		return run(ctx, p.Cluster, p.Namespace, *n, *bursts, *image, out)
	})
}

func run(ctx context.Context, c *cluster.Cluster, namespace string, n, bursts int, image string, out *result.Printer) (err error) {
	urls := map[string]string{}
	for _, name := range sleepers {
		if urls[name], err = sleeper(ctx, c, namespace, name, image); err != nil {
			return err
		}
	}
	var totals, bareTotals, scales, afters []float64
	for i := range n * len(sleepers) {
		name := sleepers[i%len(sleepers)]
		phases, err := measure(ctx, c, namespace, name, urls[name])
		if err != nil {
			return fmt.Errorf("cold start %d of %s: %w", i/len(sleepers)+1, name, err)
		}
		fields := phases.fields()
		fields["run"], fields["service"] = i/len(sleepers)+1, name
		if err := out.Line(fields); err != nil {
			return err
		}
		total := result.Milliseconds(phases.answered.Sub(phases.sent))
		if name == bare {
			bareTotals = append(bareTotals, total)
			continue
		}
		totals = append(totals, total)
		scales = append(scales, result.Milliseconds(phases.scaleWritten.Sub(phases.begin())))
		afters = append(afters, result.Milliseconds(phases.answered.Sub(phases.processStarted)))
	}
	panicked, err := panics(ctx, c, namespace, image, bursts, out)
	if err != nil {
		return err
	}
	// The first figure is the time from the first request's arrival at the activator to the scale
	// write at zero (goal: 20 ms). The second is the time from sending the first request that is
	// queued to the scale write with a busy pod (goal: 100 ms). With ten of each, the 99th
	// percentile is the slowest.
	return out.Summary(result.Fields{
		"median_total_ms":               result.Median(totals),
		"median_total_bare_ms":          result.Median(bareTotals),
		"median_scale_written_ms":       result.Median(scales),
		"scale_written_p50_ms":          result.Quantile(scales, 0.5),
		"scale_written_p99_ms":          result.Quantile(scales, 0.99),
		"scale_written_panic_p50_ms":    result.Quantile(panicked, 0.5),
		"scale_written_panic_p99_ms":    result.Quantile(panicked, 0.99),
		"median_after_process_start_ms": result.Median(afters),
		"runs":                          n,
		"bursts":                        bursts,
	})
}
