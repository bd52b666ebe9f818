package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

// ground is all that the controller works with, in virtual time: an API server, gateways that do
// what HTTPRoutes say, an autoscaler, a kubelet. Everything but the controller acts in step, from
// the goroutine of the test, while the controller waits.
type ground struct {
	t        *testing.T
	store    *apiservertest.Store
	config   *rest.Config
	user     reconcile.Clients
	settings *settings.Store
	replicas []*replica
	mu       sync.Mutex // guards decoded, refuse and forbids, which other goroutines use, too
	decoded  map[string]decoded
	requests map[string]time.Time // when requests woke a revision last

	// What is wrong with the cluster. refuse judges writes in the namespace, forbids all requests
	// of the controller; away means that none arrives; noPods is why no pod can be created, lacking
	// why none starts. takes is how long a container runs before it is ready.
	refuse  func(verb, resource, subresource string) error
	forbids func(*http.Request) bool
	away    atomic.Bool
	noPods  string
	lacking string
	takes   time.Duration
	// What the administrator chose: the Gateways, "" for those that are shipped, whether old
	// revisions are collected at once, and whether hosts get certificates.
	gateways string
	collects bool
	secure   bool
	// rests says that hosts may rest, canRest that they could in this sequence. busyUntil has the
	// revisions that are served past the activators.
	rests, canRest bool
	busyUntil      map[string]time.Time
	// putsAway says that revisions at zero for long have no Deployment.
	putsAway bool
	// byHeader says that a header chooses a tag on a Route's own hosts.
	byHeader bool
	// told, if set, gets the Events of replicas that start.
	told chan string
	// reconciles, if set, counts those of replicas that start.
	reconciles *reconciles
}

// replica is one of the controllers. While it is cut, none of its calls arrives.
type replica struct {
	name string
	cut  atomic.Bool
	stop func()
}

type decoded struct {
	version string
	object  any
}

func newGround(t *testing.T, replicas int, secure bool) *ground {
	g := &ground{t: t, secure: secure, decoded: map[string]decoded{}, requests: map[string]time.Time{}, busyUntil: map[string]time.Time{}}
	return g.open(replicas)
}

// newRestingGround is one where hosts may rest.
func newRestingGround(t *testing.T, replicas int) *ground {
	g := &ground{t: t, decoded: map[string]decoded{}, requests: map[string]time.Time{}, busyUntil: map[string]time.Time{}, rests: true, canRest: true}
	return g.open(replicas)
}

func (g *ground) open(replicas int) *ground {
	t, secure := g.t, g.secure
	g.store, g.config = apiservertest.New()
	g.store.Admit = func(verb string, resource schema.GroupResource, subresource string, object *unstructured.Unstructured) error {
		g.mu.Lock()
		refuse := g.refuse
		g.mu.Unlock()
		if refuse == nil || object.GetNamespace() != "ns" {
			return nil
		}
		return refuse(verb, resource.Resource, subresource)
	}
	for i, name := range []string{"ebb-external-istio", "ebb-local-istio"} {
		g.put(coreServices, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "knative-serving"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}}})
		g.slice(name, []string{"10.9.0.1", "10.9.0.2"}[i])
	}
	g.slice("activator-service", "10.0.0.1")
	if g.canRest {
		g.put(schema.GroupResource{Resource: "namespaces"}, "v1", "Namespace", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "knative-serving"}})
	}
	if secure {
		for _, kind := range []schema.GroupResource{certificates, listenerSets} {
			g.put(schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, "apiextensions.k8s.io/v1",
				"CustomResourceDefinition", &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: kind.Resource + "." + kind.Group}})
		}
	}
	g.settings = settings.NewStore(nil)
	g.set()
	var err error
	if g.user, err = reconcile.ConnectTo(g.config); err != nil {
		t.Fatal(err)
	}
	for i := range replicas {
		g.replicas = append(g.replicas, &replica{name: fmt.Sprintf("controller-%d", i)})
	}
	for _, r := range g.replicas {
		g.start(r)
	}
	return g
}

func (g *ground) end() {
	g.away.Store(false)
	for _, r := range g.replicas {
		r.cut.Store(false)
		r.stop()
	}
}

