package endpoints

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
	"knative.dev/pkg/hash"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/wire"
)

// Source says whose addresses a public Service lists.
type Source string

// Whose addresses a public Service lists.
const (
	Pods       Source = "pods"
	Activators Source = "activators"
	Nobody     Source = "nobody"
)

// firstActivators serve a revision about which the autoscaler has said nothing yet.
const firstActivators = 2

// maxEndpoints is the most addresses that Kubernetes accepts in one EndpointSlice.
const maxEndpoints = 1000

// choose decides which addresses the public Service of a revision lists, by address type. An activator that was told to end
// goes on taking requests for long after it stopped to answer its readiness probe, and ready ones are preferred to it; so it fills the gap
// until the next one is ready.
//
//	mode    ready pods  activators    ->
//	Serve   some        any           pods
//	Serve   none        some ready    activators: a request must find somebody who can hold it
//	Proxy   any         some ready    activators
//	Proxy   any         some leaving  these: a pod's own queue is shorter than theirs
//	Proxy   some        none of them  pods: better without the activator than not at all
//	any     none        some leaving  these
//	any     none        some ended    these, who say that they take nothing more: they may, and nobody else is there
//	any     none        none          nobody
//
// The change from one row to another is one write per EndpointSlice, so there is no moment in between without addresses.
// An address type counts on its own, because an EndpointSlice does.
func choose(revision string, mode autoscalingv1alpha1.Mode, numActivators int32,
	pods, activators []*discoveryv1.EndpointSlice) (map[discoveryv1.AddressType][]discoveryv1.Endpoint, Source) {
	if mode == "" {
		mode, numActivators = autoscalingv1alpha1.ModeProxy, firstActivators
	}
	ofPods, ofActivators := standing(pods, ready), standing(activators, ready)
	if len(ofActivators) == 0 {
		ofActivators = standing(activators, leaving)
	}
	if len(ofActivators)+len(ofPods) == 0 {
		ofActivators = standing(activators, ended)
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

// state is what an endpoint's conditions say of it.
type state uint8

const (
	unready state = iota
	ready         // takes requests
	leaving       // was told to end, and still answers its readiness probe
	ended         // was told to end, and does not answer it
)

func stateOf(c discoveryv1.EndpointConditions) state {
	switch {
	case c.Ready == nil || *c.Ready: // nil means ready, says the API
		return ready
	case c.Terminating == nil || !*c.Terminating:
		return unready
	case c.Serving != nil && *c.Serving:
		return leaving
	}
	return ended
}

// standing collects the endpoints that are in the state, sorted by address, each once.
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
			// No TargetRef: an implementation may wait until it has seen the pod that is named there. Listed as ready whatever its state:
			// gateways differ in what they do with an endpoint that only serves.
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

// subset picks n of the activators by consistent hashing on the revision's name, so that a revision keeps its activators
// when others come and go, and the revisions spread over all of them. n = 0 is all.
func subset(revision string, n int, all []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	if n <= 0 || len(all) <= n {
		return all
	}
	addresses := sets.New[string]()
	for _, e := range all {
		addresses.Insert(e.Addresses[0])
	}
	chosen := hash.ChooseSubset(addresses, n, revision)
	return slices.DeleteFunc(slices.Clone(all), func(e discoveryv1.Endpoint) bool { return !chosen.Has(e.Addresses[0]) })
}

// makeSlices lists the addresses in as few EndpointSlices as Kubernetes allows. The first of a type is always there, if
// only to say that nobody is; its name is the revision's for IPv4.
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
