package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	duckv1 "knative.dev/pkg/apis/duck/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/controller/internal/resting"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var (
	routes         = schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}
	configurations = schema.GroupResource{Group: "serving.knative.dev", Resource: "configurations"}
	revisions      = schema.GroupResource{Group: "serving.knative.dev", Resource: "revisions"}
	services       = schema.GroupResource{Resource: "services"}
	slicesOf       = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	httpRoutes     = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}
)

// stage is the reconciler at work against an API server in memory and one gateway pod on loopback.
type stage struct {
	t        *testing.T
	store    *apiservertest.Store
	settings *settings.Store
	// Where the gateway pod listens.
	host                  string
	plainPort, securePort int32
	// lag makes the gateway keep to what it knew when lag was set.
	lag   atomic.Bool
	known atomic.Pointer[map[string]string] // host -> hash
}

func (s *stage) put(resource schema.GroupResource, version, kind string, object runtime.Object) {
	s.t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		s.t.Fatal(err)
	}
	content["apiVersion"], content["kind"] = version, kind
	s.store.Put(resource, &unstructured.Unstructured{Object: content})
}

// hashes reads from the HTTPRoutes what a gateway would add to the requests for each host, and for
// each spare backend of a host ("host backend").
func (s *stage) hashes() map[string]string {
	out := map[string]string{}
	for name := range s.store.Versions(httpRoutes, labels.Everything()) {
		namespace, short, _ := strings.Cut(name, "/")
		object := s.store.Get(httpRoutes, namespace, short)
		if object == nil {
			continue
		}
		route := gatewayv1.HTTPRoute{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &route); err != nil {
			s.t.Error(err)
		}
		for _, rule := range route.Spec.Rules {
			spare := ""
			for _, h := range rule.Matches[0].Headers {
				spare = " " + h.Value
			}
			told := rule.Filters[0].RequestHeaderModifier
			if told == nil { // it redirects
				continue
			}
			for _, h := range told.Set {
				if h.Name == wire.HeaderNetworkHash {
					for _, host := range route.Spec.Hostnames {
						out[string(host)+spare] = h.Value
					}
				}
			}
		}
	}
	return out
}

func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	known := s.known.Load()
	if !s.lag.Load() || known == nil {
		now := s.hashes()
		known = &now
		s.known.Store(known)
	}
	host := r.Host
	if spare := r.Header.Get(wire.HeaderBackend); spare != "" {
		if _, there := (*known)[host+" "+spare]; there {
			host += " " + spare
		}
	}
	hash, ok := (*known)[host]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set(wire.HeaderNetworkHash, hash)
}

// gateway makes a Service with the gateway pod behind it.
func (s *stage) gateway(namespace, name string) {
	s.put(services, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}}})
	s.put(slicesOf, "discovery.k8s.io/v1", "EndpointSlice", &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{s.host}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(s.plainPort)},
			{Name: ptr.To("https"), Port: ptr.To(s.securePort)}}})
}

func set(t *testing.T) *stage {
	return setThrough(t, func(next http.RoundTripper) http.RoundTripper { return next })
}

// setThrough has another way to the API server.
func setThrough(t *testing.T, way func(http.RoundTripper) http.RoundTripper) *stage {
	store, config := apiservertest.Start(t)
	config.Wrap(way)
	s := &stage{t: t, store: store}
	gatewayPod := httptest.NewServer(s)
	t.Cleanup(gatewayPod.Close)
	address, _ := url.Parse(gatewayPod.URL)
	port, _ := strconv.Atoi(address.Port())
	secure := httptest.NewTLSServer(s)
	t.Cleanup(secure.Close)
	address, _ = url.Parse(secure.URL)
	securePort, _ := strconv.Atoi(address.Port())
	s.host, s.plainPort, s.securePort = address.Hostname(), int32(port), int32(securePort)
	for _, name := range []string{"ebb-external-istio", "ebb-local-istio"} {
		s.gateway("knative-serving", name)
	}
	snapshot, err := settings.Parse(map[string]map[string]string{settings.DomainName: {"example.com": ""}})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	s.settings = settings.NewStore(snapshot)
	world := reconcile.NewManager(clients, s.settings, record.NewFakeRecorder(1000),
		slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	controller := New(world, resting.NewSeen(world))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- world.Run(ctx, []*reconcile.Controller{controller}, reconcile.Options{
			Timeout: time.Minute, Alone: true, Metrics: reconcile.NewMetrics(prometheus.NewRegistry())})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stage) configuration(latestReady string) {
	c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}}
	c.Status.LatestReadyRevisionName = latestReady
	s.put(configurations, "serving.knative.dev/v1", "Configuration", c)
}

