package pods

import (
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/standby"
)

// small is what is kept of a pod: about two hundred bytes of several kilobytes. The informer sees
// it as an object with a name and a version and no other metadata.
type small struct {
	metav1.Object
	namespace, name, version, revision, ip, node string
	started                                      time.Time
	state                                        state
	leaves                                       bool  // it is being deleted
	freezes                                      bool  // the node agent may freeze its containers
	memory                                       int32 // requested, in MiB
	shrunk                                       string
	startup                                      *startup // nil if it starts with its own limit
	// said is what the pod said of its sleep. The index's mutex guards it.
	said said
}

func (p *small) GetNamespace() string       { return p.namespace }
func (p *small) GetName() string            { return p.name }
func (p *small) GetResourceVersion() string { return p.version }

func (p *small) key() loop.Key { return loop.Key{Namespace: p.namespace, Name: p.revision} }

type state uint8

const (
	other state = iota
	pending
	terminating
	ready
	notReady
	lapsed
)

// strip keeps what is counted or scraped.
func strip(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	// Many pods share these names, and each event brought its own copy.
	s := &small{Object: &blank, namespace: unique.Make(p.Namespace).Value(), name: p.Name, version: p.ResourceVersion,
		revision: unique.Make(p.Labels[names.RevisionLabel]).Value(), node: unique.Make(p.Spec.NodeName).Value(), ip: p.Status.PodIP, state: stateOf(p),
		leaves: p.DeletionTimestamp != nil, memory: memoryOf(p), freezes: p.Annotations[standby.Containers] != "", shrunk: p.Annotations[names.AwakeRequestsAnnotation]}
	s.startup = startupOf(p, s.state)
	if p.Status.StartTime != nil {
		s.started = p.Status.StartTime.Time
	}
	return s, nil
}

// blank stands for the metadata that is not kept. It is never written to, because objects in a
// cache are read only.
var blank metav1.ObjectMeta

// stateOf says what a pod counts as:
//
//	Pending                       pending and not ready
//	Running, being deleted        terminating and not ready
//	Running, condition Ready      ready
//	Running otherwise             not ready; lapsed too, if it was ready since queue-proxy started
//	Succeeded, Failed, Unknown    not counted
//
// A pod that is ready or lapsed counts as asleep while it says so (see Said), and as ready once it
// says that it woke. If it is lost, it is neither, and not ready (see SetSilent).
func stateOf(p *corev1.Pod) state {
	switch {
	case p.Status.Phase == corev1.PodPending:
		return pending
	case p.Status.Phase != corev1.PodRunning:
		return other
	case p.DeletionTimestamp != nil:
		return terminating
	}
	for _, c := range p.Status.Conditions {
		switch {
		case c.Type != corev1.PodReady:
		case c.Status == corev1.ConditionTrue:
			return ready
		case wasReady(p, c.LastTransitionTime):
			return lapsed
		}
	}
	return notReady
}

// wasReady reports whether a pod was ready before the time since, and is not merely starting: a
// starting pod has had its condition since before queue-proxy started. If queue-proxy was restarted
// since, it holds no earlier requests.
func wasReady(p *corev1.Pod, since metav1.Time) bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == names.QueueProxyContainer && c.State.Running != nil {
			return c.State.Running.StartedAt.Before(&since)
		}
	}
	return false
}
