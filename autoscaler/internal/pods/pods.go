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
	"unique"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/revision"
	"ebb.dev/ebb/standby"
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

	// silent are the nodes that are silent, and whether they are lost; see Judge.
	silent map[string]bool
	// nodes are the pods of each node.
	nodes map[string][]*small
	// starting are the pods whose CPU limit may have to change; see StartingPods.
	starting map[podName]*small

	births births
}

// group holds the pods of one revision. The counts and lists are derived on demand.
type group struct {
	pods   []*small
	known  bool
	counts revision.Counts
	ready  []Pod
	lapsed []Pod
	asleep []Pod
}

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

// said is what a pod said of its sleep: asleep at depth, or awake again. The kubelet takes some
// time to notice either. failure says why it was not frozen, and alone means that it could be, but
// has no node agent.
type said struct {
	depth       uint8
	woke, alone bool
	since       time.Time
	failure     string
}

// freezeTime is how long a pod has to be frozen once it sleeps.
const freezeTime = 10 * time.Second

// isAlone reports whether a pod said for too long that it sleeps no deeper than warm, without a
// freeze that failed.
func (p *small) isAlone(depth uint8, failure string) bool {
	return depth == 1+uint8(standby.Warm) && failure == "" && p.freezes && p.said.depth == depth && time.Since(p.said.since) >= freezeTime
}

// noticed is how long the kubelet has to notice that a pod woke. After that the pod is what the
// kubelet says.
const noticed = 30 * time.Second

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
// says that it woke. If it is lost, it is neither, and not ready (see Judge).
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

// Count counts a revision's pods, see stateOf.
func (i *Index) Count(k loop.Key) revision.Counts {
	return i.look(k).counts
}

// Ready lists a revision's ready pods. The caller must not change the list.
func (i *Index) Ready(k loop.Key) []Pod {
	return i.look(k).ready
}

// Said records what a pod says of its sleep: depth and failure as wire.Stat has them. It reports
// whether that is news.
func (i *Index) Said(k loop.Key, pod string, depth uint8, failure string) bool {
	if depth != 1+uint8(standby.Warm) {
		failure = ""
	}
	i.mutex.RLock()
	p := i.find(k, pod)
	news := p != nil && (p.said.depth != depth || p.said.failure != failure || p.isAlone(depth, failure) != p.said.alone)
	i.mutex.RUnlock()
	if !news {
		return false
	}
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if p = i.find(k, pod); p == nil {
		return false
	}
	since, alone := p.said.since, p.isAlone(depth, failure)
	if p.said.depth == 0 || depth == 0 {
		since = time.Now()
	}
	p.said = said{depth: depth, woke: depth == 0 && p.state != ready, alone: alone, since: since, failure: failure}
	i.revisions[k].known = false
	return true
}

func (i *Index) find(k loop.Key, pod string) *small {
	r := i.revisions[k]
	if r == nil {
		return nil
	}
	for _, p := range r.pods {
		if p.name == pod {
			return p
		}
	}
	return nil
}

// Starting returns since when the slowest of a revision's pods has been starting: it has a node
// that is not lost, nor is it itself, and was never ready. It is zero if no pod is.
func (i *Index) Starting(k loop.Key) (since time.Time) {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	r := i.revisions[k]
	if r == nil {
		return since
	}
	for _, p := range r.pods {
		if (p.state == pending || p.state == notReady) && !i.silent[p.node] && !p.lost(i.silent) && !p.started.IsZero() && (since.IsZero() || p.started.Before(since)) {
			since = p.started
		}
	}
	return since
}

// NotReady lists the pods that sleep, and those that may: they were ready before. The caller must
// not change the lists.
func (i *Index) NotReady(k loop.Key) (asleep, lapsed []Pod) {
	g := i.look(k)
	return g.asleep, g.lapsed
}

// ToScrape lists the pods that know a revision's load: the ready ones or, if there are none, those
// that were ready before. These may still handle long requests. The caller must not change the
// list.
func (i *Index) ToScrape(k loop.Key) []Pod {
	g := i.look(k)
	if len(g.ready) == 0 {
		return g.lapsed
	}
	return g.ready
}

// look returns a copy of the group, derived.
func (i *Index) look(k loop.Key) group {
	i.mutex.RLock()
	r := i.revisions[k]
	if r == nil || r.known {
		defer i.mutex.RUnlock()
		if r == nil {
			return group{}
		}
		return *r
	}
	i.mutex.RUnlock()
	i.mutex.Lock()
	defer i.mutex.Unlock()
	if !r.known {
		r.derive(i.silent)
	}
	return *r
}

// derive computes the counts and new lists. Lists that were returned before do not change.
func (r *group) derive(silent map[string]bool) {
	r.known, r.counts, r.ready, r.lapsed, r.asleep = true, revision.Counts{}, nil, nil, nil
	for _, p := range r.pods {
		r.counts.Memory = max(r.counts.Memory, p.memory)
		pod, state := Pod{Name: p.name, IP: p.ip, Node: p.node, Started: p.started, Depth: p.said.depth, Since: p.said.since, Shrunk: p.shrunk}, p.state
		if p.startup != nil {
			p.startup.count(&r.counts.Startup)
		}
		switch running := state == ready || state == lapsed; {
		case p.lost(silent):
			r.counts.Lost++
			if state != pending {
				state = notReady
			}
		case running && p.said.depth > 0:
			r.counts.Asleep++
			r.counts.Deep[min(int(p.said.depth), revision.Levels)-1]++
			switch failure := p.said.failure; {
			case p.said.alone:
				r.counts.Alone++
			case failure != "":
				r.counts.Unfrozen++
				if r.counts.FreezeFailure == "" || failure < r.counts.FreezeFailure {
					r.counts.FreezeFailure = failure
				}
			}
			r.asleep = append(r.asleep, pod)
			continue
		case state == lapsed && p.said.woke && time.Since(p.said.since) < noticed:
			state, r.known = ready, false // until the kubelet has noticed
		}
		switch state {
		case pending:
			r.counts.Pending++
			r.counts.NotReady++
		case terminating:
			r.counts.Terminating++
			r.counts.NotReady++
		case notReady:
			r.counts.NotReady++
		case lapsed:
			r.counts.NotReady++
			if p.ip != "" {
				r.counts.Lapsed++
				r.lapsed = append(r.lapsed, pod)
			}
		case ready:
			r.counts.Ready++
			if p.ip != "" {
				r.ready = append(r.ready, pod)
				if p.shrunk != "" {
					r.counts.Shrunk++
				}
			}
		}
	}
}
