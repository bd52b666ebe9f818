package backends

import (
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
	// Serving is whether it answers its readiness probe, terminating or not.
	Serving bool
}

const (
	// announcedFor is how long a pod is used on its own word before any EndpointSlice lists it. Slices
	// lag seconds behind a burst, never minutes; a pod that died in between must not stay forever.
	announcedFor = time.Minute
	// withdrawnFor is how long a withdrawal outlives the slices that still list the pod as ready.
	withdrawnFor = 10 * time.Minute
	// leavingFor is how long after its withdrawal a pod is the last resort at most.
	leavingFor = 30 * time.Second
)

// lastResort is how long a leaving pod may get new requests when no other pod is there. It serves as long as requests come, but Kubernetes
// kills it when the revision's timeout has passed: a quarter of that leaves even slow requests the time to end.
func lastResort(timeout time.Duration) time.Duration { return min(leavingFor, timeout/4) }

// word is what a pod said of itself last.
type word struct {
	pod      string
	ready    bool
	at       time.Time
	sequence uint64
	// started and answered are when its sidecar's process began and when the user container first answered, by the node's clock.
	started, answered time.Time
	// listed is set when a slice listed the pod after it announced itself.
	listed bool
}

// merge says which pods take requests now, and forgets what is no longer worth remembering of their own
// words: once Kubernetes lists a pod as ready, its word alone counts.
//
//	the slices say     the pod said      usable   because
//	ready              -                 yes      Kubernetes is the truth
//	ready              ready             yes
//	ready              withdrawn         no       it drains, and the slices do not know it yet
//	not ready          -                 no       (unless a probe of ours finds it ready: that counts as its word)
//	not ready          ready             yes      kubelet has not looked yet
//	not ready again    ready, forgotten  no       Kubernetes is the truth
//	terminating        anything          no       (see below)
//	nothing            ready, just now   yes      the slices have not heard of it yet
//	nothing            ready, and was    no       it is gone
//	                   listed before
//	nothing            withdrawn         no
//
// Without early, a pod's own "ready" counts for nothing: the revision has probes that only the kubelet runs.
//
// A pod that leaves serves what still comes. When no pod is usable, one that withdrew less than resort ago, or is terminating and still answers
// its readiness probe, is better than waiting for the next: the only pod of a service may be replaced without anybody noticing.
func merge(slices_ map[string][]Endpoint, words map[netip.AddrPort]word, early bool, resort time.Duration, now time.Time) []hold.Backend {
	leaving := map[netip.AddrPort]string{}
	usable := map[netip.AddrPort]string{}
	listed := map[netip.AddrPort]bool{}
	for _, endpoints := range slices_ {
		for _, e := range endpoints {
			listed[e.Address] = true
			said, spoke := words[e.Address]
			if spoke && said.pod != e.Pod && e.Pod != "" {
				// The address has changed hands; the slices name the pod that has it now, unless
				// the new pod's own word is younger than what they know.
				if early && said.ready && !said.listed && now.Sub(said.at) < announcedFor {
					usable[e.Address] = said.pod
					continue
				}
				delete(words, e.Address)
				said, spoke = word{}, false
			}
			if spoke {
				said.listed = true
				words[e.Address] = said
				if said.ready && e.Ready {
					delete(words, e.Address)
				}
			}
			switch {
			case spoke && !said.ready:
				if now.Sub(said.at) < resort {
					leaving[e.Address] = e.Pod
				}
			case e.Terminating:
				if e.Serving && resort > 0 {
					leaving[e.Address] = e.Pod
				}
			case e.Ready, spoke && early:
				usable[e.Address] = e.Pod
			}
		}
	}
	for address, said := range words {
		switch {
		case listed[address]:
		case said.ready && !said.listed && now.Sub(said.at) < announcedFor:
			if early {
				usable[address] = said.pod
			}
		case said.ready, now.Sub(said.at) > withdrawnFor, said.listed:
			delete(words, address)
		}
	}
	if len(usable) == 0 {
		usable = leaving
	}
	backends := make([]hold.Backend, 0, len(usable))
	for address, pod := range usable {
		backends = append(backends, hold.Backend{Address: address, Pod: pod})
	}
	slices.SortFunc(backends, func(a, b hold.Backend) int { return a.Address.Compare(b.Address) })
	return backends
}
