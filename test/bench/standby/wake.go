package main

import (
	"context"
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// group is the pods of one sample, and what was measured of them.
type group struct {
	language string
	sleepers []*sleeper
	figures  result.Fields
	awakeMiB float64
}

// languages measures the pods of all samples. They sleep side by side, and wake one after another.
func (b *bench) languages(ctx context.Context) ([]*group, error) {
	var groups []*group
	for _, language := range []string{"go", "python"} {
		groups = append(groups, &group{language: language, figures: result.Fields{"language": language}})
	}
	for i := range b.services {
		for _, g := range groups {
			s, err := b.apply(ctx, fmt.Sprintf("%s-%d", g.language, i), images[g.language], `autoscaling.ebb.dev/standby: "1"`)
			if err != nil {
				return nil, err
			}
			g.sleepers = append(g.sleepers, s)
		}
		if i == 0 {
			// At once: memory that a compression swapped counts as none, in a pod that woke, too.
			if err := b.memoryAwake(ctx, groups); err != nil {
				return nil, err
			}
		}
	}
	if err := b.measureWakes(ctx, groups, b.wakes, frozen, 0, ""); err != nil {
		return nil, err
	}
	if err := b.measureTogether(ctx, groups); err != nil {
		return nil, err
	}
	if err := b.measureWakes(ctx, groups, b.compressed, compressed, b.deep, "compressed_"); err != nil {
		return nil, err
	}
	if err := b.measureAsleep(ctx, groups); err != nil {
		return nil, err
	}
	for _, g := range groups {
		for _, s := range g.sleepers {
			if err := b.delete(ctx, s); err != nil {
				return nil, err
			}
		}
		cold, err := b.measureCold(ctx, g.language)
		if err != nil {
			return nil, err
		}
		g.figures["cold_median_ms"] = result.Median(cold)
	}
	return groups, nil
}

// measureWakes lets the pods sleep at a level for a time and wakes them, one after the other.
func (b *bench) measureWakes(ctx context.Context, groups []*group, n int, level depth, asleep time.Duration, prefix string) error {
	wakes, warm := make([][]float64, len(groups)), make([][]float64, len(groups))
	var slow []slowWake
	for i := range n * len(groups) {
		at := i % len(groups)
		s := groups[at].sleepers[i/len(groups)%b.services]
		if err := b.awaitAsleep(ctx, s, level, asleep); err != nil {
			return err
		}
		wake, err := b.ask(ctx, s)
		if err != nil {
			return err
		}
		wakes[at] = append(wakes[at], result.Milliseconds(wake.Took))
		if b.trace > 0 && wake.Took > b.trace {
			slow = append(slow, slowWake{s.pod, wake.Sent, wake.Sent.Add(wake.Took)})
		}
		for range 5 {
			took, err := b.request(ctx, s)
			if err != nil {
				return err
			}
			warm[at] = append(warm[at], took)
		}
		s.woke = time.Now()
	}
	if err := b.tell(ctx, slow, prefix); err != nil {
		return err
	}
	for at, g := range groups {
		if prefix == "" {
			g.figures["warm_p50_ms"] = result.Median(warm[at])
			g.figures["wake_p50_ms"] = result.Median(wakes[at])
		}
		g.figures[prefix+"wake_p99_ms"] = result.Quantile(wakes[at], 0.99)
		g.figures[prefix+"wakes"] = n
		for _, s := range g.sleepers {
			if err := b.samePod(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}
