package endpoints

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
)

// slices makes an EndpointSlice of words such as "10.0.0.1" (ready), "-10.0.0.2" (not ready),
// "~10.0.0.3" (terminating, still serving) and "!10.0.0.4" (terminating, not serving).
func endpointSlice(words string) []*discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	for _, w := range strings.Fields(words) {
		e := discoveryv1.Endpoint{Addresses: []string{strings.TrimLeft(w, "-~!")}}
		e.Conditions.Ready = ptr.To(!strings.ContainsAny(w, "-~!"))
		e.Conditions.Serving = ptr.To(!strings.ContainsAny(w, "-!"))
		e.Conditions.Terminating = ptr.To(strings.ContainsAny(w, "~!"))
		s.Endpoints = append(s.Endpoints, e)
	}
	return []*discoveryv1.EndpointSlice{s}
}

func addresses(list []discoveryv1.Endpoint) string {
	var out []string
	for _, e := range list {
		out = append(out, e.Addresses[0])
	}
	return strings.Join(out, " ")
}

// Gateways prefer endpoints of their own zone. One that is told the pod, too, may wait for it.
func TestEndpointsNameNodeAndZoneAndNoPod(t *testing.T) {
	pods, activators := endpointSlice("1"), endpointSlice("9")
	for _, slice := range [][]*discoveryv1.EndpointSlice{pods, activators} {
		e := &slice[0].Endpoints[0]
		e.NodeName, e.Zone, e.TargetRef = ptr.To("node"), ptr.To("zone"), &corev1.ObjectReference{Kind: "Pod", Name: "p"}
	}
	for _, mode := range []autoscalingv1alpha1.Mode{autoscalingv1alpha1.ModeServe, autoscalingv1alpha1.ModeProxy} {
		chosen, source := choose("r", mode, 1, pods, activators, nil)
		e := chosen[discoveryv1.AddressTypeIPv4][0]
		if ptr.Deref(e.NodeName, "") != "node" || ptr.Deref(e.Zone, "") != "zone" || e.TargetRef != nil {
			t.Errorf("an endpoint of %s is %v", source, e)
		}
	}
}

func TestChoose(t *testing.T) {
	const serve, proxy = autoscalingv1alpha1.ModeServe, autoscalingv1alpha1.ModeProxy
	for _, row := range []struct {
		mode             autoscalingv1alpha1.Mode
		n                int32
		pods, activators string
		want             string
		source           Source
		why              string
	}{
		{serve, 0, "2 1", "9", "1 2", Pods, "pods serve, sorted"},
		{serve, 0, "-1", "9", "9", Activators, "no pod is ready: an activator holds the request"},
		{serve, 0, "~1 -2 3", "9", "3", Pods, "a pod that goes takes no new request"},
		{serve, 0, "", "9", "9", Activators, "no pod at all"},
		{proxy, 0, "1 2", "8 9", "8 9", Activators, "0 activators means all"},
		{proxy, 0, "1 2", "!8 -9", "1 2", Pods, "no activator: better without than not at all"},
		{proxy, 0, "1 2", "~8 -9", "8", Activators, "one that leaves still holds more than a pod's queue"},
		{proxy, 0, "1", "~8 9", "9", Activators, "one that stays is preferred to one that leaves"},
		{serve, 0, "", "~8 -9", "8", Activators, "nobody else until the next activator is ready"},
		{serve, 0, "", "!7 ~8 -9", "8", Activators, "the one that still answers"},
		{serve, 0, "-1", "!8 -9", "8", Activators, "it says that it takes nothing more, but nobody else is there"},
		{serve, 0, "1", "~8", "1", Pods, "pods serve"},
		{proxy, 1, "", "~8 ~9", "8", Activators, "a subset of those that leave"},
		{proxy, 0, "1", "", "1", Pods, "no activator at all"},
		{serve, 0, "", "", "", Nobody, "nobody there"},
		{serve, 0, "-1 -2", "-8 -9", "8 9", Activators, "the API server has not heard of any node: they answer all the same"},
		{proxy, 1, "-1", "-8 -9", "8", Activators, "a subset of those"},
		{serve, 0, "-1 ~2", "", "1", Pods, "no activator at all"},
		{proxy, 5, "", "8 9", "8 9", Activators, "more wanted than there are"},
		{"", 0, "1", "8 9", "8 9", Activators, "before the first decision two activators serve"},
		{proxy, 0, "1 1", "9 9", "9", Activators, "an address in two slices counts once"},
	} {
		got, source := choose("rev", row.mode, row.n, endpointSlice(row.pods), endpointSlice(row.activators), nil)
		if addresses(got[discoveryv1.AddressTypeIPv4]) != row.want || source != row.source {
			t.Errorf("mode %q, pods %q, activators %q: got %q from %s, want %q from %s: %s", row.mode, row.pods, row.activators,
				addresses(got[discoveryv1.AddressTypeIPv4]), source, row.want, row.source, row.why)
		}
	}
}

