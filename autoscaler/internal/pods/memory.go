package pods

import (
	"cmp"
	"encoding/json"
	"math"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/standby"
)

// maxMiB bounds what an annotation says of a container without a limit: tenants can write it too.
const maxMiB = 16 << 10

// memoryOf is what the containers of a pod ask for while it is awake, in MiB, 0 if unknown. Of a
// pod that asks for little while it sleeps, the annotation has what it asked for before.
func memoryOf(p *corev1.Pod) int32 {
	awake := map[string]corev1.ResourceList{}
	if text := p.Annotations[names.AwakeRequestsAnnotation]; text != "" && json.Unmarshal([]byte(text), &awake) != nil {
		return 0
	}
	sum := int64(0)
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		mib := c.Resources.Requests.Memory().Value() >> 20
		if before, ok := awake[c.Name]; ok {
			most := int64(maxMiB)
			if limit := c.Resources.Limits.Memory().Value() >> 20; limit > 0 {
				most = limit
			}
			mib = max(mib, min(before.Memory().Value()>>20, most))
		}
		sum += max(mib, 0)
	}
	return int32(min(sum, math.MaxInt32))
}

// Asleep returns the memory that all pods take that sleep, in MiB: what they ask for, usual where
// they ask for nothing, and of those that are compressed the share that is left. It leaves out as
// many of a revision as besides says.
func (i *Index) Asleep(usual, share float64, besides func(revision string) int32) (mib float64) {
	i.mutex.RLock()
	defer i.mutex.RUnlock()
	for key, r := range i.revisions {
		left := besides(key.String())
		for _, p := range r.pods {
			if p.said.depth == 0 || p.state != ready && p.state != lapsed {
				continue
			}
			if left--; left >= 0 {
				continue
			}
			takes := cmp.Or(float64(p.memory), usual)
			if p.said.depth == 1+uint8(standby.Compressed) {
				takes *= share
			}
			mib += takes
		}
	}
	return mib
}
