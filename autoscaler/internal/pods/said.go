package pods

import (
	"time"

	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/standby"
)

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