func (s *stage) revision(name string, ready corev1.ConditionStatus) {
	r := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Generation: 1, Labels: map[string]string{names.ConfigurationLabel: "hello"}}}
	r.Spec.Containers = []corev1.Container{{Image: "i"}}
	r.Status.ObservedGeneration = 1
	r.Status.Conditions = duckv1.Conditions{{Type: "Ready", Status: ready}}
	s.put(revisions, "serving.knative.dev/v1", "Revision", r)
}

func (s *stage) service(name string) {
	s.put(services, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: map[string]string{
		names.ServerlessServiceLabel: name, names.ServiceTypeLabel: names.ServiceTypePublic, names.ConfigurationLabel: "hello"}}})
}

// route puts a Route with targets such as "latest=100" or "hello-00001=20" or "blue:hello-00002=0".
func (s *stage) route(targets ...string) {
	have := s.store.Get(routes, "ns", "hello")
	r := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}}
	if have != nil {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, r); err != nil {
			s.t.Fatal(err)
		}
		r.Spec.Traffic = nil
	}
	for _, text := range targets {
		name, percent, _ := strings.Cut(text, "=")
		tag, name, tagged := strings.Cut(name, ":")
		if !tagged {
			tag, name = "", tag
		}
		n, _ := strconv.ParseInt(percent, 10, 64)
		t := servingv1.TrafficTarget{Tag: tag, RevisionName: name, Percent: ptr.To(n)}
		if name == "latest" {
			t.RevisionName, t.ConfigurationName = "", "hello"
		}
		r.Spec.Traffic = append(r.Spec.Traffic, t)
	}
	s.put(routes, "serving.knative.dev/v1", "Route", r)
}

// until waits until the Route's status is as wanted.
func (s *stage) until(what string, ok func(*servingv1.Route) bool) *servingv1.Route {
	s.t.Helper()
	return eventually.Seen(s.t, what, func() (*servingv1.Route, bool) {
		r := &servingv1.Route{}
		if have := s.store.Get(routes, "ns", "hello"); have != nil {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(have.Object, r); err != nil {
				s.t.Fatal(err)
			}
		}
		return r, r.Status.ObservedGeneration == r.Generation && ok(r)
	})
}

func condition(r *servingv1.Route, kind string) string {
	for _, c := range r.Status.Conditions {
		if string(c.Type) == kind {
			return string(c.Status) + " " + c.Reason
		}
	}
	return ""
}

