package reconcile

import (
	"k8s.io/apimachinery/pkg/util/sets"
	coordinationinformers "k8s.io/client-go/informers/coordination/v1"

	"ebb.dev/ebb/wire"
)

// Silent has the nodes that autoscalers call silent.
func (mgr *Manager) Silent() coordinationinformers.LeaseInformer {
	return mgr.Named(mgr.SystemNamespace, wire.SilentNodes).Coordination().V1().Leases()
}

// SilentNodes are the nodes that autoscalers call silent.
func (mgr *Manager) SilentNodes() sets.Set[string] {
	lease, err := mgr.Silent().Lister().Leases(mgr.SystemNamespace).Get(wire.SilentNodes)
	if err != nil { // there is no such Lease: nobody was silent yet
		return nil
	}
	return sets.New(wire.DecodeSilentNodes(lease.Annotations[wire.SilentNodesAnnotation])...)
}
