package endpoints

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/wire"
)

// Source is what the endpoints of a public Service are.
type Source string

// Sources.
const (
	Pods       Source = "pods"
	Activators Source = "activators"
	Nobody     Source = "nobody"
)

// firstActivators is the number of activators of a revision that the autoscaler has not decided on
// yet.
const firstActivators = 2

// maxEndpoints is the most addresses that Kubernetes accepts in one EndpointSlice.
const maxEndpoints = 1000

// choose returns the endpoints of the public Service of a revision, by address type. An activator
// that terminates still takes requests, even after its readiness probe fails. Ready activators are
// preferred, but it fills the gap until one is ready.
//
//	mode    ready pods  activators    ->
//	Serve   some        any           pods
//	Serve   none        some ready    activators: they can hold the requests
//	Proxy   any         some ready    activators
//	Proxy   any         some leaving  these: a pod's own queue is shorter than theirs
//	Proxy   some        no activator  pods: better without the activator than not at all
//	any     none        some leaving  these
//	any     none        some ended    these: they may still take a request, and there is nothing else
//	any     none        none ready    these: they can hold the requests as soon as they listen
//	any     not ready   none          pods that are not ready
//	any     none        none          nobody
//
// Kubernetes calls all pods of a node not ready that it has not heard of for a while, as after an
// outage of the API server. They answer all the same, so those rows list them.
//
// A change from one row to another is one write per EndpointSlice, so there is always an address in
// between. Each address type is decided on its own, because each has its own EndpointSlices.
//
// Of pods and of activators that are ready, those on silent nodes are left out if there are others.
// If all activators are on silent nodes, they count as none where a pod answers.
func choose(revision string, mode autoscalingv1alpha1.Mode, numActivators int32,
	pods, activators []*discoveryv1.EndpointSlice, silent sets.Set[string]) (map[discoveryv1.AddressType][]discoveryv1.Endpoint, Source) {
	if mode == "" {
		mode, numActivators = autoscalingv1alpha1.ModeProxy, firstActivators
	}
	ofPods, podsAnswer := answering(standing(pods, ready), silent)
	ofActivators, answer := answering(standing(activators, ready), silent)
	if !answer && (podsAnswer || len(ofActivators) == 0) {
		ofActivators, answer = answering(standing(activators, leaving), silent)
		if !answer && podsAnswer {
			ofActivators = nil
		}
	}
	for _, last := range []state{ended, unready} {
		if len(ofActivators)+len(ofPods) == 0 {
			ofActivators = standing(activators, last)
		}
	}
	if len(ofActivators)+len(ofPods) == 0 {
		ofPods = standing(pods, unready)
	}
	for kind, list := range ofActivators {
		ofActivators[kind] = subset(revision, int(numActivators), list)
	}
	switch {
	case mode == autoscalingv1alpha1.ModeServe && len(ofPods) > 0, len(ofActivators) == 0 && len(ofPods) > 0:
		return ofPods, Pods
	case len(ofActivators) > 0:
		return ofActivators, Activators
	}
	return nil, Nobody
}

// OfActivators returns the activators to which gateways lead hosts that rest: as behind a revision
// in mode Proxy, but all, and only those that keep says.
func OfActivators(activators []*discoveryv1.EndpointSlice, silent sets.Set[string], keep func(address string) bool) map[discoveryv1.AddressType][]discoveryv1.Endpoint {
	var kept []*discoveryv1.EndpointSlice
	for _, slice := range activators {
		next := slice.DeepCopy()
		next.Endpoints = slices.DeleteFunc(next.Endpoints, func(e discoveryv1.Endpoint) bool { return len(e.Addresses) == 0 || !keep(e.Addresses[0]) })
		kept = append(kept, next)
	}
	out, _ := choose("", autoscalingv1alpha1.ModeProxy, 0, nil, kept, silent)
	return out
}

// state is the state of an endpoint, by its conditions.
type state uint8

const (
	unready state = iota
	ready         // takes requests
	leaving       // terminates, and its readiness probe still succeeds
	ended         // terminates, and its readiness probe fails
)

