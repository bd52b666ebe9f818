package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// breakAll goes through the faults until the time is over, each at least once, and prints for each
// what the requests saw until the cluster was whole again. It returns how many faults there were,
// and how many requests failed in those in which HTTP does not allow to keep all.
func (s *soak) breakAll(ctx context.Context, set faults.Set, list []faults.Fault, probers map[string]*probe.Prober) (n, allowed int, err error) {
	end := time.Now().Add(s.lasts)
	for n < len(list) || time.Now().Before(end) {
		if n%len(list) == 0 {
			s.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		f := list[n%len(list)]
		count, began := set.Watch(ctx, probers), time.Now()
		if err := f.Do(ctx); err != nil {
			count()
			return n, allowed, fmt.Errorf("%s: %w", f.Name, err)
		}
		broken := time.Since(began)
		whole, cancel := context.WithTimeout(ctx, 5*time.Minute)
		err := set.Recover(whole)
		cancel()
		w := count()
		if err != nil {
			return n, allowed, fmt.Errorf("after %s: %w", f.Name, err)
		}
		n++
		if f.Loses != "" {
			allowed += w.Failed
		}
		line := result.Fields{"fault": f.Name, "at": began.UTC().Format("15:04:05"), "broken_s": round(broken), "whole_after_s": round(time.Since(began) - broken),
			"requests": w.Requests, "failed": w.Failed, "failed_by_status": w.ByStatus, "resets": w.Resets, "not_sent": w.Skipped,
			"longest_gap_ms": result.Milliseconds(w.Gap), "wrong_pod_seconds": math.Round(w.WrongScale), "api_away_s": math.Round(w.Unseen), "may_lose": f.Loses}
		if err := s.out.Line(line); err != nil {
			return n, allowed, err
		}
		select {
		case <-ctx.Done():
			return n, allowed, context.Cause(ctx)
		case <-time.After(s.every):
		}
	}
	return n, allowed, nil
}

// round is a duration in seconds.
func round(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }
