package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// rollout is what was seen of one, from the new template on.
type rollout struct {
	name, url string
	mutex     sync.Mutex
	requests  int
	fresh     int // answered by the new revision, as far as its body says
	failed    int
	slow      int
	bad       time.Time // the last one
	assigned  time.Time // when the Route said that the new revision has a percent
	first     time.Time // when it had: its first answer, or the gateways follow
	convicted time.Time // when the Route said that it went back
	back      time.Time // when all gateways were seen to follow that
	all       time.Time // when it was seen to have all
	why       string
}

func (r *rollout) fields() result.Fields {
	since := func(t time.Time) any {
		if t.IsZero() || r.first.IsZero() {
			return nil
		}
		return t.Sub(r.first).Seconds()
	}
	fields := result.Fields{"requests": r.requests, "new": r.fresh, "failed": r.failed, "slow": r.slow,
		"bad_percent": 100 * float64(r.failed+r.slow) / float64(max(1, r.requests)), "convicted_s": since(r.convicted),
		"back_s": since(r.back), "all_s": since(r.all), "last_bad_s": since(r.bad), "seen": !r.first.IsZero()}
	if !r.assigned.IsZero() && !r.first.IsZero() {
		fields["gateways_s"] = r.first.Sub(r.assigned).Seconds()
	}
	return fields
}

// answer counts one.
func (r *rollout) answer(reply probe.Reply) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.requests++
	fresh := strings.HasPrefix(reply.Body, "new")
	switch {
	case !reply.OK():
		r.failed++
		r.bad = time.Now()
	case fresh && reply.Took > slow:
		r.slow++
		r.bad = time.Now()
	}
	if fresh {
		r.fresh++
		r.begin(time.Now())
	}
}

// begin notes when the new revision was first seen to have requests.
func (r *rollout) begin(now time.Time) {
	if r.first.IsZero() {
		r.first = now
	}
}

func (b *bench) manifest(name, text string, judged bool, variables map[string]string) string {
	var m strings.Builder
	fmt.Fprintf(&m, "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata:\n  name: %s\n  annotations:\n    serving.knative.dev/rollout-duration: %s\n", name, b.takes)
	if b.steps != "" {
		fmt.Fprintf(&m, "    serving.ebb.dev/rollout-steps: %s\n", b.steps)
	}
	if judged {
		m.WriteString("    serving.ebb.dev/rollout-guard: \"on\"\n")
	}
	fmt.Fprintf(&m, "spec:\n  template:\n    metadata:\n      annotations:\n        autoscaling.knative.dev/min-scale: \"1\"\n"+
		"    spec:\n      containers:\n      - image: dev.local/ebb-test/autoscale:dev\n        env:\n        - {name: TEXT, value: %s}\n", text)
	for key, value := range variables {
		fmt.Fprintf(&m, "        - {name: %s, value: %q}\n", key, value)
	}
	return m.String()
}

// measure has both rollouts at the same time.
func (b *bench) measure(ctx context.Context, f fault) (judged, byTime *rollout, err error) {
	judged, byTime = &rollout{name: strings.ReplaceAll(f.name, "_", "-") + "-judged"}, &rollout{name: strings.ReplaceAll(f.name, "_", "-") + "-by-time"}
	both := []*rollout{judged, byTime}
	waiting, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	for _, r := range both {
		if err := b.Apply(ctx, b.namespace, b.manifest(r.name, "old", r == judged, f.old)); err != nil {
			return nil, nil, err
		}
	}
	for _, r := range both {
		if r.url, err = b.AwaitReady(waiting, b.namespace, r.name); err != nil {
			return nil, nil, err
		}
		defer b.Dynamic.Resource(cluster.Services).Namespace(b.namespace).Delete(context.WithoutCancel(ctx), r.name, metav1.DeleteOptions{}) //nolint:errcheck // the namespace goes with it
	}
	// The old pods get warm, as they are in any rollout but the first.
	warming, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	b.load(warming, []*rollout{{url: judged.url}, {url: byTime.url}})
	for _, r := range both {
		if err := b.Apply(ctx, b.namespace, b.manifest(r.name, "new", r == judged, f.new)); err != nil {
			return nil, nil, err
		}
	}
	during, cancel := context.WithTimeout(ctx, b.takes+20*time.Second)
	defer cancel()
	var watching sync.WaitGroup
	for _, r := range both {
		watching.Go(func() { b.watch(during, r) })
	}
	b.load(during, both)
	watching.Wait()
	return judged, byTime, ctx.Err()
}

// load sends requests to all until ctx ends, and waits for their answers.
func (b *bench) load(ctx context.Context, all []*rollout) {
	client := b.Client(20 * time.Second)
	defer client.CloseIdleConnections()
	var open sync.WaitGroup
	defer open.Wait()
	tick := time.NewTicker(b.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, r := range all {
			open.Go(func() { r.answer(probe.Get(context.WithoutCancel(ctx), client, r.url)) })
		}
	}
}

// watch notes when the share of the new revision changes.
func (b *bench) watch(ctx context.Context, r *rollout) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		route, err := b.Get(ctx, cluster.Routes, b.namespace, r.name)
		if err != nil {
			continue // it is busy, or the time is over
		}
		r.look(route, time.Now())
	}
}

func (r *rollout) look(route *unstructured.Unstructured, now time.Time) {
	traffic, _, _ := unstructured.NestedSlice(route.Object, "status", "traffic")
	all := cluster.Conditions(route)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.assigned.IsZero() && len(traffic) == 2 {
		r.assigned = now
	}
	if all["IngressReady"].Reason == "RolloutInProgress" {
		r.begin(now)
	}
	if r.first.IsZero() {
		return
	}
	why := all["AllTrafficAssigned"]
	if why.Reason == "WentBack" && r.convicted.IsZero() {
		r.convicted, r.why = now, why.Message
	}
	if len(traffic) != 1 || all["IngressReady"].Status != "True" {
		return
	}
	if why.Reason == "WentBack" {
		if r.back.IsZero() {
			r.back = now
		}
	} else if r.all.IsZero() {
		r.all = now
	}
}
