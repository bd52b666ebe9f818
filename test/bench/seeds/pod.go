package main

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"time"

	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/result"
)

// pair is one pod behind Ebb, and one of a plain Deployment.
func (b *bench) pair(ctx context.Context, container object) ([]arm, error) {
	container = merge(cpu, container)
	ebb, err := b.ebb(ctx, "ebb", onePod, container, nil)
	if err != nil {
		return nil, err
	}
	floor, err := b.floor(ctx, "floor", 1, container)
	if err != nil {
		return nil, err
	}
	return []arm{ebb, floor}, nil
}

// byClients are cells that differ in the number of clients.
func (b *bench) byClients(query string, clients []int, paper, least time.Duration) (all []cell) {
	for _, n := range clients {
		all = append(all, cell{x: n, query: query, loop: load.Loop{Outstanding: n, Lasts: b.span(paper, least)}})
	}
	return all
}

// hello is the smallest answer at more and more clients, through the gateway and past it.
func (b *bench) hello(ctx context.Context) error {
	arms, err := b.pair(ctx, nil)
	if err != nil {
		return err
	}
	queued := map[string]string{"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1",
		"autoscaling.knative.dev/target-burst-capacity": "-1"}
	activator, err := b.ebb(ctx, "ebb-activator", queued, cpu, nil)
	if err != nil {
		return err
	}
	straight, err := b.direct(ctx, arms[0], "ebb-direct", queueProxyPort)
	if err != nil {
		return err
	}
	bare, err := b.direct(ctx, arms[1], "floor-direct", plainPort)
	if err != nil {
		return err
	}
	clients := either(b, []int{1, 2, 5, 10, 20, 50, 100, 200, 500}, []int{1, 4, 16, 64})
	return b.cells(ctx, append(arms, activator, straight, bare), b.byClients("?size=4", clients, 30*time.Second, 1500*time.Millisecond))
}

// httpWorkload is a function that reads a page from another server.
func (b *bench) httpWorkload(ctx context.Context) error {
	page, err := b.floor(ctx, "page", 1, cpu)
	if err != nil {
		return err
	}
	arms, err := b.pair(ctx, nil)
	if err != nil {
		return err
	}
	from := fmt.Sprintf("http://%s.%s.svc.cluster.local/?size=1024", page.name, b.namespace)
	clients := either(b, []int{1, 10, 20, 50, 100}, []int{1, 10, 100})
	return b.cells(ctx, arms, b.byClients("?size=4&fetch="+url.QueryEscape(from), clients, 30*time.Second, 3*time.Second))
}

// payload is an answer of more and more bytes.
func (b *bench) payload(ctx context.Context) error {
	arms, err := b.pair(ctx, nil)
	if err != nil {
		return err
	}
	var cells []cell
	for _, size := range either(b, []int{1, 10, 100, 1000, 10_000, 100_000, 500_000, 1_000_000}, []int{1, 1000, 10_000, 100_000, 500_000}) {
		cells = append(cells, cell{x: size, query: fmt.Sprint("?size=", size), loop: load.Loop{Outstanding: 10, Lasts: b.span(30*time.Second, 2*time.Second)}})
	}
	return b.cells(ctx, arms, cells)
}

// callPath is one request at a time, through the gateway and past it.
func (b *bench) callPath(ctx context.Context) error {
	arms, err := b.pair(ctx, nil)
	if err != nil {
		return err
	}
	for _, way := range []struct {
		of   int
		name string
		port int
	}{{0, "ebb-queue-proxy", queueProxyPort}, {0, "ebb-container", plainPort}, {1, "floor-container", plainPort}} {
		past, err := b.direct(ctx, arms[way.of], way.name, way.port)
		if err != nil {
			return err
		}
		arms = append(arms, past)
	}
	return b.cells(ctx, arms, []cell{{x: 1, query: "?size=4", loop: load.Loop{Outstanding: 1, Requests: 1000}}})
}