func (s *stage) names(resource schema.GroupResource) string {
	var out []string
	for name := range s.store.Versions(resource, labels.Everything()) {
		if rest, ok := strings.CutPrefix(name, "ns/"); ok {
			out = append(out, rest)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestARouteIsReadyWhenTheGatewaysFollowIt(t *testing.T) {
	s := set(t)
	s.lag.Store(true)
	none := map[string]string{}
	s.known.Store(&none)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("the Service of the revision is waited for", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown Uninitialized" && s.names(httpRoutes) == ""
	})
	s.service("hello-00001")
	r := s.until("the gateways are waited for", func(r *servingv1.Route) bool {
		c := r.Status.GetCondition("IngressReady")
		return c.IsUnknown() && strings.Contains(c.Message, "answers 404")
	})
	if got := r.Status.URL.String(); got != "http://hello.ns.example.com" {
		t.Errorf("url %s", got)
	}
	if got := r.Status.Address.URL.String(); got != "http://hello.ns.svc.cluster.local" {
		t.Errorf("address %s", got)
	}
	s.lag.Store(false)
	r = s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	if got := s.names(httpRoutes); got != "hello.ns.example.com hello.ns.svc.cluster.local" {
		t.Errorf("HTTPRoutes %s", got)
	}
	if t0 := r.Status.Traffic; len(t0) != 1 || t0[0].RevisionName != "hello-00001" || *t0[0].Percent != 100 || !*t0[0].LatestRevision {
		t.Errorf("traffic %+v", t0)
	}
	alias := s.store.Get(services, "ns", "hello")
	if host, _, _ := unstructured.NestedString(alias.Object, "spec", "externalName"); host != "ebb-local-istio.knative-serving.svc.cluster.local" {
		t.Errorf("placeholder leads to %q", host)
	}
}

func TestANewSplitIsReadyOnlyWhenTheGatewaysHaveIt(t *testing.T) {
	s := set(t)
	for _, name := range []string{"hello-00001", "hello-00002"} {
		s.revision(name, corev1.ConditionTrue)
		s.service(name)
	}
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	s.lag.Store(true)
	s.route("hello-00001=50", "hello-00002=50")
	s.until("the older plan is noticed", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "older plan")
	})
	s.lag.Store(false)
	s.until("Ready again", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
}

// A Route with many tags has several HTTPRoutes for its host. Gateways know the new backend of the
// last one, too, before requests go there.
func TestTheBackendsOfASecondHTTPRouteAreKnownFirst(t *testing.T) {
	s := set(t)
	changed, err := settings.Parse(map[string]map[string]string{
		settings.DomainName: {"example.com": ""}, settings.FeaturesName: {"tag-header-based-routing": "Enabled"}})
	if err != nil {
		t.Fatal(err)
	}
	s.settings.Set(changed)
	for _, name := range []string{"hello-00001", "hello-00002"} {
		s.revision(name, corev1.ConditionTrue)
		s.service(name)
	}
	s.configuration("hello-00001")
	targets := []string{"hello-00001=100"}
	for i := range 16 { // as many rules as an HTTPRoute can have
		targets = append(targets, fmt.Sprintf("t%d:hello-00001=0", i))
	}
	s.route(targets...)
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	leads := func() string {
		rules, _, _ := unstructured.NestedSlice(s.store.Get(httpRoutes, "ns", "hello.ns.example.com-2").Object, "spec", "rules")
		refs, _, _ := unstructured.NestedSlice(rules[0].(map[string]any), "backendRefs")
		return fmt.Sprint(refs[0].(map[string]any)["name"], ", rules: ", len(rules))
	}
	if got := leads(); got != "hello-00001, rules: 1" {
		t.Fatalf("the second HTTPRoute leads to %s", got)
	}
	s.lag.Store(true)
	targets[0] = "hello-00002=100"
	s.route(targets...)
	s.until("the spare rule is waited for", func(r *servingv1.Route) bool {
		return strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "older plan")
	})
	if got := leads(); got != "hello-00001, rules: 2" {
		t.Errorf("before the gateway knows the new backend, the second HTTPRoute leads to %s", got)
	}
	s.lag.Store(false)
	s.until("Ready again", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && leads() == "hello-00002, rules: 1"
	})
}

func TestTagsComeAndGoWithTheirObjectsAndKeepTheUsersLabels(t *testing.T) {
	s := set(t)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100", "blue:hello-00001=0")
	r := s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	if got := r.Status.Traffic[1].URL.String(); got != "http://blue-hello.ns.example.com" {
		t.Errorf("address of the tag: %s", got)
	}
	// A user makes the tag private by a label on its placeholder: the public host goes, the label
	// stays.
	alias := s.store.Get(services, "ns", "blue-hello")
	given := alias.GetLabels()
	given[names.VisibilityLabel] = names.VisibilityClusterLocal
	alias.SetLabels(given)
	s.store.Put(services, alias)
	s.until("the tag is private", func(r *servingv1.Route) bool {
		return r.Status.Traffic[1].URL.Host == "blue-hello.ns.svc.cluster.local" && condition(r, "Ready") == "True "
	})
	if got := s.names(httpRoutes); strings.Contains(got, "blue-hello.ns.example.com") {
		t.Errorf("HTTPRoutes %s", got)
	}
	if got := s.store.Get(services, "ns", "blue-hello").GetLabels()[names.VisibilityLabel]; got == "" {
		t.Error("the user's label is gone")
	}
	s.route("latest=100")
	s.until("the tag is gone", func(r *servingv1.Route) bool { return len(r.Status.Traffic) == 1 && condition(r, "Ready") == "True " })
	if got := s.names(httpRoutes) + " " + s.names(services); strings.Contains(got, "blue") {
		t.Errorf("left behind: %s", got)
	}
}

