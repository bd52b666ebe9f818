package pods

import (
	"maps"
	"slices"

	"ebb.dev/ebb/autoscaler/internal/loop"
)

// Judge takes which nodes are lost. Their pods are not ready from now on, nor asleep, whatever
// Kubernetes says. changed is called with the revisions that have pods on a node that was not lost
// before, or is not any more.
func (i *Index) Judge(lost map[string]bool, changed func(loop.Key)) {
	var keys []loop.Key
	i.mutex.Lock()
	for key, r := range i.revisions {
		if slices.ContainsFunc(r.pods, func(p *small) bool { return lost[p.node] != i.lost[p.node] }) {
			keys, r.known = append(keys, key), false
		}
	}
	i.lost = maps.Clone(lost)
	i.mutex.Unlock()
	for _, key := range keys {
		changed(key)
	}
}

// Node returns the node of a pod, "" if it is not known.
func (i *Index) Node(k loop.Key, pod string) string {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	if p := i.find(k, pod); p != nil {
		return p.node
	}
	return ""
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

// maxOfNamespace bounds how many pods of a namespace speak for a node. Their owner could have all
// of them answer nobody.
const maxOfNamespace = 2

// Nodes lists the nodes with pods, and addresses of these, at most maxEach of each node, and some
// of each namespace. The pods run and are not being deleted: of others the node's kernel may not
// know any more that it should answer.
func (i *Index) Nodes(maxEach int) map[string][]string {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	type part struct{ node, namespace string }
	all, of := map[string][]string{}, map[part]int{}
	for _, r := range i.revisions {
		for _, p := range r.pods {
			if p.node == "" || p.state == other || p.state == terminating {
				continue
			}
			if _, known := all[p.node]; !known {
				all[p.node] = nil // it may have no address yet, or none any more
			}
			switch p.state {
			case ready, lapsed, notReady:
				from := part{p.node, p.namespace}
				if p.ip != "" && len(all[p.node]) < maxEach && of[from] < maxOfNamespace {
					of[from]++
					all[p.node] = append(all[p.node], p.ip)
				}
			}
		}
	}
	return all
}
