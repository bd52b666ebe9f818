package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

const (
	// faultTime bounds a fault, wholeTime how long the cluster takes to be whole after it.
	faultTime = time.Minute
	wholeTime = 5 * time.Minute
	// calm is the time between two faults: a verdict that comes late is counted with its fault.
	calm = 15 * time.Second
	// fixed is how many pods each service has, so that each new one takes the place of another.
	fixed = 3
)

// still does for a time what looks like the end of a node and is not, one after another, each at
// least once. It counts what was replaced all the same.
func (b *bench) still(ctx context.Context, lasts time.Duration, out *result.Printer) (result.Fields, error) {
	set := faults.Set{Cluster: b.Cluster, Namespace: b.namespace, Longest: faultTime, Nodes: b.place.Nodes, Ends: []string{b.place.ends}, Image: b.image}
	list, err := set.Choose("harmless")
	if err != nil {
		return nil, err
	}
	probers := map[string]*probe.Prober{}
	for name, capacity := range map[string]string{"activator": "-1", "direct": "0"} {
		url, err := b.ApplyFunction(ctx, b.namespace, cluster.Function{Name: name, Image: b.image, Annotations: map[string]string{
			"autoscaling.knative.dev/min-scale": fmt.Sprint(fixed), "autoscaling.knative.dev/max-scale": fmt.Sprint(fixed),
			"autoscaling.knative.dev/target-burst-capacity": capacity}})
		if err != nil {
			return nil, err
		}
		there, err := b.place.on(ctx, b.namespace, "serving.knative.dev/service="+name)
		if err != nil {
			return nil, err
		}
		if len(there) == 0 {
			return nil, fmt.Errorf("no pod of %s is on node %s", name, b.place.ends)
		}
		probers[name] = probe.Start(b.Client(tooLate), url, interval)
		defer probers[name].Stop()
	}
	var all faults.Replaced
	begun, n := time.Now(), 0
	for ; n < len(list) || time.Since(begun) < lasts; n++ {
		f := list[n%len(list)]
		r, fields, err := b.look(ctx, set, f, probers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		all.Silent, all.Lost, all.Pods = all.Silent+r.Silent, all.Lost+r.Lost, all.Pods+r.Pods
		if err := out.Line(fields); err != nil {
			return nil, err
		}
	}
	return result.Fields{"false_replacements": all.Lost + all.Pods, "nodes_silent": all.Silent, "nodes_lost": all.Lost, "new_pods": all.Pods,
		"faults": n, "lasted_s": time.Since(begun).Seconds()}, nil
}

// look has one fault, and waits until all is whole and calm.
func (b *bench) look(ctx context.Context, set faults.Set, f faults.Fault, probers map[string]*probe.Prober) (faults.Replaced, result.Fields, error) {
	done, err := set.Replacing(ctx)
	if err != nil {
		return faults.Replaced{}, nil, err
	}
	count, began := set.Watch(ctx, probers), time.Now()
	err = f.Do(ctx)
	broken := time.Since(began)
	if err == nil {
		whole, cancel := context.WithTimeout(ctx, wholeTime)
		err = errors.Join(set.Recover(whole), cluster.Pause(ctx, calm))
		cancel()
	}
	w := count()
	r, countErr := done()
	err = errors.Join(err, countErr, b.place.Room(ctx))
	return r, result.Fields{"fault": f.Name, "at": began.UTC().Format("15:04:05"), "broken_s": broken.Seconds(), "sent": w.Requests, "failed": w.Failed,
		"nodes_silent": r.Silent, "nodes_lost": r.Lost, "new_pods": r.Pods}, err
}