// workers is one pod with more and more workers, each of which waits for something else than a CPU.
func (b *bench) workers(ctx context.Context) error {
	const wait = 50 // milliseconds
	for _, n := range either(b, []int{1, 2, 4, 8, 16, 25, 50}, []int{1, 4, 16, 50}) {
		annotations := map[string]string{"autoscaling.knative.dev/min-scale": "1", "autoscaling.knative.dev/max-scale": "1",
			"serving.ebb.dev/concurrency-variable": "WORKERS"}
		name := fmt.Sprint("ebb-", n)
		ebb, err := b.ebb(ctx, name, annotations, cpu, object{"containerConcurrency": n})
		if err != nil {
			return err
		}
		floor, err := b.floor(ctx, fmt.Sprint("floor-", n), 1, merge(cpu, env("WORKERS", n)))
		if err != nil {
			return err
		}
		ebb.name, floor.name = "ebb", "floor"
		if err := b.cells(ctx, []arm{ebb, floor}, []cell{{x: n, query: fmt.Sprint("?size=4&sleep=", wait),
			loop: load.Loop{Outstanding: 100, Lasts: b.span(30*time.Second, 4*time.Second)}, more: result.Fields{"wait_ms": wait}}}); err != nil {
			return err
		}
		if err := b.RemoveFunction(ctx, b.namespace, name); err != nil {
			return err
		}
	}
	return nil
}

// watchdog is a program that knows nothing of HTTP behind each mode of the shim, and the same
// program as a server in a plain Deployment.
func (b *bench) watchdog(ctx context.Context) error {
	b.image = b.words
	program := func(more object, args ...any) object {
		return merge(cpu, object{"command": []any{"/ko-app/words"}, "args": args}, more)
	}
	var arms []arm
	for _, mode := range []string{"http", "streaming", "serializing"} {
		var args []any
		if mode == "http" {
			args = []any{"-http"}
		}
		annotations := maps.Clone(onePod)
		annotations["serving.ebb.dev/shim"] = mode
		a, err := b.ebb(ctx, mode, annotations, program(nil, args...), nil)
		if err != nil {
			return err
		}
		arms = append(arms, a)
	}
	floor, err := b.floor(ctx, "floor", 1, program(env("PORT", plainPort), "-http"))
	if err != nil {
		return err
	}
	var cells []cell
	for _, users := range []int{1, 2, 5, 10} {
		c := cell{x: users, loop: load.Loop{Outstanding: users, Requests: 50_000, Body: "Hello, world!\n"}}
		if !b.full() {
			c.loop.Requests, c.loop.Lasts = 0, 2*time.Second
		}
		cells = append(cells, c)
	}
	return b.cells(ctx, append(arms, floor), cells)
}

// success is the share of requests that succeed, at more and more users of more and more pods.
func (b *bench) success(ctx context.Context) error {
	for _, pods := range either(b, []int{1, 5, 25, 50}, []int{1, 5, 25}) {
		bound := fmt.Sprint(pods)
		ebb, err := b.ebb(ctx, "ebb-"+bound, map[string]string{"autoscaling.knative.dev/min-scale": bound, "autoscaling.knative.dev/max-scale": bound,
			"autoscaling.knative.dev/initial-scale": bound}, nil, nil)
		if err != nil {
			return err
		}
		if err := b.awaitPods(ctx, ebb.selector, pods); err != nil {
			return err
		}
		floor, err := b.floor(ctx, "floor-"+bound, pods, nil)
		if err != nil {
			return err
		}
		ebb.name, floor.name = "ebb", "floor"
		var cells []cell
		for _, users := range []int{1, 5, 10, 20, 50, 100} {
			cells = append(cells, cell{x: users, query: "?size=4", more: result.Fields{"pods": pods},
				loop: load.Loop{Outstanding: users, Requests: b.count(10_000, 1000)}})
		}
		if err := b.cells(ctx, []arm{ebb, floor}, cells); err != nil {
			return err
		}
		if err := b.RemoveFunction(ctx, b.namespace, "ebb-"+bound); err != nil {
			return err
		}
		if err := b.ScalePlain(ctx, b.namespace, "floor-"+bound, 0); err != nil {
			return err
		}
		if err := b.awaitPods(ctx, floor.selector, 0); err != nil {
			return err
		}
	}
	return nil
}

// sieve counts the primes below 1000 for more and more clients. An answer after a second is a
// failure.
func (b *bench) sieve(ctx context.Context) error {
	arms, err := b.pair(ctx, nil)
	if err != nil {
		return err
	}
	var cells []cell
	for _, clients := range []int{1, 4, 16, 64, 256, 1024} {
		calls := max(clients*b.count(500, 10), 500)
		cells = append(cells, cell{x: clients, query: "?prime=1000", loop: load.Loop{Outstanding: clients, Requests: calls, TooLate: time.Second}})
	}
	return b.cells(ctx, arms, cells)
}