func stateOf(c discoveryv1.EndpointConditions) state {
	switch {
	case c.Ready == nil || *c.Ready: // the API defines nil as ready
		return ready
	case c.Terminating == nil || !*c.Terminating:
		return unready
	case c.Serving != nil && *c.Serving:
		return leaving
	}
	return ended
}

// standing returns the endpoints in the given state, sorted by address, without duplicates.
func standing(from []*discoveryv1.EndpointSlice, want state) map[discoveryv1.AddressType][]discoveryv1.Endpoint {
	out := map[discoveryv1.AddressType][]discoveryv1.Endpoint{}
	seen := sets.New[string]()
	for _, slice := range from {
		for _, e := range slice.Endpoints {
			if stateOf(e.Conditions) != want || len(e.Addresses) == 0 {
				continue
			}
			address := e.Addresses[0]
			if seen.Has(string(slice.AddressType) + address) {
				continue
			}
			seen.Insert(string(slice.AddressType) + address)
			// No TargetRef: Istio leaves out an endpoint whose pod it has not seen, or may not see,
			// so that there would be none in between. Without, it finds a pod of this namespace by
			// its address. All are listed as ready: gateways treat endpoints that are only serving
			// differently.
			out[slice.AddressType] = append(out[slice.AddressType], discoveryv1.Endpoint{
				Addresses: []string{address}, NodeName: e.NodeName, Zone: e.Zone,
				Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			})
		}
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.Addresses[0], b.Addresses[0]) })
	}
	return out
}

// answering leaves out what is on silent nodes, of each address type for which there is anything
// else. It reports whether there is.
func answering(all map[discoveryv1.AddressType][]discoveryv1.Endpoint, silent sets.Set[string]) (left map[discoveryv1.AddressType][]discoveryv1.Endpoint, some bool) {
	for kind, list := range all {
		others := slices.DeleteFunc(slices.Clone(list), func(e discoveryv1.Endpoint) bool { return e.NodeName != nil && silent.Has(*e.NodeName) })
		if len(others) > 0 {
			all[kind], some = others, true
		}
	}
	return all, some
}

// subset returns n of the activators for a revision, as plan.Subset says.
func subset(revision string, n int, all []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	addresses := sets.New[string]()
	for _, e := range all {
		addresses.Insert(e.Addresses[0])
	}
	chosen := plan.Subset(revision, n, addresses)
	return slices.DeleteFunc(slices.Clone(all), func(e discoveryv1.Endpoint) bool { return !chosen.Has(e.Addresses[0]) })
}

// makeSlices returns as few EndpointSlices as Kubernetes allows for the addresses. There is always
// one for IPv4, which has the revision's name and may be empty.
func makeSlices(pa *autoscalingv1alpha1.PodAutoscaler, addresses map[discoveryv1.AddressType][]discoveryv1.Endpoint) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		list := addresses[kind]
		if len(list) == 0 && (kind != discoveryv1.AddressTypeIPv4 || len(addresses) > 0) {
			continue
		}
		for i := 0; i == 0 || len(list) > 0; i++ {
			n := min(len(list), maxEndpoints)
			labels := childLabels(pa, names.ServiceTypePublic)
			labels[discoveryv1.LabelServiceName] = names.PublicService(pa.Name)
			labels[discoveryv1.LabelManagedBy] = managedBy
			out = append(out, &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name: sliceName(pa.Name, kind, i), Namespace: pa.Namespace, Labels: labels,
					OwnerReferences: owner(pa),
				},
				AddressType: kind,
				Endpoints:   list[:n:n],
				Ports:       slicePorts(pa),
			})
			list = list[n:]
		}
	}
	return out
}

func slicePorts(pa *autoscalingv1alpha1.PodAutoscaler) []discoveryv1.EndpointPort {
	port := func(name string, number int32, app *string) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(number), Protocol: ptr.To(corev1.ProtocolTCP), AppProtocol: app}
	}
	first := port(portName(pa), wire.PortHTTP1, nil)
	if isH2C(pa) {
		first = port(portName(pa), wire.PortH2C, ptr.To(appProtocolH2C))
	}
	return []discoveryv1.EndpointPort{first, port("https", wire.PortTLS, nil)}
}
