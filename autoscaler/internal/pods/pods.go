// Package pods lists and counts the pods of the revisions.
//
// Owns: an informer on the pods with the revision label, each reduced to what is counted or
// scraped, and a list of pods for each revision. Reads: pods. Writes: nothing. Never: keeps a pod
// that belongs to no revision.
package pods

import (
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
)

// Pod is a pod that can be scraped.
type Pod struct {
	Name, IP, Node string
	Started        time.Time
	// Depth is how deeply the pod sleeps, as wire.Stat has it, and Since since when.
	Depth uint8
	Since time.Time
	// Shrunk is names.AwakeRequestsAnnotation.
	Shrunk string
}

// Index finds pods by revision.
type Index struct {
	informer cache.SharedIndexInformer
	// New, if set before Start, is called when a pod is new that is to start with more CPU. It must
	// not block.
	New func()

	mutex     sync.RWMutex
	revisions map[loop.Key]*group

	// silent are the nodes that are silent, and whether they are lost; see SetSilent.
	silent map[string]bool
	// nodes are the pods of each node.
	nodes map[string][]*small
	// starting are the pods whose CPU limit may have to change; see StartingPods.
	starting map[podName]*small

	births births
}

// NewIndex prepares the informer.
func NewIndex(client kubernetes.Interface) (*Index, error) {
	i := &Index{revisions: map[loop.Key]*group{}, starting: map[podName]*small{}}
	i.informer = coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = names.RevisionLabel
	})
	// Each event passes here, with the whole pod for the last time.
	if err := i.informer.SetTransform(func(o any) (any, error) {
		if p, ok := o.(*corev1.Pod); ok {
			i.births.note(p, time.Now())
		}
		return strip(o)
	}); err != nil {
		return nil, fmt.Errorf("strip pods: %w", err)
	}
	return i, nil
}

// Start begins to watch. changed is called with the revision of every pod that changed, and must
// not block. Start returns true when the pods are known, or false if done closed before.
func (i *Index) Start(done <-chan struct{}, changed func(loop.Key)) bool {
	registration, err := i.informer.AddEventHandler(i.handler(changed))
	if err != nil {
		return false // the informer was stopped
	}
	go i.informer.Run(done)
	return cache.WaitForCacheSync(done, registration.HasSynced)
}

func (i *Index) handler(changed func(loop.Key)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if p, ok := o.(*small); ok {
				i.put(nil, p)
				changed(p.key())
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if p, ok := o.(*small); ok {
				i.put(p, nil)
				changed(p.key())
			}
		},
		UpdateFunc: func(before, after any) {
			a, ok1 := before.(*small)
			b, ok2 := after.(*small)
			if !ok1 || !ok2 {
				return
			}
			i.put(a, b)
			if a.revision != b.revision {
				changed(a.key())
			}
			if a.revision != b.revision || a.state != b.state || a.ip != b.ip || a.shrunk != b.shrunk || a.startup.raised() != b.startup.raised() ||
				(a.node != b.node || a.leaves != b.leaves) && i.isSilent(b.node) {
				changed(b.key())
			}
		},
	}
}

// put removes a pod, adds one, or replaces one.
func (i *Index) put(before, after *small) {
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if before != nil {
		delete(i.starting, podName{before.key(), before.name})
		if r := i.revisions[before.key()]; r != nil {
			r.pods = slices.DeleteFunc(r.pods, func(p *small) bool {
				if p.name == before.name {
					i.leaveLocked(p)
					return true
				}
				return false
			})
			r.known = false
			if len(r.pods) == 0 {
				delete(i.revisions, before.key())
			}
		}
	}
	if after != nil {
		r := i.revisions[after.key()]
		if r == nil {
			r = &group{}
			i.revisions[after.key()] = r
		}
		if before != nil && before.ip == after.ip && !(before.said.woke && after.state == ready) {
			after.said = before.said
		}
		if before != nil && before.memory > 0 && after.shrunk != "" {
			after.memory = before.memory
		}
		if before != nil && before.startup != nil && after.startup != nil {
			after.startup.trouble = before.startup.trouble
		}
		if after.startup != nil && !after.startup.settled(after.state) {
			i.starting[podName{after.key(), after.name}] = after
			if before == nil && i.New != nil {
				i.New()
			}
		}
		r.pods = append(r.pods, after)
		r.known = false
		i.landLocked(after)
	}
}
