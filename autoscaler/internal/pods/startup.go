package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
)

// Starting is a pod whose container has, or is to have, another CPU limit while it starts.
type Starting struct {
	Key loop.Key
	Pod string
	names.StartupLimit
	// Limit is the container's CPU limit in the spec, in thousandths of a CPU.
	Limit   int64
	Created time.Time
	// Ready is since when the pod is ready, zero if it is not. Was: it was before.
	Ready time.Time
	Was   bool
	// Resize is what the node makes of the limit.
	Resize Resize
}

// Resize is a resize that a node has not done. Its zero value is none.
type Resize struct {
	Reason, Message string
	Since           time.Time
}

// ResizeInProgress is the reason of a resize that the node does now, and says no more of.
const ResizeInProgress = "InProgress"

// startup is what is kept of a pod that has names.StartupLimitAnnotation. trouble is guarded by the
// index's mutex.
type startup struct {
	names.StartupLimit
	limit          int64
	created, ready time.Time
	resize         Resize
	trouble        revision.Startup
}

// startupOf returns nil for a pod that starts with its own limit. Tenants can write the annotation:
// one that says nothing is none.
func startupOf(p *corev1.Pod, s state) *startup {
	text := p.Annotations[names.StartupLimitAnnotation]
	if text == "" {
		return nil
	}
	limit, err := names.ParseStartupLimit(text)
	if err != nil || limit.Container == names.QueueProxyContainer {
		return nil
	}
	one := &startup{StartupLimit: limit, created: p.CreationTimestamp.Time}
	for i := range p.Spec.Containers {
		if c := &p.Spec.Containers[i]; c.Name == limit.Container {
			one.limit = c.Resources.Limits.Cpu().MilliValue()
		}
	}
	for _, c := range p.Status.Conditions {
		switch c.Type {
		case corev1.PodReady:
			if s == ready {
				one.ready = c.LastTransitionTime.Time
			}
		case corev1.PodResizePending, corev1.PodResizeInProgress:
			if c.Status == corev1.ConditionTrue && one.resize.Reason == "" {
				one.resize = Resize{Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.Time}
				if c.Reason == "" {
					one.resize.Reason = ResizeInProgress
				}
			}
		}
	}
	return one
}

// settled reports whether nothing of the pod changes any more: it has ended, or it was ready, has
// its own limit, and the node has done as it was told.
func (s *startup) settled(now state) bool {
	switch now {
	case pending, notReady:
		return false
	case ready, lapsed:
		return s.limit != s.High && s.resize.Reason == ""
	}
	return true
}

func (s *startup) raised() bool { return s != nil && s.limit == s.High }

// count adds a pod to what is told of its revision.
func (s *startup) count(of *revision.Startup) {
	of.Raised = of.Raised || s.raised()
	if of.Reason == "" {
		of.Reason, of.Message = s.trouble.Reason, s.trouble.Message
	}
}

// StartingPods lists the pods of all revisions whose CPU limit may have to change.
func (i *Index) StartingPods() []Starting {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	all := make([]Starting, 0, len(i.starting))
	for name, p := range i.starting {
		all = append(all, Starting{Key: name.revision, Pod: name.pod, StartupLimit: p.startup.StartupLimit, Limit: p.startup.limit,
			Created: p.startup.created, Ready: p.startup.ready, Was: p.state == lapsed, Resize: p.startup.resize})
	}
	return all
}

// Hindered records what keeps a pod from the limit that it is to have, reason "" for nothing. It
// reports whether that is news.
func (i *Index) Hindered(k loop.Key, pod, reason, message string) bool {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	p := i.find(k, pod)
	trouble := revision.Startup{Reason: reason, Message: message}
	if p == nil || p.startup == nil || p.startup.trouble == trouble {
		return false
	}
	p.startup.trouble = trouble
	i.revisions[k].known = false
	return true
}
