package pods

import "ebb.dev/ebb/autoscaler/internal/loop"

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

// ofNamespace bounds how many pods of a namespace speak for a node. Their owner could have all of
// them answer nobody.
const ofNamespace = 2

// Nodes lists addresses of pods by node, at most most of each, and some of each namespace. The pods
// run and are not being deleted: of others the node's kernel may not know any more that it should
// answer.
func (i *Index) Nodes(most int) map[string][]string {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	type part struct{ node, namespace string }
	all, of := map[string][]string{}, map[part]int{}
	for _, r := range i.revisions {
		for _, p := range r.pods {
			switch p.state {
			case ready, lapsed, notReady:
				from := part{p.node, p.namespace}
				if p.ip != "" && p.node != "" && len(all[p.node]) < most && of[from] < ofNamespace {
					of[from]++
					all[p.node] = append(all[p.node], p.ip)
				}
			}
		}
	}
	return all
}
