package main

import (
	"context"
	"math"
	"slices"
	"sync"

	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// together is the answer of a round that counts: the tenth.
const together = 10

// measureTogether wakes the pods of a sample that share a node at once, and takes the time until
// ten have answered.
func (b *bench) measureTogether(ctx context.Context, groups []*group) error {
	var slow []slowWake
	for _, g := range groups {
		pods := onOneNode(g.sleepers)
		var tens []float64
		for range b.rounds {
			for _, s := range pods {
				if err := b.awaitAsleep(ctx, s, frozen, 0); err != nil {
					return err
				}
			}
			replies, err := b.askAll(ctx, pods)
			if err != nil {
				return err
			}
			var took []float64
			for i, reply := range replies {
				took = append(took, result.Milliseconds(reply.Took))
				if b.trace > 0 && reply.Took > b.trace {
					slow = append(slow, slowWake{pods[i].pod, reply.Sent, reply.Sent.Add(reply.Took)})
				}
			}
			tens = append(tens, nth(took, together))
		}
		g.figures["ten_at_once_ms"], g.figures["ten_at_once_slowest_ms"] = result.Median(tens), result.Quantile(tens, 1)
	}
	return b.tell(ctx, slow, "together_")
}

// askAll sends one request to each pod at once.
func (b *bench) askAll(ctx context.Context, pods []*sleeper) ([]probe.Reply, error) {
	replies, errs := make([]probe.Reply, len(pods)), make([]error, len(pods))
	begin := make(chan struct{})
	var all sync.WaitGroup
	for i, s := range pods {
		all.Go(func() {
			<-begin
			replies[i], errs[i] = b.ask(ctx, s)
			s.woke = replies[i].Sent.Add(replies[i].Took)
		})
	}
	close(begin)
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return replies, nil
}

// onOneNode returns the pods of the node that has the most of them.
func onOneNode(sleepers []*sleeper) (most []*sleeper) {
	nodes := map[string][]*sleeper{}
	for _, s := range sleepers {
		nodes[s.node] = append(nodes[s.node], s)
		if len(nodes[s.node]) > len(most) {
			most = nodes[s.node]
		}
	}
	return most
}

// nth is the n-th smallest of values, NaN if they are fewer.
func nth(values []float64, n int) float64 {
	if len(values) < n {
		return math.NaN()
	}
	return slices.Sorted(slices.Values(values))[n-1]
}