// A revision in reserve may lose its Services at any moment; so no request is sent there before the
// labeler has taken it out.
func TestARevisionInReserveIsRoutedToOnlyOnceItIsBack(t *testing.T) {
	s := set(t)
	mark := func(state names.RoutingState, parked string) {
		rev := s.store.Get(revisions, "ns", "hello-00001")
		rev.SetLabels(map[string]string{names.ConfigurationLabel: "hello", names.RoutingStateLabel: string(state)})
		rev.SetAnnotations(map[string]string{names.ParkedAnnotation: parked})
		if parked == "" {
			rev.SetAnnotations(nil)
		}
		s.store.Put(revisions, rev)
	}
	// In this order: whoever has seen the second revision has seen the first one in reserve.
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	mark(names.RoutingReserve, "")
	s.revision("hello-00002", corev1.ConditionTrue)
	s.service("hello-00002")
	s.configuration("hello-00002")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	before := fmt.Sprint(s.hashes())
	s.route("latest=90", "hello-00001=10")
	waits := func(r *servingv1.Route) bool {
		return condition(r, "AllTrafficAssigned") == "Unknown RevisionMissing" &&
			strings.Contains(r.Status.GetCondition("Ready").GetMessage(), "being brought back")
	}
	s.until("one in reserve is waited for", waits)
	mark(names.RoutingReserve, names.ParkedWasUp)
	s.until("one that was parked meanwhile, too", waits)
	mark(names.RoutingActive, names.ParkedWasUp)
	s.until("and one whose Services are not all there again", waits)
	if now := fmt.Sprint(s.hashes()); now != before {
		t.Errorf("the gateways were told %s instead of %s", now, before)
	}
	mark(names.RoutingActive, "")
	s.until("it is routed to", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " && len(r.Status.Traffic) == 2 })
}

func TestATargetThatCannotServeChangesNothingAtTheGateways(t *testing.T) {
	s := set(t)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	before := fmt.Sprint(s.hashes())
	for _, row := range []struct{ target, want string }{
		{"hello-00009=100", "False RevisionMissing"},
		{"hello-00002=100", "False RevisionMissing"},
		{"hello-00003=100", "Unknown RevisionMissing"},
	} {
		s.revision("hello-00002", corev1.ConditionFalse)
		s.revision("hello-00003", corev1.ConditionUnknown)
		s.route(row.target)
		s.until(row.target+" is refused", func(r *servingv1.Route) bool { return condition(r, "AllTrafficAssigned") == row.want })
	}
	if after := fmt.Sprint(s.hashes()); after != before {
		t.Errorf("the gateways were told %s, before %s", after, before)
	}
}

func TestARevisionThatServesIsNotDroppedWhenItFailsForAMoment(t *testing.T) {
	s := set(t)
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("hello-00001=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	// The failure may reach the controller before its own first status does.
	s.revision("hello-00001", corev1.ConditionFalse)
	s.route("hello-00001=100", "now:hello-00001=0")
	s.until("still Ready, with the tag", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && len(r.Status.Traffic) == 2
	})
}

func TestAServiceOfSomebodyElseIsNotTaken(t *testing.T) {
	s := set(t)
	s.put(services, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns"}})
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("refused", func(r *servingv1.Route) bool { return condition(r, "IngressReady") == "False NotOwned" })
}

// Quotas and policies refuse what a Route needs: its status has their words, and it goes on by
// itself when they let it.
func TestWhatTheAPIServerRefusesARouteIsInItsStatus(t *testing.T) {
	s := set(t)
	var refused atomic.Pointer[schema.GroupResource]
	refused.Store(&services)
	s.store.Admit = func(_ string, resource schema.GroupResource, _ string, object *unstructured.Unstructured) error {
		if resource == *refused.Load() {
			return apierrors.NewForbidden(resource, object.GetName(), errors.New("a policy says no"))
		}
		return nil
	}
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.configuration("hello-00001")
	s.route("latest=100")
	for _, resource := range []*schema.GroupResource{&services, &httpRoutes} {
		s.until(resource.Resource+" refused", func(r *servingv1.Route) bool {
			c := r.Status.GetCondition(servingv1.RouteConditionReady)
			return condition(r, "IngressReady") == "False Forbidden" && c.IsFalse() && strings.Contains(c.Message, "a policy says no") &&
				strings.Contains(c.Message, resource.Resource)
		})
		refused.Store(&httpRoutes)
	}
	refused.Store(&schema.GroupResource{})
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
}

func TestAGradualRolloutSharesUntilTheNewRevisionHasAll(t *testing.T) {
	s := set(t)
	for _, name := range []string{"hello-00001", "hello-00002"} {
		s.revision(name, corev1.ConditionTrue)
		s.service(name)
	}
	s.configuration("hello-00001")
	// The duration is there before the Route can become Ready: the reconciler knows it when the
	// Configuration moves on.
	s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns",
		Annotations: map[string]string{names.RolloutDurationAnnotation: "3s"}}})
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	s.configuration("hello-00002")
	r := s.until("the rollout is under way", func(r *servingv1.Route) bool {
		return condition(r, "IngressReady") == "Unknown RolloutInProgress" && len(r.Status.Traffic) == 2
	})
	if *r.Status.Traffic[0].Percent+*r.Status.Traffic[1].Percent != 100 || r.Status.Traffic[1].RevisionName != "hello-00002" {
		t.Errorf("traffic %+v", r.Status.Traffic)
	}
	s.until("the new revision has all", func(r *servingv1.Route) bool {
		return condition(r, "Ready") == "True " && len(r.Status.Traffic) == 1 && r.Status.Traffic[0].RevisionName == "hello-00002"
	})
}