// set makes the settings what the administrator chose.
func (g *ground) set() {
	maps := map[string]map[string]string{settings.DomainName: {"example.com": ""}, settings.DeploymentName: {"queue-sidecar-image": "dev.local/queue-proxy:1"},
		settings.NetworkName:    {"autocreate-cluster-domain-claims": "false"},
		settings.AutoscalerName: {"allow-zero-initial-scale": "true"}}
	if g.secure {
		maps[settings.NetworkName]["external-domain-tls"] = "Enabled"
	}
	named := func(gateway, service string) string {
		return fmt.Sprintf("[{class: other, gateway: %s, service: %s, supported-features: [ListenerSet]}]", gateway, service)
	}
	switch g.gateways {
	case absent:
		maps[settings.GatewayName] = map[string]string{"external-gateways": named("edge/outside", "edge/outside"), "local-gateways": named("edge/inside", "edge/inside")}
	case misspelt:
		maps[settings.GatewayName] = map[string]string{"external-gateways": named("knative-serving/misspelt", public+"-istio")}
	}
	if g.rests {
		if maps[settings.GatewayName] == nil {
			maps[settings.GatewayName] = map[string]string{}
		}
		maps[settings.GatewayName]["resting-routes"] = "Enabled"
	}
	if g.byHeader {
		maps[settings.FeaturesName] = map[string]string{"tag-header-based-routing": "enabled"}
	}
	if g.putsAway {
		maps[settings.DeploymentName]["deployment-retention-period"] = "1m"
	}
	if g.collects {
		maps[settings.GCName] = map[string]string{"min-non-active-revisions": "0", "max-non-active-revisions": "0",
			"retain-since-create-time": "disabled", "retain-since-last-active-time": "disabled"}
	}
	snapshot, err := settings.Parse(maps)
	if err != nil {
		g.t.Fatal(err)
	}
	g.settings.Set(snapshot)
}

// forbid has writes judged.
func (g *ground) forbid(refuse func(verb, resource, subresource string) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = refuse
}

// judge has all requests of the controller judged.
func (g *ground) judge(forbids func(*http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forbids = forbids
}

// way is a replica's way to the API server.
func (g *ground) way(r *replica) http.RoundTripper {
	return roundTrip(func(request *http.Request) (*http.Response, error) {
		if r.cut.Load() || g.away.Load() {
			return nil, errors.New("no route to the API server")
		}
		g.mu.Lock()
		forbids := g.forbids
		g.mu.Unlock()
		if forbids != nil && forbids(request) {
			return &http.Response{StatusCode: http.StatusForbidden, Header: http.Header{}, Body: http.NoBody, Request: request}, nil
		}
		return g.config.Transport.RoundTrip(request)
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// start starts a replica; what it was before is stopped.
func (g *ground) start(r *replica) {
	if r.stop != nil {
		r.stop()
	}
	clients, err := reconcile.ConnectTo(&rest.Config{Host: g.config.Host, QPS: -1, Transport: g.way(r)})
	if err != nil {
		g.t.Fatal(err)
	}
	w := reconcile.NewManager(clients, g.settings, &record.FakeRecorder{Events: g.told}, slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	w.ToGateways = prober{g}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	list := controllers(w, func() []byte { return []byte("0123456789abcdef0123456789abcdef") }, digest.ReadOptions(env.New(os.Getenv)))
	if g.reconciles != nil {
		g.reconciles.of(list)
	}
	options := reconcile.Options{Alone: len(g.replicas) == 1, Identity: r.name, Timeout: 30 * time.Second, Metrics: reconcile.NewMetrics(prometheus.NewRegistry()),
		Leases: func() (lease.Scheme, <-chan struct{}) {
			return lease.Scheme{Prefix: "controller.", Buckets: 2, LeaseDuration: 60 * time.Second, RenewDeadline: 40 * time.Second, RetryPeriod: 10 * time.Second}, nil
		}}
	go func() { ended <- w.Run(ctx, list, options) }()
	r.stop = func() {
		cancel()
		err := <-ended
		if err != nil && !errors.Is(err, context.Canceled) {
			g.t.Error(err)
		}
		for _, c := range list {
			if err != nil && c.Background != nil { // it was stopped before it began: this ends what New made
				c.Background(ctx)
			}
		}
	}
}

func (g *ground) put(resource schema.GroupResource, version, kind string, object runtime.Object) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		g.t.Fatal(err)
	}
	content["apiVersion"], content["kind"] = version, kind
	g.store.Put(resource, &unstructured.Unstructured{Object: content})
}

func (g *ground) slice(service, address string) {
	g.put(endpointSlices, "discovery.k8s.io/v1", "EndpointSlice", &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Namespace: "knative-serving", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(80))}, {Name: ptr.To("https"), Port: ptr.To(int32(443))}}})
}

// names returns the objects of a resource in the namespace, sorted.
func (g *ground) names(resource schema.GroupResource) (list []string) {
	for name := range g.store.Versions(resource, labels.Everything()) {
		if short, ours := strings.CutPrefix(name, "ns/"); ours {
			list = append(list, short)
		}
	}
	slices.Sort(list)
	return list
}

// all returns the objects of a resource in the namespace. They are shared: copy before a change.
func all[T any](g *ground, resource schema.GroupResource) (out []*T) {
	for _, name := range g.names(resource) {
		if object := get[T](g, resource, name); object != nil {
			out = append(out, object)
		}
	}
	return out
}

func get[T any](g *ground, resource schema.GroupResource, name string) *T {
	object := g.store.Get(resource, "ns", name)
	if object == nil {
		return nil
	}
	value := new(T)
	key := fmt.Sprintf("%T %s %s", value, resource, name)
	g.mu.Lock()
	defer g.mu.Unlock()
	if have := g.decoded[key]; have.version == object.GetResourceVersion() {
		return have.object.(*T)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, value); err != nil {
		g.t.Fatal(err)
	}
	g.decoded[key] = decoded{object.GetResourceVersion(), value}
	return value
}
