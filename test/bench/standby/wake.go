package main

import (
	"context"
	"fmt"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// language measures the pods of one sample.
func (b *bench) language(ctx context.Context, language string) (result.Fields, error) {
	figures := result.Fields{"language": language}
	sleepers := make([]*sleeper, b.services)
	for i := range sleepers {
		s, err := b.apply(ctx, fmt.Sprintf("%s-%d", language, i), languages[language], `autoscaling.ebb.dev/standby: "1"`)
		if err != nil {
			return nil, err
		}
		sleepers[i] = s
	}
	if err := b.measureWakes(ctx, sleepers, b.wakes, 0, "", figures); err != nil {
		return nil, err
	}
	zramBefore := zram()
	awake, err := b.memoryAwake(ctx, sleepers[0])
	if err != nil {
		return nil, err
	}
	if err := b.measureWakes(ctx, sleepers, b.compressed, b.deep, "compressed_", figures); err != nil {
		return nil, err
	}
	if err := b.measureAsleep(ctx, sleepers, awake, zramBefore, figures); err != nil {
		return nil, err
	}
	for _, s := range sleepers {
		if err := b.delete(ctx, s); err != nil {
			return nil, err
		}
	}
	cold, err := b.measureCold(ctx, language)
	if err != nil {
		return nil, err
	}
	figures["cold_median_ms"] = result.Median(cold)
	return figures, nil
}

// measureWakes lets the pods sleep for a time and wakes them, one after the other.
func (b *bench) measureWakes(ctx context.Context, sleepers []*sleeper, n int, asleep time.Duration, prefix string, figures result.Fields) error {
	var wakes, warm []float64
	for i := range n {
		s := sleepers[i%len(sleepers)]
		if err := b.awaitAsleep(ctx, s, asleep); err != nil {
			return err
		}
		wake, err := b.request(ctx, s)
		if err != nil {
			return err
		}
		wakes = append(wakes, wake)
		for range 5 {
			took, err := b.request(ctx, s)
			if err != nil {
				return err
			}
			warm = append(warm, took)
		}
		s.woke = time.Now()
	}
	if prefix == "" {
		figures["warm_p50_ms"] = result.Median(warm)
		figures["wake_p50_ms"] = result.Median(wakes)
	}
	figures[prefix+"wake_p99_ms"] = result.Quantile(wakes, 0.99)
	figures[prefix+"wakes"] = n
	for _, s := range sleepers {
		if err := b.samePod(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
