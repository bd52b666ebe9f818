package pods

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/wire"
)

const (
	// remembered is how long a birth is kept. The activator gives up on a cold start that takes
	// longer.
	remembered = 15 * time.Minute
	// sweepAt is the number of births from which old ones are removed.
	sweepAt = 1024
)

// births records when pods got a node and when their containers started. It knows only pods that
// this process saw before they had a node. Scheduled is when this process saw the node, which is
// more exact than the pod's condition.
type births struct {
	mutex sync.Mutex
	of    map[podName]*birth
	sweep int
}

type podName struct {
	revision loop.Key
	pod      string
}

type birth struct {
	wire.Birth
	seen time.Time
}

func (b *births) note(p *corev1.Pod, now time.Time) {
	name := podName{loop.Key{Namespace: p.Namespace, Name: p.Labels[names.RevisionLabel]}, p.Name}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	one := b.of[name]
	if one == nil {
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil {
			b.forget(now)
			b.of[name] = &birth{seen: now}
		}
		return
	}
	if p.Spec.NodeName == "" {
		return
	}
	if one.Scheduled.IsZero() {
		one.Scheduled = now
	}
	if started, all := running(p); all && one.Started.IsZero() {
		one.Started = started
	}
}

// running returns when the last container started, if all have.
func running(p *corev1.Pod) (last time.Time, all bool) {
	for i := range p.Status.ContainerStatuses {
		state := p.Status.ContainerStatuses[i].State.Running
		if state == nil {
			return time.Time{}, false
		}
		if state.StartedAt.After(last) {
			last = state.StartedAt.Time
		}
	}
	return last, !last.IsZero()
}

// forget removes old births each time the number of births has doubled.
func (b *births) forget(now time.Time) {
	if b.of == nil {
		b.of, b.sweep = map[podName]*birth{}, sweepAt
	}
	if len(b.of) < b.sweep {
		return
	}
	for name, one := range b.of {
		if now.Sub(one.seen) > remembered {
			delete(b.of, name)
		}
	}
	b.sweep = max(2*len(b.of), sweepAt)
}

// Birth returns the known steps of a pod's start, without Asked.
func (i *Index) Birth(revision loop.Key, pod string) wire.Birth {
	i.births.mutex.Lock()
	defer i.births.mutex.Unlock()
	if one := i.births.of[podName{revision, pod}]; one != nil {
		return one.Birth
	}
	return wire.Birth{}
}