// A word such as "1@b" is on node b, which is silent.
func TestWhatIsOnSilentNodesIsLeftOutIfThereIsMore(t *testing.T) {
	const serve, proxy = autoscalingv1alpha1.ModeServe, autoscalingv1alpha1.ModeProxy
	on := func(words string) []*discoveryv1.EndpointSlice {
		var plain []string
		nodes := map[string]string{}
		for _, w := range strings.Fields(words) {
			address, node, known := strings.Cut(w, "@")
			if plain = append(plain, address); known {
				nodes[strings.TrimLeft(address, "-~!")] = node
			}
		}
		out := endpointSlice(strings.Join(plain, " "))
		for i := range out[0].Endpoints {
			if node := nodes[out[0].Endpoints[i].Addresses[0]]; node != "" {
				out[0].Endpoints[i].NodeName = &node
			}
		}
		return out
	}
	for _, row := range []struct {
		mode             autoscalingv1alpha1.Mode
		n                int32
		pods, activators string
		want             string
		source           Source
		why              string
	}{
		{serve, 0, "1@a 2@b 3@c", "9@a", "1 3", Pods, "others take the requests"},
		{serve, 0, "1 2@b", "9@a", "1", Pods, "a pod whose node is not named"},
		{serve, 0, "1@b 2@b", "9@a", "1 2", Pods, "there are no others"},
		{serve, 0, "-1@a 2@b", "9@a", "2", Pods, "others are not ready"},
		{proxy, 0, "1@a", "8@b 9@c", "9", Activators, "of activators, too"},
		{proxy, 2, "1@a", "7@a 8@b 9@c", "7 9", Activators, "a subset of those that answer"},
		{proxy, 0, "1@a", "8@b", "1", Pods, "better without an activator than not at all"},
		{proxy, 0, "1@a 2@b", "7@b 8@b", "1", Pods, "the same"},
		{proxy, 0, "1@a", "7@b ~8@a ~9@b", "8", Activators, "one that leaves takes requests"},
		{proxy, 0, "1@a", "7@b ~9@b", "1", Pods, "not on a silent node"},
		{proxy, 0, "1@b", "8@b", "8", Activators, "pods do not answer either"},
		{proxy, 0, "-1@a", "8@b", "8", Activators, "no pod is ready"},
		{proxy, 0, "1@b", "7@b ~8@b", "7", Activators, "nobody answers"},
		{proxy, 0, "1@b 2@c", "", "2", Pods, "no activator"},
	} {
		got, source := choose("rev", row.mode, row.n, on(row.pods), on(row.activators), sets.New("b"))
		if addresses(got[discoveryv1.AddressTypeIPv4]) != row.want || source != row.source {
			t.Errorf("mode %q, pods %q, activators %q: got %q from %s, want %q from %s: %s", row.mode, row.pods, row.activators,
				addresses(got[discoveryv1.AddressTypeIPv4]), source, row.want, row.source, row.why)
		}
	}
}

func TestChooseNeverListsNobodyWhileSomebodyIsThere(t *testing.T) {
	for bits := range 1 << 4 {
		word := func(bit int, address string) string {
			if bits&(1<<bit) != 0 {
				return address
			}
			return "-" + address
		}
		for _, mode := range []autoscalingv1alpha1.Mode{"", "Serve", "Proxy", "Nonsense"} {
			got, source := choose("rev", mode, 1, endpointSlice(word(0, "1")+" "+word(1, "2")), endpointSlice(word(2, "8")+" "+word(3, "9")), nil)
			if len(got) == 0 || source == Nobody {
				t.Errorf("mode %q, ready %04b: %v from %s", mode, bits, got, source)
			}
		}
	}
}

func TestSubsetIsStableAndSpread(t *testing.T) {
	var words []string
	for i := range 10 {
		words = append(words, fmt.Sprintf("10.0.0.%d", i))
	}
	all := standing(endpointSlice(strings.Join(words, " ")), ready)[discoveryv1.AddressTypeIPv4]
	fewer := standing(endpointSlice(strings.Join(words[:9], " ")), ready)[discoveryv1.AddressTypeIPv4]
	used, moved := map[string]int{}, 0
	for i := range 200 {
		revision := fmt.Sprintf("rev-%05d", i)
		chosen := subset(revision, 2, all)
		if len(chosen) != 2 {
			t.Fatalf("%s got %d activators, want 2", revision, len(chosen))
		}
		after := addresses(subset(revision, 2, fewer))
		for _, e := range chosen {
			used[e.Addresses[0]]++
			if e.Addresses[0] != words[9] && !strings.Contains(after, e.Addresses[0]) {
				moved++
			}
		}
	}
	if len(used) != 10 {
		t.Errorf("200 revisions use only %d of 10 activators: %v", len(used), used)
	}
	// Of 400 choices about 40 were the activator that went. The others should mostly stay.
	if moved > 80 {
		t.Errorf("%d of 400 choices moved although their activator stayed", moved)
	}
}

func podAutoscaler(protocol autoscalingv1alpha1.ProtocolType) *autoscalingv1alpha1.PodAutoscaler {
	return &autoscalingv1alpha1.PodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "hello-00001", Namespace: "default", UID: "pa-uid",
			Labels:      map[string]string{names.RevisionLabel: "hello-00001", names.RevisionUIDLabel: "rev-uid", "app": "hello"},
			Annotations: map[string]string{names.MinScaleAnnotation: "1"}},
		Spec: autoscalingv1alpha1.PodAutoscalerSpec{ProtocolType: protocol},
	}
}

func TestManyAddressesFillSeveralSlices(t *testing.T) {
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	list := make([]discoveryv1.Endpoint, 2001)
	made := makeSlices(pa, map[discoveryv1.AddressType][]discoveryv1.Endpoint{"IPv4": list, "IPv6": list[:1]})
	var got []string
	for _, s := range made {
		got = append(got, fmt.Sprintf("%s %s %d", s.Name, s.AddressType, len(s.Endpoints)))
	}
	want := []string{"hello-00001 IPv4 1000", "hello-00001-endpoints-2 IPv4 1000", "hello-00001-endpoints-3 IPv4 1", "hello-00001-ipv6 IPv6 1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if empty := makeSlices(pa, nil); len(empty) != 1 || len(empty[0].Endpoints) != 0 {
		t.Errorf("with nobody there one empty EndpointSlice is wanted, got %v", empty)
	}
}
