package faults

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/cluster"
)

// Replaced is what became of nodes and pods in a time.
type Replaced struct {
	// Silent and Lost are verdicts of autoscalers, as their events tell.
	Silent, Lost int
	// Pods are those of the services that are new, whoever asked for them.
	Pods int
}

// Replacing counts from now on until the returned function is called. It looks each second, also
// while the API server does not always answer: what it saw once counts.
func (s Set) Replacing(ctx context.Context) (done func() (Replaced, error), err error) {
	before, err := s.sight(ctx)
	if err != nil {
		return nil, err
	}
	looking, stop := context.WithCancel(ctx)
	seen := make(chan sighting, 1)
	go func() {
		all := sighting{pods: map[types.UID]bool{}, verdicts: map[types.UID]verdicts{}}
		for cluster.Pause(looking, time.Second) == nil {
			if now, err := s.sight(looking); err == nil {
				all.add(now)
			}
		}
		seen <- all
	}()
	return func() (Replaced, error) {
		stop()
		all := <-seen
		ctx, cancel := mending(ctx)
		defer cancel()
		err := cluster.Until(ctx, func() (bool, string, error) {
			now, err := s.sight(ctx)
			if err != nil {
				return false, err.Error(), nil
			}
			all.add(now)
			return true, "", nil
		})
		return all.since(before), err
	}, nil
}

// sighting is what there is at a time.
type sighting struct {
	pods     map[types.UID]bool
	verdicts map[types.UID]verdicts // by event
}

// verdicts are how often an event tells of one.
type verdicts struct {
	reason string
	n      int
}

func (s Set) sight(ctx context.Context) (sighting, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/revision"})
	if err != nil {
		return sighting{}, fmt.Errorf("list the pods of services in %s: %w", s.Namespace, err)
	}
	events, err := s.Kube.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node"})
	if err != nil {
		return sighting{}, fmt.Errorf("list the events of nodes: %w", err)
	}
	seen := sighting{pods: map[types.UID]bool{}, verdicts: map[types.UID]verdicts{}}
	for _, pod := range pods.Items {
		seen.pods[pod.UID] = true
	}
	for _, e := range events.Items {
		if e.Reason == "NodeSilent" || e.Reason == "NodeLost" {
			seen.verdicts[e.UID] = verdicts{e.Reason, max(1, int(e.Count))}
		}
	}
	return seen, nil
}

// add takes what was seen later.
func (s *sighting) add(later sighting) {
	for uid := range later.pods {
		s.pods[uid] = true
	}
	for uid, v := range later.verdicts {
		s.verdicts[uid] = v
	}
}

// since is what has come after an earlier sighting.
func (s *sighting) since(before sighting) (r Replaced) {
	for uid := range s.pods {
		if !before.pods[uid] {
			r.Pods++
		}
	}
	for uid, v := range s.verdicts {
		n := v.n - before.verdicts[uid].n
		if v.reason == "NodeLost" {
			r.Lost += n
		} else {
			r.Silent += n
		}
	}
	return r
}
