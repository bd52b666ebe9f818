package ingest

import (
	"context"
	"math"
	"sync"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/wire"
)

// This file asks given pods at once, beside the scrapes.

// Ask asks every given pod for its stat and calls got with each answer, from any goroutine. It
// returns when all pods have answered, or at the deadline of ctx, at the latest after
// scrapeTimeout.
func (s *Scraper) Ask(ctx context.Context, key loop.Key, all []pods.Pod, got func(pod pods.Pod, stat wire.Stat)) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, pod := range all {
		group.Go(func() {
			if stat, err := s.one(ctx, key, pod, false); err == nil {
				got(pod, stat)
			}
		})
	}
	group.Wait()
}

// AskJudged asks every given pod for what a judge of rollouts counts. It returns at the deadline of
// ctx, at the latest after scrapeTimeout, with those that answered. A pod's queue-proxy that is too
// old to count has no Judged.
func (s *Scraper) AskJudged(ctx context.Context, key loop.Key, all []pods.Pod) []wire.Stat {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var group sync.WaitGroup
	var mutex sync.Mutex
	var found []wire.Stat
	for _, pod := range all {
		group.Go(func() {
			if stat, err := s.one(ctx, key, pod, true); err == nil {
				mutex.Lock()
				defer mutex.Unlock()
				found = append(found, stat)
			}
		})
	}
	group.Wait()
	return found
}

// InFlight asks every given pod how many requests it has: infinitely many if its program says that
// it is busy. It leaves out those that do not answer before the deadline of ctx, at the latest
// after scrapeTimeout.
func (s *Scraper) InFlight(ctx context.Context, key loop.Key, all []pods.Pod) map[string]float64 {
	var mutex sync.Mutex
	found := make(map[string]float64, len(all))
	s.Ask(ctx, key, all, func(pod pods.Pod, stat wire.Stat) {
		mutex.Lock()
		defer mutex.Unlock()
		found[pod.Name] = stat.AverageConcurrent
		if stat.Busy == wire.BusyTold {
			found[pod.Name] = math.Inf(1)
		}
	})
	return found
}

// one asks a single pod. ctx has a deadline, which covers a second try.
func (s *Scraper) one(ctx context.Context, key loop.Key, pod pods.Pod, judged bool) (wire.Stat, error) {
	i := inquiry{pods: []pods.Pod{pod}, size: 1}
	s.ask(&i)
	q := i.questions[0]
	q.judged = judged
	if q.c == nil {
		q.err = s.open(ctx, key, &q)
	} else {
		deadline, _ := ctx.Deadline()
		q.err = q.c.send(deadline, judged)
	}
	stat, err := s.answer(key, &q)
	if q.again {
		q.err = s.open(ctx, key, &q)
		stat, err = s.answer(key, &q)
	}
	return stat, err
}
