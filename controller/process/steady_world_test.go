package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/wire"
)

// ground is all that the controller works with, in virtual time: an API server, gateways that do
// what HTTPRoutes say, an autoscaler without load, a kubelet. Everything but the controller acts in
// step, from the goroutine of the test, while the controller waits.
type ground struct {
	t        *testing.T
	store    *apiservertest.Store
	config   *rest.Config
	settings *settings.Store
	stop     func()
	refused  string // the resource whose creations a quota refuses
}

func newGround(t *testing.T) *ground {
	g := &ground{t: t}
	g.store, g.config = apiservertest.New()
	g.store.Admit = func(verb string, resource schema.GroupResource, subresource string, object *unstructured.Unstructured) error {
		if subresource == "" && verb != "delete" && resource.Resource == g.refused && object.GetNamespace() == "ns" {
			return apierrors.NewForbidden(resource, object.GetName(), errors.New("the quota is full"))
		}
		return nil
	}
	for i, name := range []string{"ebb-external-istio", "ebb-local-istio"} {
		g.put(coreServices, "v1", "Service", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "knative-serving"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}})
		g.slice(name, []string{"10.9.0.1", "10.9.0.2"}[i])
	}
	g.slice("activator-service", "10.0.0.1")
	g.settings = settings.NewStore(nil)
	g.set("")
	return g
}

// set changes config-gateway: "" is what is shipped, otherwise the namespace of Gateways.
func (g *ground) set(namespace string) {
	maps := map[string]map[string]string{settings.DomainName: {"example.com": ""}, settings.DeploymentName: {"queue-sidecar-image": "dev.local/queue-proxy:1"}}
	if namespace != "" {
		maps[settings.GatewayName] = map[string]string{
			"external-gateways": fmt.Sprintf("[{class: other, gateway: %[1]s/outside, service: %[1]s/outside}]", namespace),
			"local-gateways":    fmt.Sprintf("[{class: other, gateway: %[1]s/inside, service: %[1]s/inside}]", namespace)}
	}
	snapshot, err := settings.Parse(maps)
	if err != nil {
		g.t.Fatal(err)
	}
	g.settings.Set(snapshot)
}

// start starts the controller, and what was started before is stopped.
func (g *ground) start() {
	if g.stop != nil {
		g.stop()
	}
	clients, err := reconcile.ConnectTo(g.config)
	if err != nil {
		g.t.Fatal(err)
	}
	w := reconcile.NewWorld(clients, g.settings, &record.FakeRecorder{}, slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	w.ToGateways = prober{g}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	list := controllers(w, func() []byte { return []byte("0123456789abcdef0123456789abcdef") })
	go func() {
		ended <- w.Run(ctx, list, reconcile.Options{Alone: true, Timeout: 30 * time.Second, SettingsWithin: 10 * time.Second,
			Metrics: reconcile.NewMetrics(prometheus.NewRegistry())})
	}()
	g.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			g.t.Error(err)
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
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(80))}}})
}

// all returns the objects of a resource in the namespace.
func all[T any](g *ground, resource schema.GroupResource) (out []*T) {
	var list []string
	for name := range g.store.Versions(resource, labels.Everything()) {
		if short, ours := strings.CutPrefix(name, "ns/"); ours {
			list = append(list, short)
		}
	}
	slices.Sort(list)
	for _, name := range list {
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
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, value); err != nil {
		g.t.Fatal(err)
	}
	return value
}

// answer is what a gateway says to a request: 404 for a host that it does not know, 500 for a
// backend that does not exist, 503 where nobody answers.
type answer struct {
	code int
	hash string
	by   []string // the revisions that may answer
	why  string
}

// ask sends a request for a host to a Gateway of namespace/name.
func (g *ground) ask(gateway, host, backend string) answer {
	namespace, name, _ := strings.Cut(gateway, "/")
	for _, h := range all[gatewayv1.HTTPRoute](g, httpRoutes) {
		if !slices.Contains(h.Spec.Hostnames, gatewayv1.Hostname(host)) || !slices.ContainsFunc(h.Spec.ParentRefs, func(p gatewayv1.ParentReference) bool {
			return string(p.Name) == name && string(ptr.Deref(p.Namespace, "")) == namespace
		}) {
			continue
		}
		var rule *gatewayv1.HTTPRouteRule
		for i := range h.Spec.Rules {
			headers := h.Spec.Rules[i].Matches[0].Headers
			if len(headers) == 0 && rule == nil || backend != "" && len(headers) > 0 && headers[0].Value == backend {
				rule = &h.Spec.Rules[i]
			}
		}
		if rule == nil {
			return answer{code: 404, why: "no rule"}
		}
		a := answer{code: 200}
		for _, header := range rule.Filters[0].RequestHeaderModifier.Set {
			if header.Name == wire.HeaderNetworkHash {
				a.hash = header.Value
			}
		}
		for _, ref := range rule.BackendRefs {
			if code, why := g.serves(string(ref.Name)); code != 200 && ptr.Deref(ref.Weight, 1) > 0 {
				return answer{code: code, why: why}
			}
			a.by = append(a.by, string(ref.Name))
		}
		if len(a.by) == 0 {
			return answer{code: 500, why: "no backend"}
		}
		return a
	}
	return answer{code: 404, why: "no HTTPRoute at " + gateway}
}

// serves tells what a revision answers. At zero the activator wakes it: then a failure in its
// conditions is what a request is told that waits for longer than 3 s.
func (g *ground) serves(revision string) (int, string) {
	if g.store.Get(coreServices, "ns", names.PublicService(revision)) == nil {
		return 500, "no Service " + revision
	}
	if !slices.ContainsFunc(all[discoveryv1.EndpointSlice](g, endpointSlices), func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == revision && len(s.Endpoints) > 0
	}) {
		return 503, "no endpoints of " + revision
	}
	rev := get[servingv1.Revision](g, revisions, revision)
	if rev == nil || g.store.Get(autoscalers, "ns", revision) == nil || g.store.Get(deployments, "ns", names.Deployment(revision)) == nil {
		return 503, "nobody can wake " + revision
	}
	for _, kind := range []string{"ResourcesAvailable", "ContainerHealthy"} {
		for _, c := range rev.Status.Conditions {
			if string(c.Type) == kind && c.Status == corev1.ConditionFalse && !slices.ContainsFunc(g.pods(revision), ready) {
				return 503, fmt.Sprintf("the revision %s cannot start: %s %s", revision, c.Reason, c.Message)
			}
		}
	}
	return 200, ""
}

func (g *ground) pods(revision string) []*corev1.Pod {
	return slices.DeleteFunc(all[corev1.Pod](g, pods), func(p *corev1.Pod) bool { return p.Labels[names.RevisionLabel] != revision })
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// prober is the way of probes: the addresses are those of the two gateways.
type prober struct{ g *ground }

func (p prober) RoundTrip(r *http.Request) (*http.Response, error) {
	gateway := "knative-serving/ebb-external"
	if r.URL.Hostname() == "10.9.0.2" {
		gateway = "knative-serving/ebb-local"
	}
	a := p.g.ask(gateway, r.Host, r.Header.Get(wire.HeaderBackend))
	header := http.Header{}
	if a.code == 200 {
		header.Set(wire.HeaderNetworkHash, a.hash)
	}
	return &http.Response{StatusCode: a.code, Header: header, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// collect plays the garbage collector: what a PodAutoscaler owned goes after it.
func (g *ground) collect() {
	for _, resource := range []schema.GroupResource{coreServices, endpointSlices} {
		for _, object := range all[metav1.PartialObjectMetadata](g, resource) {
			owner := metav1.GetControllerOfNoCopy(object)
			if owner == nil || owner.Kind != "PodAutoscaler" {
				continue
			}
			if pa := get[autoscalingv1alpha1.PodAutoscaler](g, autoscalers, owner.Name); pa == nil || pa.UID != owner.UID {
				g.store.Remove(resource, "ns", object.Name)
			}
		}
	}
}

// run plays the autoscaler, the Deployment controller and the kubelet for a step. A revision has a
// pod for its first minute, then it is idle, but for a Reachable one with a minimum scale.
func (g *ground) run() {
	g.collect()
	for _, pa := range all[autoscalingv1alpha1.PodAutoscaler](g, autoscalers) {
		d := get[appsv1.Deployment](g, deployments, names.Deployment(pa.Name))
		if d == nil || !pa.DeletionTimestamp.IsZero() || !d.DeletionTimestamp.IsZero() {
			continue
		}
		want := int32(0)
		initialized := pa.Status.IsScaleTargetInitialized() || pa.Annotations[names.InitializedAnnotation] == "true"
		if !initialized || time.Since(pa.CreationTimestamp.Time) < time.Minute && pa.Annotations[names.InitializedAnnotation] == "" {
			want = 1
		}
		live := 0
		for _, pod := range g.pods(pa.Name) {
			switch {
			case pod.Status.Phase == corev1.PodFailed: // nobody deletes it
			case want == 0:
				g.store.Remove(pods, "ns", pod.Name)
			case time.Since(pod.CreationTimestamp.Time) > 5*time.Second:
				live++
				if !ready(pod) {
					pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
					g.put(pods, "v1", "Pod", pod)
				}
			default:
				live++
			}
		}
		if want > 0 && live == 0 {
			pod := &corev1.Pod{ObjectMeta: *d.Spec.Template.ObjectMeta.DeepCopy(), Status: corev1.PodStatus{Phase: corev1.PodPending}}
			pod.Namespace, pod.Name = "ns", fmt.Sprintf("%s-%d", pa.Name, time.Now().UnixNano())
			g.put(pods, "v1", "Pod", pod)
		}
		up := int32(0)
		if slices.ContainsFunc(g.pods(pa.Name), ready) {
			up = 1
		}
		if ptr.Deref(d.Spec.Replicas, 1) != want || d.Status.Replicas != want {
			d.Spec.Replicas, d.Status.Replicas, d.Status.ReadyReplicas = &want, want, up
			g.put(deployments, "apps/v1", "Deployment", d)
		}
		s := pa.Status.DeepCopy()
		s.ObservedGeneration, s.ServiceName, s.MetricsServiceName = pa.Generation, pa.Name, pa.Name+"-private"
		s.InitializeConditions()
		s.DesiredScale, s.ActualScale = &want, &up
		if initialized || up > 0 {
			s.MarkScaleTargetInitialized()
			s.MarkSKSReady()
		}
		switch {
		case want == 0:
			s.MarkInactive("NoTraffic", "The target is not receiving traffic.")
		case up > 0:
			s.MarkActive()
		default:
			s.MarkActivating("Queued", "Requests to the target are being buffered as resources are provisioned.")
		}
		pa.Status = *s
		g.put(autoscalers, "autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler", pa)
	}
}
