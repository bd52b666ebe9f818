package pods

import (
	"maps"
	"math/rand/v2"
	"slices"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

// SetSilent takes which nodes are silent, and whether they are lost. Pods on lost nodes are lost,
// and on silent ones those that have not started: nobody there starts them. A lost pod is not ready
// from now on, nor asleep, whatever Kubernetes says. changed is called with the revisions of which
// pods are lost that were not, or the other way round.
func (i *Index) SetSilent(silent map[string]bool, changed func(loop.Key)) {
	var keys []loop.Key
	i.mutex.Lock()
	for key, r := range i.revisions {
		if slices.ContainsFunc(r.pods, func(p *small) bool { return p.lost(silent) != p.lost(i.silent) }) {
			keys, r.known = append(keys, key), false
		}
	}
	i.silent = maps.Clone(silent)
	i.mutex.Unlock()
	for _, key := range keys {
		changed(key)
	}
}

// lost reports whether a pod is lost if these nodes are silent; see SetSilent.
func (p *small) lost(silent map[string]bool) bool {
	lost, is := silent[p.node]
	return is && p.state != other && !p.leaves && (lost || p.state == pending)
}

// isSilent reports whether a node is silent. Nothing more is heard of a pod that Kubernetes places
// there, so that is news.
func (i *Index) isSilent(node string) bool {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	_, silent := i.silent[node]
	return silent
}

// Where returns the node and the address of a pod, "" if they are not known.
func (i *Index) Where(k loop.Key, pod string) (node, ip string) {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	if p := i.find(k, pod); p != nil {
		return p.node, p.ip
	}
	return "", ""
}

// On returns how many pods of a revision are on a node.
func (i *Index) On(k loop.Key, node string) (n int32) {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	if r := i.revisions[k]; r != nil {
		for _, p := range r.pods {
			if p.node == node && p.state != other {
				n++
			}
		}
	}
	return n
}

// landLocked and leaveLocked keep the pods of a node. Those without a node do not count.
func (i *Index) landLocked(p *small) {
	if p.node == "" {
		return
	}
	if i.nodes == nil {
		i.nodes = map[string][]*small{}
	}
	i.nodes[p.node] = append(i.nodes[p.node], p)
}

func (i *Index) leaveLocked(p *small) {
	all := i.nodes[p.node]
	at := slices.Index(all, p)
	if at < 0 {
		return
	}
	last := len(all) - 1
	all[at], all[last] = all[last], nil
	if i.nodes[p.node] = all[:last]; last == 0 {
		delete(i.nodes, p.node)
	}
}

// Elsewhere reports whether pods are on other nodes than this one. It looks at no pod.
func (i *Index) Elsewhere(node string) bool {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	_, here := i.nodes[node]
	return len(i.nodes) > 1 || len(i.nodes) == 1 && !here
}

// maxOfNamespace bounds how many pods of a namespace speak for a node. Their owner could have all
// of them answer nobody.
const maxOfNamespace = 2

// Nodes lists the nodes with pods, and addresses of these, at most maxEach of each node, and some
// of each namespace. These are others each time, as some may never answer. The pods run and are not
// being deleted: of others the node's kernel may not know any more that it should answer.
func (i *Index) Nodes(maxEach int) map[string][]string {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	all, of := map[string][]string{}, map[string]int{}
	for node, pods := range i.nodes {
		var ips []string
		counts := false
		clear(of)
		start := rand.IntN(len(pods))
		for n := range pods {
			p := pods[(start+n)%len(pods)]
			if p.state == other || p.state == terminating {
				continue
			}
			counts = true // it may have no address yet, or none any more
			if p.state != pending && p.ip != "" && of[p.namespace] < maxOfNamespace {
				of[p.namespace]++
				if ips = append(ips, p.ip); len(ips) == maxEach {
					break
				}
			}
		}
		if counts {
			all[node] = ips
		}
	}
	return all
}
