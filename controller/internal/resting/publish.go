package resting

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/apply"
	"ebb.dev/ebb/controller/internal/endpoints"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/ingress/plan"
	"ebb.dev/ebb/wire"
)

var addressTypes = []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}

func sliceName(kind discoveryv1.AddressType) string {
	if kind == discoveryv1.AddressTypeIPv6 {
		return plan.Resting + "-ipv6"
	}
	return plan.Resting
}

func ownedBy(ns *corev1.Namespace) metav1.OwnerReference {
	return *metav1.NewControllerRef(ns, corev1.SchemeGroupVersion.WithKind("Namespace"))
}

// publish makes the Service exist and lists the activators behind it that follow plans. They do so
// only once there is an EndpointSlice, and those that start later before they are ready.
func (r *reconciler) publish(ctx context.Context, owner *corev1.Namespace) (again time.Duration, err error) {
	if err := r.service(ctx, owner); err != nil {
		return 0, err
	}
	all, err := r.activators.EndpointSlices(r.system).List(labels.Everything())
	if err != nil {
		return 0, err
	}
	api := r.kube.DiscoveryV1().EndpointSlices(r.system)
	have, found := map[discoveryv1.AddressType]*discoveryv1.EndpointSlice{}, map[discoveryv1.AddressType]bool{}
	for _, kind := range addressTypes {
		if have[kind], found[kind], err = apply.Found(api.Get(ctx, sliceName(kind), metav1.GetOptions{})); err != nil {
			return 0, err
		}
		if found[kind] {
			r.followers.listed(have[kind])
		}
	}
	if first := addressTypes[0]; !found[first] {
		if have[first], err = r.list(ctx, owner, nil, first, nil); err != nil {
			return 0, err
		}
		found[first] = true
	}
	again = everyAgain
	if !r.followers.ask(ctx, all) {
		again = activatorsAgain
	}
	addresses := endpoints.OfActivators(all, r.silent(), r.followers.follows)
	for _, kind := range addressTypes {
		switch {
		case len(addresses[kind]) > 0:
			_, err = r.list(ctx, owner, have[kind], kind, addresses[kind])
		case found[kind] && kind != addressTypes[0]:
			err = apply.Delete(ctx, api, "EndpointSlice", have[kind], metav1.DeleteOptions{})
		}
		// Else the last ones stay: one of them may be back, and an activator ends when it has none.
		if err != nil {
			return 0, err
		}
	}
	return again, nil
}

// list makes the EndpointSlice of an address type exist.
func (r *reconciler) list(ctx context.Context, owner *corev1.Namespace, have *discoveryv1.EndpointSlice, kind discoveryv1.AddressType,
	addresses []discoveryv1.Endpoint) (*discoveryv1.EndpointSlice, error) {
	want := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: sliceName(kind), Namespace: r.system, OwnerReferences: []metav1.OwnerReference{ownedBy(owner)},
			Labels: map[string]string{names.CommonLabel: "true", discoveryv1.LabelServiceName: plan.Resting, discoveryv1.LabelManagedBy: endpoints.ManagedBy}},
		AddressType: kind, Endpoints: addresses,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(wire.PortHTTP1)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	out, _, err := apply.Child(ctx, r.kube.DiscoveryV1().EndpointSlices(r.system), "EndpointSlice", owner, have, have != nil && have.Name != "", want,
		func(have, want *discoveryv1.EndpointSlice) {
			apply.Metadata(have, want)
			if !equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) {
				have.Endpoints = want.Endpoints
			}
			have.Ports = want.Ports
		})
	return out, err
}

func (r *reconciler) service(ctx context.Context, owner *corev1.Namespace) error {
	want := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: plan.Resting, Namespace: r.system, OwnerReferences: []metav1.OwnerReference{ownedBy(owner)},
			Labels: map[string]string{names.CommonLabel: "true"}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(wire.PortHTTP1)}}},
	}
	api := r.kube.CoreV1().Services(r.system)
	have, found, err := apply.Found(api.Get(ctx, want.Name, metav1.GetOptions{}))
	if err != nil {
		return err
	}
	_, _, err = apply.Child(ctx, api, "Service", owner, have, found, want, func(have, want *corev1.Service) {
		apply.Metadata(have, want)
		have.Spec.Ports, have.Spec.Selector = want.Spec.Ports, want.Spec.Selector
	})
	return err
}

// followers are the activators that were seen to follow plans.
type followers struct {
	client *http.Client

	mu   sync.Mutex
	seen map[string]bool
}

// askWithin bounds one question, and askAtOnce how many are open.
const (
	askWithin = 500 * time.Millisecond
	askAtOnce = 16
)

func newFollowers(mgr *reconcile.Manager) *followers {
	f := &followers{client: &http.Client{Timeout: askWithin}, seen: map[string]bool{}}
	if f.client.Transport = mgr.ToGateways; mgr.ToGateways == nil {
		f.client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: askWithin}).DialContext}
	}
	return f
}

func (f *followers) follows(address string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[address]
}

func (f *followers) set(address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[address] = true
}

func (f *followers) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = map[string]bool{}
}

// listed says that the activators in an EndpointSlice were seen to follow plans, before this
// process started.
func (f *followers) listed(slice *discoveryv1.EndpointSlice) {
	for _, e := range slice.Endpoints {
		if len(e.Addresses) > 0 {
			f.set(e.Addresses[0])
		}
	}
}

// ask asks those activators that are not known to follow plans, and forgets those that are gone. It
// reports whether all do.
func (f *followers) ask(ctx context.Context, slices []*discoveryv1.EndpointSlice) bool {
	there := map[string]bool{}
	var group sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	for _, slice := range slices {
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 || there[e.Addresses[0]] {
				continue
			}
			address := e.Addresses[0]
			if there[address] = true; f.follows(address) {
				continue
			}
			group.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if f.one(ctx, address) == nil {
					f.set(address)
				}
			})
		}
	}
	group.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	all := true
	for address := range there {
		all = all && f.seen[address]
	}
	for address := range f.seen {
		if !there[address] {
			delete(f.seen, address)
		}
	}
	return all
}

// one asks an activator for a host that nobody has. One that follows plans says that there is no
// plan of it; an older one, or one that does not follow yet, misses a hash.
func (f *followers) one(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address, strconv.Itoa(wire.PortHTTP1))+wire.PathHealth, nil)
	if err != nil {
		return err
	}
	request.Host = "ebb-common.ebb.invalid"
	request.Header.Set(wire.HeaderNetworkProbe, wire.ProbeIngress)
	request.Header.Set(wire.HeaderResting, string(plan.ClusterLocal))
	request.Header.Set("User-Agent", wire.AgentIngressProbe)
	response, err := f.client.Do(request)
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 4096))
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNotFound || response.Header.Get(wire.HeaderResting) != wire.RestingUnknown {
		return fmt.Errorf("activator %s answers %d", address, response.StatusCode)
	}
	return nil
}
