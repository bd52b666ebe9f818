package backends

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"ebb.dev/ebb/activator/internal/hold"
)

// Snapshot is an immutable list of the pods that take requests.
type Snapshot struct {
	Pods []hold.Backend
	// Births tells how the activator learned of each pod. It is parallel to Pods.
	Births []Birth
	// NotReady are the pods that EndpointSlices list as not ready and that have sent no
	// announcement.
	NotReady []hold.Backend
	// Changed is closed when a newer snapshot exists.
	Changed <-chan struct{}

	changed chan struct{}
}

// Birth is how the activator learned of a pod.
type Birth struct {
	Known     time.Time // when the activator learned that the pod takes requests
	Announced bool      // whether it learned this from an announcement, not from Kubernetes
	// Started is when queue-proxy's process began, Answered when the user container first answered.
	// Both are read from the node's clock, and zero if the pod did not send them.
	Started, Answered time.Time
}

// Awake reports whether a pod takes requests without being woken for them.
func (s *Snapshot) Awake() bool {
	return slices.ContainsFunc(s.Pods, func(b hold.Backend) bool { return !b.Asleep })
}

// Birth returns how the activator learned of the pod at address.
func (s *Snapshot) Birth(address netip.AddrPort) (Birth, bool) {
	i, ok := slices.BinarySearchFunc(s.Pods, address, func(b hold.Backend, a netip.AddrPort) int { return b.Address.Compare(a) })
	if !ok {
		return Birth{}, false
	}
	return s.Births[i], true
}

// publish computes the pods. If they changed, it replaces the snapshot and updates the queue.
func (e *entry) publish(zone string, now time.Time) {
	early, resort := true, time.Duration(0)
	if e.revision != nil {
		info := e.revision.Info()
		early, resort = info.Early, lastResort(info.Timeout)
	}
	spoken := e.announcements
	if len(spoken) > 0 {
		spoken = maps.Clone(spoken) // merge deletes announcements, and births are made from them
	}
	pods := merge(e.slices, e.announcements, early, resort, now)
	e.place(pods, zone)
	if e.revision == nil {
		// Nobody sends requests here, so there is nobody to protect.
		maps.DeleteFunc(e.announcements, func(_ netip.AddrPort, said announcement) bool { return now.Sub(said.at) > announcedFor })
		return
	}
	var notReady []hold.Backend
	for _, endpoints := range e.slices {
		if !early {
			break
		}
		for _, endpoint := range endpoints {
			if _, spoke := e.announcements[endpoint.Address]; !endpoint.Ready && !endpoint.Terminating && !spoke {
				notReady = append(notReady, hold.Backend{Address: endpoint.Address, Pod: endpoint.Pod})
			}
		}
	}
	old := e.revision.state.Load()
	if old == nil {
		old = &Snapshot{}
	}
	slices.SortFunc(notReady, func(a, b hold.Backend) int { return a.Address.Compare(b.Address) })
	if slices.Equal(old.Pods, pods) && slices.Equal(old.NotReady, notReady) {
		return
	}
	next := newSnapshot(pods, notReady)
	for _, b := range pods {
		birth, known := old.Birth(b.Address)
		if said, spoke := spoken[b.Address]; !known {
			birth = Birth{Known: now, Announced: spoke && said.ready, Started: said.started, Answered: said.answered}
		}
		next.Births = append(next.Births, birth)
	}
	last := e.revision.state.Swap(next) // somebody may have asked in between
	if !slices.Equal(old.Pods, pods) {
		e.revision.Queue().SetPods(pods)
	}
	if last != nil {
		close(last.changed)
	}
}

// place says which pods are in another zone than this activator, if some are in its own. A pod
// whose zone is not known is near.
func (e *entry) place(pods []hold.Backend, zone string) {
	if zone == "" {
		return
	}
	far := map[netip.AddrPort]bool{}
	for _, endpoints := range e.slices {
		for _, one := range endpoints {
			if one.Zone != "" && one.Zone != zone {
				far[one.Address] = true
			}
		}
	}
	near := func(b hold.Backend) bool { return !far[b.Address] }
	if len(far) == 0 || !slices.ContainsFunc(pods, near) {
		return
	}
	for i := range pods {
		pods[i].Far = far[pods[i].Address]
	}
}

func newSnapshot(pods, notReady []hold.Backend) *Snapshot {
	changed := make(chan struct{})
	return &Snapshot{Pods: pods, NotReady: notReady, Changed: changed, changed: changed}
}
