package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"ebb.dev/ebb/test/internal/faults"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// breakAll goes through the faults until the time is over, each at least once, and prints for each
// what the requests saw until the cluster was whole again. It returns how many faults there were,
// and when those lasted in which HTTP does not allow to keep all requests. A node that was called
// lost although it was alive is an error in the end.
func (s *soak) breakAll(ctx context.Context, set faults.Set, list []faults.Fault, probers map[string]*probe.Prober) (n int, lossy []probe.Span, err error) {
	var wrong []error
	defer func() { err = errors.Join(append(wrong, err)...) }()
	end := time.Now().Add(s.lasts)
	for n < len(list) || time.Now().Before(end) {
		if n%len(list) == 0 {
			s.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		f := list[n%len(list)]
		began := time.Now()
		line, err := s.breakOne(ctx, set, f, probers)
		if err != nil {
			return n, lossy, err
		}
		n++
		if f.Loses != "" {
			lossy = append(lossy, probe.Span{From: began, To: time.Now()})
		}
		if lost, _ := line["nodes_lost"].(int); f.Keeps && lost > 0 {
			wrong = append(wrong, fmt.Errorf("%s at %s: a node was called lost, and all were alive", f.Name, line["at"]))
		}
		if err := s.out.Line(line); err != nil {
			return n, lossy, err
		}
		select {
		case <-ctx.Done():
			return n, lossy, context.Cause(ctx)
		case <-time.After(s.every):
		}
	}
	return n, lossy, nil
}

// breakOne breaks and mends, and returns what the requests saw until the cluster was whole again.
func (s *soak) breakOne(ctx context.Context, set faults.Set, f faults.Fault, probers map[string]*probe.Prober) (result.Fields, error) {
	replacing := func() (faults.Replaced, error) { return faults.Replaced{}, nil }
	s.hit = faults.Hit{}
	if f.Node {
		var err error
		if replacing, err = set.Replacing(ctx); err != nil {
			return nil, err
		}
	}
	count, began := set.Watch(ctx, probers), time.Now()
	err := f.Do(ctx)
	broken := time.Since(began)
	if err == nil {
		whole, cancel := context.WithTimeout(ctx, 5*time.Minute)
		err = set.Recover(whole)
		cancel()
	}
	w := count()
	replaced, countErr := replacing()
	if err := errors.Join(err, countErr); err != nil {
		return nil, fmt.Errorf("%s, broken for %s: %w", f.Name, broken.Round(time.Second), err)
	}
	line := result.Fields{"fault": f.Name, "at": began.UTC().Format("15:04:05"), "broken_s": round(broken), "whole_after_s": round(time.Since(began) - broken),
		"requests": w.Requests, "failed": w.Failed, "failed_by_status": w.ByStatus, "resets": w.Resets, "not_sent": w.Skipped,
		"longest_gap_ms": result.Milliseconds(w.Gap), "wrong_pod_seconds": math.Round(w.WrongScale), "api_away_s": math.Round(w.Unseen), "may_lose": f.Loses}
	if f.Node {
		line["node"], line["pods_there"], line["activators_there"] = s.hit.Node, s.hit.Pods, s.hit.Activators
		line["nodes_silent"], line["nodes_lost"], line["new_pods"] = replaced.Silent, replaced.Lost, replaced.Pods
	}
	return line, nil
}

// excused counts the failed requests that were under way while requests may be lost. One that waits
// for a part that is frozen or cut off may fail long after the fault.
func excused(report probe.Report, lossy []probe.Span) (n int) {
	for _, lost := range report.Lost {
		if slices.ContainsFunc(lossy, lost.Meets) {
			n++
		}
	}
	return n
}

// round is a duration in seconds.
func round(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }
