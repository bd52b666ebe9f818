package backends

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"ebb.dev/ebb/activator/internal/hold"
)

// Endpoint is one address of an EndpointSlice of a private Service.
type Endpoint struct {
	Address     netip.AddrPort
	Pod         string
	Ready       bool
	Terminating bool
	// Serving tells whether the pod passes its readiness probe, even if it is terminating.
	Serving bool
	// Node and Zone are where the pod is, "" if that is not known.
	Node, Zone string
}

const (
	// announcedFor is how long an announced pod is used before an EndpointSlice lists it, from its
	// first announcement. During a burst EndpointSlices are seconds late, never minutes. A pod that
	// died meanwhile must not stay forever, nor a process that is no pod of the revision.
	announcedFor = time.Minute
	// distrustedFor is how long an address is not believed again that announced itself and was not
	// listed in time.
	distrustedFor = 10 * time.Minute
	// withdrawnFor is how long a withdrawal is kept while EndpointSlices still list the pod as
	// ready.
	withdrawnFor = 10 * time.Minute
	// leavingFor is the longest time after its withdrawal in which a pod is used as the last
	// resort.
	leavingFor = 30 * time.Second
)

// lastResort is how long a leaving pod may get new requests if there is no other pod. The pod
// serves while requests come, but Kubernetes kills it after the revision's timeout. A quarter of
// the timeout leaves slow requests enough time to finish.
func lastResort(timeout time.Duration) time.Duration { return min(leavingFor, timeout/4) }

// announcement is the latest announcement of a pod.
type announcement struct {
	pod   string
	ready bool
	at    time.Time
	// first is when this address was announced first. Repeated announcements do not change it.
	first    time.Time
	sequence uint64
	// started is when queue-proxy's process began, answered when the user container first answered.
	// Both are read from the node's clock.
	started, answered time.Time
	// listed is set when an EndpointSlice lists the pod after its announcement.
	listed bool
	// asleep says that the pod sleeps and that a request wakes it.
	asleep bool
}

func (a *announcement) backend(address netip.AddrPort) hold.Backend {
	return hold.Backend{Address: address, Pod: a.pod, Asleep: a.asleep}
}

// merge returns the pods that can take requests now. It deletes announcements that are no longer
// needed: once Kubernetes lists a pod as ready, only Kubernetes counts.
//
//	EndpointSlices     announcement      usable   reason
//	ready              -                 yes      Kubernetes decides
//	ready              ready             yes
//	ready              asleep            yes      asleep; the kubelet has not probed yet
//	ready              withdrawn         no       the pod drains; the EndpointSlices are late
//	not ready          -                 no       (a successful probe of ours counts as "ready")
//	not ready          ready             yes      the kubelet has not probed yet
//	not ready          asleep            yes      asleep; a pod that sleeps is not ready
//	not ready again    ready, deleted    no       Kubernetes decides
//	terminating        any               no       (see below)
//	not listed         ready, recent     yes      the EndpointSlices are late
//	not listed         ready, older      no       it may be no pod of the revision
//	not listed         ready, and was    no       the pod is gone
//	                   listed before
//	not listed         withdrawn         no
//
// Without early, an announced "ready" is ignored: the revision has probes that only the kubelet
// runs.
//
// A leaving pod still serves requests. If no pod is usable, merge returns leaving pods: those that
// withdrew less than resort ago, and those that are terminating and pass their readiness probe. So
// the only pod of a service can be replaced without delaying a request.
func merge(bySlice map[string][]Endpoint, announcements map[netip.AddrPort]announcement, early bool, resort time.Duration, now time.Time) []hold.Backend {
	leaving := map[netip.AddrPort]hold.Backend{}
	usable := map[netip.AddrPort]hold.Backend{}
	listed := map[netip.AddrPort]bool{}
	for _, endpoints := range bySlice {
		for _, e := range endpoints {
			listed[e.Address] = true
			said, spoke := announcements[e.Address]
			if spoke && said.pod != e.Pod && e.Pod != "" {
				// Another pod has this address now. The EndpointSlices name it, unless the new
				// pod's announcement is newer than they are.
				if early && said.ready && !said.listed && now.Sub(said.first) < announcedFor {
					usable[e.Address] = said.backend(e.Address)
					continue
				}
				delete(announcements, e.Address)
				said, spoke = announcement{}, false
			}
			if spoke {
				said.listed = true
				announcements[e.Address] = said
				if said.ready && e.Ready && !said.asleep {
					delete(announcements, e.Address)
				}
			}
			pod := hold.Backend{Address: e.Address, Pod: e.Pod, Asleep: said.asleep}
			switch {
			case spoke && !said.ready:
				if now.Sub(said.at) < resort {
					leaving[e.Address] = pod
				}
			case e.Terminating:
				if e.Serving && resort > 0 {
					leaving[e.Address] = pod
				}
			case e.Ready, spoke && (early || said.asleep):
				usable[e.Address] = pod
			}
		}
	}
	mergeUnlisted(listed, announcements, usable, early, now)
	if len(usable) == 0 {
		usable = leaving
	}
	return slices.SortedFunc(maps.Values(usable), func(a, b hold.Backend) int { return a.Address.Compare(b.Address) })
}

// mergeUnlisted adds the pods that announced themselves before the EndpointSlices list them, and
// forgets what counts no longer.
func mergeUnlisted(listed map[netip.AddrPort]bool, announcements map[netip.AddrPort]announcement, usable map[netip.AddrPort]hold.Backend, early bool, now time.Time) {
	for address, said := range announcements {
		switch {
		case listed[address]:
		case said.ready && !said.listed && now.Sub(said.first) < announcedFor:
			if early {
				usable[address] = said.backend(address)
			}
		case said.ready && now.Sub(said.first) > distrustedFor, now.Sub(said.at) > withdrawnFor, said.listed:
			delete(announcements, address)
		}
	}
}
