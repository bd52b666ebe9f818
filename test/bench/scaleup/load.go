package main

import (
	"context"
	"time"

	"ebb.dev/ebb/test/internal/follow"
	"ebb.dev/ebb/test/internal/load"
	"ebb.dev/ebb/test/internal/result"
)

// load keeps the given number of requests in flight until the time is over.
func (b *bench) load(ctx context.Context, url string, outstanding int, lasts time.Duration) *load.Report {
	client := b.Client(time.Minute)
	defer client.CloseIdleConnections()
	return load.Loop{Client: client, URL: url, Outstanding: outstanding, Lasts: lasts}.Run(ctx)
}

func fields(r *load.Report) result.Fields {
	all := r.Fields()
	all["late_rps"] = r.LateRPS()
	return all
}

func (b *bench) watchPods(ctx context.Context, selector string) (*follow.Pods, error) {
	return follow.PodsOf(ctx, b.Kube, b.Namespace, selector)
}

func (b *bench) watchScale(ctx context.Context, selector string) (*follow.Scale, error) {
	return follow.ScaleOf(ctx, b.Kube, b.Namespace, selector)
}
