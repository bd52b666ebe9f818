// Package pods knows the pods of the revisions.
//
// Owns: an informer on the pods that carry the revision label, each stripped to what is counted or scraped.
// Reads: pods. Writes: nothing. Never: holds a pod of anything else than a revision.
package pods

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

const byRevision = "revision"

// Pod is a ready pod that can be asked for its stat.
type Pod struct {
	Name, IP string
	Started  time.Time
}

// Index finds pods by revision.
type Index struct {
	factory  informers.SharedInformerFactory
	informer cache.SharedIndexInformer
}

// NewIndex prepares the informer; changed is called with the revision of every pod that changed and must not block.
func NewIndex(client kubernetes.Interface, changed func(loop.Key)) (*Index, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = names.RevisionLabel
	}))
	informer := factory.Core().V1().Pods().Informer()
	if err := informer.SetTransform(strip); err != nil {
		return nil, fmt.Errorf("strip pods: %w", err)
	}
	if err := informer.AddIndexers(cache.Indexers{byRevision: func(o any) ([]string, error) {
		if p, ok := o.(*corev1.Pod); ok {
			return []string{key(p).String()}, nil
		}
		return nil, nil
	}}); err != nil {
		return nil, fmt.Errorf("index pods by revision: %w", err)
	}
	notice := func(o any) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if p, ok := o.(*corev1.Pod); ok {
			changed(key(p))
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: notice, DeleteFunc: notice,
		UpdateFunc: func(before, after any) {
			if state(before.(*corev1.Pod)) != state(after.(*corev1.Pod)) {
				notice(after)
			}
		},
	}); err != nil {
		return nil, fmt.Errorf("watch pods: %w", err)
	}
	return &Index{factory, informer}, nil
}

// Start begins to watch and returns when the pods are known, or false when done closed before that.
func (i *Index) Start(done <-chan struct{}) bool {
	i.factory.Start(done)
	return cache.WaitForCacheSync(done, i.informer.HasSynced)
}

func key(p *corev1.Pod) loop.Key {
	return loop.Key{Namespace: p.Namespace, Name: p.Labels[names.RevisionLabel]}
}

// strip keeps what Count and Ready read: a pod of several kilobytes becomes a few hundred bytes.
func strip(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	small := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, ResourceVersion: p.ResourceVersion,
		DeletionTimestamp: p.DeletionTimestamp, Labels: map[string]string{names.RevisionLabel: p.Labels[names.RevisionLabel]}}}
	small.Status.Phase, small.Status.PodIP, small.Status.StartTime = p.Status.Phase, p.Status.PodIP, p.Status.StartTime
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			small.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return small, nil
}

type podState struct {
	phase       corev1.PodPhase
	ready, gone bool
	ip          string
}

func state(p *corev1.Pod) podState {
	s := podState{phase: p.Status.Phase, gone: p.DeletionTimestamp != nil, ip: p.Status.PodIP}
	for _, c := range p.Status.Conditions {
		s.ready = s.ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	return s
}

// Count counts a revision's pods:
//
//	Pending                       pending and not ready
//	Running, being deleted        terminating and not ready
//	Running, condition Ready      ready
//	Running otherwise             not ready
//	Succeeded, Failed, Unknown    not counted
func (i *Index) Count(k loop.Key) loop.Counts {
	var c loop.Counts
	i.each(k, func(p *corev1.Pod) {
		s := state(p)
		switch {
		case s.phase == corev1.PodPending:
			c.Pending++
			c.NotReady++
		case s.phase != corev1.PodRunning:
		case s.gone:
			c.Terminating++
			c.NotReady++
		case s.ready:
			c.Ready++
		default:
			c.NotReady++
		}
	})
	return c
}

// Ready lists a revision's ready pods.
func (i *Index) Ready(k loop.Key) []Pod {
	var ready []Pod
	i.each(k, func(p *corev1.Pod) {
		if s := state(p); s.phase == corev1.PodRunning && s.ready && !s.gone && s.ip != "" {
			one := Pod{Name: p.Name, IP: s.ip}
			if p.Status.StartTime != nil {
				one.Started = p.Status.StartTime.Time
			}
			ready = append(ready, one)
		}
	})
	return ready
}

func (i *Index) each(k loop.Key, visit func(*corev1.Pod)) {
	found, err := i.informer.GetIndexer().ByIndex(byRevision, k.String())
	if err != nil {
		return // the index exists, see NewIndex
	}
	for _, o := range found {
		visit(o.(*corev1.Pod))
	}
}
