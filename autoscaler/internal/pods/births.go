package pods

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

const (
	// remembered is how long a birth is of interest: a cold start that takes longer is given up.
	remembered = 15 * time.Minute
	// sweepAt is how many births are kept before the old ones are looked for.
	sweepAt = 1024
)

// Birth is when a pod got a node and when its containers ran; zero what is not known.
type Birth struct {
	// Scheduled is when this process saw that a node was chosen, which is finer than the pod's
	// condition, in whole seconds.
	Scheduled time.Time
	// Started is when the last container began to run, in whole seconds.
	Started time.Time
}

// births remembers the pods that were seen before they had a node. What was there before this
// process is not of interest.
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
	Birth
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

// running returns when the last container began to run, if all do.
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

// forget drops old births whenever as many again have come as were left by the last time.
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

// Birth returns what is known of how a pod came to be.
func (i *Index) Birth(revision loop.Key, pod string) Birth {
	i.births.mutex.Lock()
	defer i.births.mutex.Unlock()
	if one := i.births.of[podName{revision, pod}]; one != nil {
		return one.Birth
	}
	return Birth{}
}
