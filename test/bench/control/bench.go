package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"ebb.dev/ebb/test/internal/audit"
	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/result"
)

type bench struct {
	*cluster.Cluster
	out       *result.Printer
	n         int
	image     string
	settle    time.Duration
	namespace string
	audit     *audit.Log
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.Cluster, err = cluster.Connect(ctx); err != nil {
		return err
	}
	if b.audit, err = audit.Open(); err != nil {
		return err
	}
	var undo cluster.Undo
	defer func() { err = errors.Join(err, undo.Run()) }()
	undo = append(undo, b.awaitRemoved) // runs last: an interrupted run restores everything before it waits
	restore, err := b.SetConfig(ctx, "config-autoscaler", map[string]string{"allow-zero-initial-scale": "true"})
	if err != nil {
		return err
	}
	undo = append(undo, restore)
	var remove func(context.Context) error
	if b.namespace, remove, err = b.Namespace(ctx, "control"); err != nil {
		return err
	}
	undo = append(undo, func(ctx context.Context) error {
		if err := remove(ctx); !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})

	before, err := b.rest(ctx, "before")
	if err != nil {
		return err
	}
	seconds, err := b.applyAtOnce(ctx, "many", b.n)
	if err != nil {
		return err
	}
	for i, s := range seconds {
		if err := b.out.Line(result.Fields{"service": i, "ready_s": s}); err != nil {
			return err
		}
	}
	after, err := b.rest(ctx, "after")
	if err != nil {
		return err
	}
	created, err := b.count("creation", b.n)
	if err != nil {
		return err
	}
	more, err := b.applyAtOnce(ctx, "more", 1)
	if err != nil {
		return err
	}
	if err := b.out.Line(result.Fields{"n": b.n, "anon_mib_with_n": after.AnonBytes / (1 << 20)}); err != nil {
		return err
	}
	if _, err := b.count("one more", 1); err != nil {
		return err
	}
	if err := remove(ctx); err != nil {
		return err
	}
	if err := b.awaitRemoved(ctx); err != nil {
		return err
	}
	deleted, err := b.count("deletion", b.n+1)
	if err != nil {
		return err
	}
	summary := result.Fields{
		"median_ready_s":       result.Median(seconds),
		"p99_ready_s":          result.Quantile(seconds, 0.99),
		"one_more_ready_s":     more[0],
		"anon_mib_idle":        before.AnonBytes / (1 << 20),
		"anon_mib_per_service": (after.AnonBytes - before.AnonBytes) / (1 << 20) / float64(b.n),
		"cpu_s":                after.CPUSeconds - before.CPUSeconds,
	}
	if b.audit != nil {
		summary["api_writes_per_service"], summary["api_writes_per_deletion"] = created, deleted
	}
	return b.out.Summary(summary)
}

// count prints what was written since the last call and returns the number of writes for each of n
// services.
func (b *bench) count(when string, n int) (float64, error) {
	counts, err := b.audit.Writes(b.namespace)
	if err != nil {
		return 0, err
	}
	all := 0
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		all += counts[what]
		if err := b.out.Line(result.Fields{"when": when, "write": what, "per_service": float64(counts[what]) / float64(n)}); err != nil {
			return 0, err
		}
	}
	return float64(all) / float64(n), nil
}
