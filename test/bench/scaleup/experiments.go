package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

// work is the cost of each request: six milliseconds of a worker, and each pod has one worker.
const (
	work    = "?sleep=6"
	workers = "1"
	// outstanding is the number of requests in flight under the heavy load.
	outstanding = 100
)

// steady keeps 100 requests in flight on a service with one to ten pods and a concurrency target of
// ten. The kubelet syncs its containers once a second, so the start of a pod varies by as much.
// Therefore there are several rounds, each with its floors, and the summary has medians.
func (b *bench) steady(ctx context.Context) error {
	var rounds []result.Fields
	lasts := b.lasts
	for range b.rounds {
		fields, err := b.steadyRound(ctx, lasts)
		if err != nil {
			return err
		}
		if err := b.out.Line(fields); err != nil {
			return err
		}
		rounds = append(rounds, fields)
		lasts = b.lasts / 3 // the later rounds only measure the start
	}
	medians := result.Fields{"experiment": "steady-medians", "rounds": b.rounds}
	for _, name := range []string{"first_s", "ten_s", "served_first_s", "served_ten_s", "floor_first_s", "floor_ten_s",
		"pod_floor_first_s", "pod_floor_ten_s", "loaded_floor_first_s", "loaded_floor_ten_s"} {
		medians[name] = median(rounds, name)
	}
	b.summary["steady_first_s"], b.summary["steady_ten_s"] = medians["first_s"], medians["ten_s"]
	b.summary["steady_first_floor_s"], b.summary["steady_ten_floor_s"] = medians["floor_first_s"], medians["floor_ten_s"]
	return b.out.Line(medians)
}

// median returns the median of a field, nil if a round has no value.
func median(rounds []result.Fields, name string) any {
	var values []float64
	for _, fields := range rounds {
		value, ok := fields[name].(float64)
		if !ok {
			return nil
		}
		values = append(values, value)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func (b *bench) steadyRound(ctx context.Context, lasts time.Duration) (result.Fields, error) {
	floorFirst, floorTen, err := b.floor(ctx, 1, 10, false)
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	loadedFirst, loadedTen, err := b.floor(ctx, 1, 10, true)
	if err != nil {
		return nil, fmt.Errorf("floor under load: %w", err)
	}
	podFirst, podTen, err := b.podFloor(ctx)
	if err != nil {
		return nil, fmt.Errorf("floor of pods like a revision's: %w", err)
	}
	url, err := b.service(ctx, "steady", map[string]string{"min-scale": "1", "max-scale": "10", "target": "10",
		"target-utilization-percentage": "100", "window": "10s"})
	if err != nil {
		return nil, err
	}
	pods, err := b.watchPods(ctx, "serving.knative.dev/service=steady")
	if err != nil {
		return nil, err
	}
	scale, err := b.watchScale(ctx, "serving.knative.dev/service=steady")
	if err != nil {
		return nil, err
	}
	report := b.load(ctx, url+work, outstanding, lasts)
	pods.Stop()
	scale.Stop()
	fields := fields(report)
	fields["experiment"] = "steady"
	// The time from the start of the load until the watch shows a Deployment with as many pods.
	// Besides the autoscaler it includes a hundred connections, the gateway, the activator's queue,
	// the API server's write and its watch, with the generator on the same machine.
	// test/bench/coldstart measures the part from a queued request to the write alone.
	fields["asked_is"] = "from the start of the load until a watch shows the scale"
	fields["asked_first_s"], fields["asked_ten_s"] = scale.After(report.Begun, 2), scale.After(report.Begun, 10)
	fields["first_s"], fields["ten_s"] = pods.After(report.Begun, 2), pods.After(report.Begun, 10)
	// A pod serves once it has announced itself, before Kubernetes reports it Ready.
	fields["served_first_s"], fields["served_ten_s"] = report.ServedBy(2), report.ServedBy(10)
	fields["floor_first_s"], fields["floor_ten_s"] = floorFirst, floorTen
	fields["pod_floor_first_s"], fields["pod_floor_ten_s"] = podFirst, podTen
	fields["loaded_floor_first_s"], fields["loaded_floor_ten_s"] = loadedFirst, loadedTen
	return fields, b.removeService(ctx, "steady")
}

// nine keeps nine requests in flight where the target is ten. The reference is a fixed number of
// pods.
func (b *bench) nine(ctx context.Context) error {
	best := 0.0
	for _, n := range []int{1, 3, 5, 7, 9} {
		name := fmt.Sprintf("fixed-%d", n)
		bounds := fmt.Sprint(n)
		url, err := b.service(ctx, name, map[string]string{"min-scale": bounds, "max-scale": bounds, "initial-scale": bounds, "target": "10"})
		if err != nil {
			return err
		}
		report := b.load(ctx, url+work, 9, b.fixedLasts)
		fields := fields(report)
		fields["experiment"], fields["pods"] = "nine-fixed", n
		if err := b.out.Line(fields); err != nil {
			return err
		}
		best = max(best, report.RPS())
		if err := b.removeService(ctx, name); err != nil {
			return err
		}
	}
	url, err := b.service(ctx, "nine", map[string]string{"min-scale": "1", "max-scale": "10", "target": "10", "window": "10s",
		"ebb/target": "auto"})
	if err != nil {
		return err
	}
	pods, err := b.watchPods(ctx, "serving.knative.dev/service=nine")
	if err != nil {
		return err
	}
	scale, err := b.watchScale(ctx, "serving.knative.dev/service=nine")
	if err != nil {
		return err
	}
	report := b.load(ctx, url+work, 9, b.lasts)
	pods.Stop()
	scale.Stop()
	fields := fields(report)
	fields["experiment"], fields["pods"] = "nine-outstanding", pods.Ready()
	fields["steps"], fields["late_steps"] = scale.Since(report.Begun, report.Begun.Add(b.lasts*2/3))
	b.summary["nine_rps"], b.summary["nine_best_rps"] = report.LateRPS(), best
	if err := b.out.Line(fields); err != nil {
		return err
	}
	return b.removeService(ctx, "nine")
}

// oneWorker is the container of a pod with one worker.
var oneWorker = cluster.Object{"env": []any{cluster.Object{"name": "WORKERS", "value": workers}}}

// service applies a Service of the test image with one worker per pod; see function.
func (b *bench) service(ctx context.Context, name string, annotations map[string]string) (url string, err error) {
	return b.function(ctx, name, annotations, oneWorker, nil)
}

// function applies a Service of the test image and waits until it is Ready. Keys are annotations
// without their domain; those that begin with ebb/ are Ebb's own. container has more fields of the
// container, spec more fields of the template's spec.
func (b *bench) function(ctx context.Context, name string, annotations map[string]string, container, spec cluster.Object) (url string, err error) {
	full := map[string]string{}
	for key, value := range annotations {
		if own, isOurs := strings.CutPrefix(key, "ebb/"); isOurs {
			full["autoscaling.ebb.dev/"+own] = value
		} else {
			full["autoscaling.knative.dev/"+key] = value
		}
	}
	return b.ApplyFunction(ctx, b.Namespace, cluster.Function{Name: name, Image: b.image, Annotations: full, Container: container, Spec: spec})
}

func (b *bench) removeService(ctx context.Context, name string) error {
	return b.RemoveFunction(ctx, b.Namespace, name)
}