// Manifests written for another ingress name its class; Ebb has one way, and goes it.
func TestTheClassOfAnotherIngressChangesNothing(t *testing.T) {
	s := set(t)
	s.configuration("hello-00001")
	s.revision("hello-00001", corev1.ConditionTrue)
	s.service("hello-00001")
	s.put(routes, "serving.knative.dev/v1", "Route", &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "hello", Namespace: "ns", Annotations: map[string]string{
		"networking.knative.dev/ingress.class": "another.ingress.networking.knative.dev", "networking.knative.dev/certificate-class": "another.certificate.networking.knative.dev"}}})
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
}

// Until the gateways reach the new revision, requests go to the old one, and until they follow,
// they know the old one too.
func TestARolloutTellsTheGatewaysOfARevisionBeforeItUsesIt(t *testing.T) {
	s := set(t)
	for _, name := range []string{"hello-00001", "hello-00002"} {
		s.revision(name, corev1.ConditionTrue)
		s.service(name)
	}
	s.configuration("hello-00001")
	s.route("latest=100")
	s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
	backends := func() string {
		object := s.store.Get(httpRoutes, "ns", "hello.ns.example.com")
		route := gatewayv1.HTTPRoute{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &route); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, rule := range route.Spec.Rules {
			out = append(out, string(rule.BackendRefs[0].Name))
		}
		return strings.Join(out, " | ")
	}
	s.lag.Store(true)
	s.configuration("hello-00002")
	s.until("the gateways are told of the new revision", func(r *servingv1.Route) bool {
		return backends() == "hello-00001 | hello-00002" && strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "older plan")
	})
	known := s.hashes()
	s.known.Store(&known)
	s.until("requests go to it", func(r *servingv1.Route) bool {
		return backends() == "hello-00002 | hello-00001" && strings.Contains(r.Status.GetCondition("IngressReady").GetMessage(), "older plan")
	})
	s.lag.Store(false)
	s.until("the old revision is forgotten", func(r *servingv1.Route) bool {
		return backends() == "hello-00002" && condition(r, "Ready") == "True "
	})
}

// A write that fails leaves the gateways where they were, and the conditions of the plan before say
// nothing of the new one.
func TestARouteIsNotReadyWhileItsHTTPRoutesCannotBeWritten(t *testing.T) {
	for _, row := range []struct {
		name   string
		change func(*stage)
	}{
		{"another target", func(s *stage) { s.route("hello-00002=100") }},
		{"another latest revision, in the same generation", func(s *stage) { s.configuration("hello-00002") }},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := set(t)
			var conflict atomic.Bool
			s.store.Admit = func(verb string, resource schema.GroupResource, _ string, object *unstructured.Unstructured) error {
				if conflict.Load() && verb == "update" && resource == httpRoutes {
					return apierrors.NewConflict(resource, object.GetName(), errors.New("the object has been modified"))
				}
				return nil
			}
			for _, name := range []string{"hello-00001", "hello-00002"} {
				s.revision(name, corev1.ConditionTrue)
				s.service(name)
			}
			s.configuration("hello-00001")
			s.route("latest=100")
			s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " })
			conflict.Store(true)
			row.change(s)
			leadsToSecond := func(r *servingv1.Route) bool { return r.Status.Traffic[0].RevisionName == "hello-00002" }
			r := s.until("the status shows the new revision", leadsToSecond)
			if got := condition(r, "Ready") + ", " + condition(r, "IngressReady"); got != "Unknown IngressNotConfigured, Unknown IngressNotConfigured" {
				t.Errorf("conditions before the first HTTPRoute is written: %s", got)
			}
			conflict.Store(false)
			s.until("Ready", func(r *servingv1.Route) bool { return condition(r, "Ready") == "True " && leadsToSecond(r) })
		})
	}
}
