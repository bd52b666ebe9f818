// Command rollout measures what users notice of a revision that is worse than the one before it: in
// a rollout that is judged, and in one by time in the same run, as JSON lines.
//
// Owns: its own namespace. Reads: responses, Routes. Writes: Services. Never: asserts a figure.
//
// Both Services get the same requests, one each interval, and the same new revision at the same
// time. A request is bad if the new revision failed it, or took longer than twice the 99th
// percentile of the old one.
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

func main() {
	var o options
	flag.DurationVar(&o.takes, "takes", 2*time.Minute, "how long a rollout takes")
	flag.DurationVar(&o.interval, "interval", 10*time.Millisecond, "the time between two requests to a Service")
	flag.StringVar(&o.steps, "steps", "", "the steps of a rollout, such as \"5% 30s, 50%\"; even ones without")
	flag.StringVar(&o.only, "only", "", "measure this fault alone")
	flag.Parse()
	trial.OnCluster("rollout", nil, func(ctx context.Context, p *trial.Place) error {
		return (&bench{p.Cluster, o, p.Namespace}).run(ctx)
	})
}

type options struct {
	takes, interval time.Duration
	steps, only     string
}

// fault is what is wrong with the new revision. Some requests are slow, as in a program that looks
// something up, so that there is a 99th percentile to compare.
type fault struct {
	name     string
	old, new map[string]string // variables of the test image
}

var faults = []fault{
	{"fails_20", nil, map[string]string{"FAIL_PERCENT": "20"}},
	{"fails_2", nil, map[string]string{"FAIL_PERCENT": "2"}},
	{"p99_3x", map[string]string{"SLOW_PERCENT": "5", "SLOW_MS": "100"}, map[string]string{"SLOW_PERCENT": "5", "SLOW_MS": "300"}},
	{"cannot_start", nil, map[string]string{"CRASH": "1"}},
	{"none", nil, nil},
}

// slow is beyond what any old revision takes, and below what a slow new one does.
const slow = 250 * time.Millisecond

type bench struct {
	*cluster.Cluster
	options
	namespace string
}

func (b *bench) run(ctx context.Context) error {
	printer := &result.Printer{Bench: "rollout", Out: os.Stdout}
	summary := result.Fields{}
	for _, f := range faults {
		if b.only != "" && b.only != f.name {
			continue
		}
		judged, byTime, err := b.measure(ctx, f)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		for kind, one := range map[string]*rollout{"judged": judged, "by_time": byTime} {
			line := one.fields()
			for key, value := range line {
				summary[f.name+"_"+kind+"_"+key] = value
			}
			line["fault"], line["rollout"], line["why"] = f.name, kind, one.why
			if err := printer.Line(line); err != nil {
				return err
			}
		}
	}
	return printer.Summary(summary)
}
