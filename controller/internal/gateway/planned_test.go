package gateway

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

// planned is a Route with a plan for a host.
func planned(namespace, name, host string) *servingv1.Route {
	uid := namespace + "-" + name
	r := &servingv1.Route{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Route"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)}}
	r.Status.Annotations = map[string]string{names.PlanAnnotation: fmt.Sprintf(
		`{"uid":%q,"hash":"0123456789abcdef","targets":[{"host":%q,"to":[{"rev":%q}]}]}`, uid, host, name+"-00001")}
	return r
}

// started is a Manager whose caches have these objects.
func started(t *testing.T, objects ...runtime.Object) (Hosts, Led, Foreign) {
	t.Helper()
	store, config := apiservertest.Start(t)
	at := int64(0)
	store.Now = func() time.Time { at++; return time.Unix(at, 0) }
	for _, object := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		resource := schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}
		if _, is := object.(*gatewayv1.HTTPRoute); is {
			resource = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
		}
		store.Put(resource, &unstructured.Unstructured{Object: content})
		if route, is := object.(*servingv1.Route); is { // it has its UID and time from the API server, and so has the plan
			have := store.Get(resource, route.Namespace, route.Name)
			text := strings.ReplaceAll(route.Status.Annotations[names.PlanAnnotation], string(route.UID), string(have.GetUID()))
			_ = unstructured.SetNestedField(have.Object, text, "status", "annotations", names.PlanAnnotation)
			store.Put(resource, have)
			route.UID, route.CreationTimestamp = have.GetUID(), have.GetCreationTimestamp()
		}
	}
	w := stage.Manager(t, config, settings.NewStore(settings.Default()))
	httpRoutes, routes := w.GatewayInformers.Gateway().V1().HTTPRoutes().Informer(), w.EbbInformers.Serving().V1().Routes().Informer()
	hosts, led, foreign := NewHosts(w, nil), NewLed(httpRoutes, routes), NewForeign(w)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); w.EbbInformers.Shutdown(); w.GatewayInformers.Shutdown() })
	w.EbbInformers.Start(stop)
	w.GatewayInformers.Start(stop)
	w.EbbInformers.WaitForCacheSync(stop)
	w.GatewayInformers.WaitForCacheSync(stop)
	return hosts, led, foreign
}

// Two Routes that rest have one host: the older one keeps it, whoever asks, and so does one whose
// namespace the settings give the host.
func TestOfTwoRoutesThatRestOneHasAHost(t *testing.T) {
	s, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": ""}})
	if err != nil {
		t.Fatal(err)
	}
	const shared, given = "shared.example.com", "hello.young.example.com"
	for name, c := range map[string]struct {
		host   string
		winner string
	}{"by age": {shared, "old"}, "by the settings": {given, "young"}} {
		t.Run(name, func(t *testing.T) {
			old, young := planned("old", "hello", c.host), planned("young", "hello", c.host)
			hosts, led, _ := started(t, old, young)
			for _, route := range []*servingv1.Route{old, young} {
				lost, err := hosts.Yield(t.Context(), s, route, "Route", []string{c.host})
				if err != nil || (len(lost) == 0) != (route.Namespace == c.winner) || len(lost) > 0 && lost[0].Namespace != c.winner {
					t.Errorf("the Route in %s loses %v, %v; %s is to have it", route.Namespace, lost, err, c.winner)
				}
			}
			for revision, want := range map[string]bool{"hello-00001": true, "hello-00002": false} {
				if is, err := led.To("old", revision); err != nil || is != want {
					t.Errorf("a plan leads to %s: %v, %v", revision, is, err)
				}
			}
		})
	}
}

func TestWhichRevisionsAPlanLeadsToNoMore(t *testing.T) {
	before, after := planned("ns", "hello", "a"), planned("ns", "hello", "a")
	after.Status.Annotations[names.PlanAnnotation] = strings.ReplaceAll(after.Status.Annotations[names.PlanAnnotation], "hello-00001", "hello-00002")
	if got := NoMore(before, after); !slices.Equal(got, []string{"hello-00001"}) {
		t.Errorf("got %v", got)
	}
	if got := NoMore(before, before); got != nil {
		t.Errorf("unchanged: %v", got)
	}
}

func TestWhichHTTPRoutesOfOthersTakeAHost(t *testing.T) {
	on := settings.Default().Gateway.External
	route := func(name, gateway string, hosts ...gatewayv1.Hostname) *gatewayv1.HTTPRoute {
		namespace, short, _ := strings.Cut(gateway, "/")
		return &gatewayv1.HTTPRoute{TypeMeta: metav1.TypeMeta{APIVersion: "gateway.networking.k8s.io/v1", Kind: "HTTPRoute"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1, 0))},
			Spec: gatewayv1.HTTPRouteSpec{Hostnames: hosts, CommonRouteSpec: gatewayv1.CommonRouteSpec{ParentRefs: []gatewayv1.ParentReference{
				{Kind: ptr.To(gatewayv1.Kind("Gateway")), Namespace: ptr.To(gatewayv1.Namespace(namespace)), Name: gatewayv1.ObjectName(short)}}}}}
	}
	common := route("common", on[0].Gateway, "*.example.com")
	common.Namespace, common.Labels = "knative-serving", map[string]string{names.CommonLabel: "true"}
	forged := route("forged", on[0].Gateway, "forged.ns.example.com")
	forged.Labels = common.Labels
	own := route("own", on[0].Gateway, "own.ns.example.com")
	own.OwnerReferences = []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: "own", UID: "u", Controller: ptr.To(true)}}
	_, _, foreign := started(t, common, forged, own, route("all", on[0].Gateway), route("exact", on[0].Gateway, "exact.ns.example.com"),
		route("elsewhere", "edge/gateway", "elsewhere.ns.example.com"), route("wide", on[0].Gateway, "*.shop.example.com"), route("short", on[0].Gateway, "*.com"))
	for _, c := range []struct{ host, common, want string }{
		{"hello.ns.example.com", "*.example.com", ""},
		{"exact.ns.example.com", "*.example.com", "HTTPRoute other/exact"},
		{"elsewhere.ns.example.com", "*.example.com", ""},
		{"hello.shop.example.com", "*.example.com", "HTTPRoute other/wide"},
		{"forged.ns.example.com", "*.example.com", "HTTPRoute other/forged"},
		{"own.ns.example.com", "*.example.com", ""},
		{"hello.ns.example.com", "*.com", "HTTPRoute other/short"},
		{"hello.ns.svc", "", "HTTPRoute other/all"},
	} {
		if got := foreign.Takes(c.host, c.common, on); got != c.want {
			t.Errorf("%s below %q is taken by %q, want %q", c.host, c.common, got, c.want)
		}
	}
}
