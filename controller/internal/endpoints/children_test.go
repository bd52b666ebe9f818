package endpoints

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

// The server in memory accepts labels that a real one refuses, so they are judged here.
func TestLabelsAreLegal(t *testing.T) {
	for _, s := range makeSlices(podAutoscaler(autoscalingv1alpha1.ProtocolH2C), nil) {
		for key, value := range s.Labels {
			if faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(faults) > 0 {
				t.Errorf("label %s=%s: %v", key, value, faults)
			}
		}
	}
}

func TestPortsOfTheServices(t *testing.T) {
	for _, row := range []struct {
		protocol        autoscalingv1alpha1.ProtocolType
		public, private string
	}{
		{autoscalingv1alpha1.ProtocolHTTP1, "http:80->8012 https:443->8112",
			"http:80->8012 https:443->8112 http-autometric:9090->9090 http-usermetric:9091->9091 http-istio:8012->8012"},
		{autoscalingv1alpha1.ProtocolH2C, "http2:81->8013(kubernetes.io/h2c) https:443->8112",
			"http2:80->8013(kubernetes.io/h2c) https:443->8112 http-autometric:9090->9090 http-usermetric:9091->9091 http2-istio:8013->8013(kubernetes.io/h2c)"},
	} {
		pa := podAutoscaler(row.protocol)
		ports := func(s *corev1.Service) string {
			var out []string
			for _, p := range s.Spec.Ports {
				text := p.Name + ":" + itoa(p.Port) + "->" + p.TargetPort.String()
				if p.AppProtocol != nil {
					text += "(" + *p.AppProtocol + ")"
				}
				out = append(out, text)
			}
			return strings.Join(out, " ")
		}
		public, private := publicService(pa), privateService(pa)
		if got := ports(public); got != row.public {
			t.Errorf("%s public: got %s, want %s", row.protocol, got, row.public)
		}
		if got := ports(private); got != row.private {
			t.Errorf("%s private: got %s, want %s", row.protocol, got, row.private)
		}
		if public.Spec.Selector != nil || private.Spec.Selector[names.RevisionUIDLabel] != "rev-uid" {
			t.Errorf("selectors %v and %v", public.Spec.Selector, private.Spec.Selector)
		}
	}
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

var (
	autoscalers = schema.GroupResource{Group: "autoscaling.internal.knative.dev", Resource: "podautoscalers"}
	endpointsOf = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// The story of a revision from nothing to pods and back: whenever somebody could answer, somebody
// is listed.
func TestTheListFollowsPodsActivatorsAndTheMode(t *testing.T) {
	store, config := apiservertest.Start(t)
	put := func(resource schema.GroupResource, version, kind string, object runtime.Object) {
		t.Helper()
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			t.Fatal(err)
		}
		content["apiVersion"], content["kind"] = version, kind
		store.Put(resource, &unstructured.Unstructured{Object: content})
	}
	mode := func(m autoscalingv1alpha1.Mode) {
		pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
		pa.Status.Mode = m
		put(autoscalers, "autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler", pa)
	}
	list := func(namespace, name, service string, l map[string]string, words string) {
		s := endpointSlice(words)[0]
		s.Name, s.Namespace = name, namespace
		s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
		for k, v := range l {
			s.Labels[k] = v
		}
		for i := range s.Endpoints { // an address that ends with 2 is on node b
			if strings.HasSuffix(s.Endpoints[i].Addresses[0], ".2") {
				s.Endpoints[i].NodeName = ptr.To("b")
			}
		}
		put(endpointsOf, "discovery.k8s.io/v1", "EndpointSlice", s)
	}
	pods := func(words string) {
		list("default", "hello-00001-private-x", "hello-00001-private", childLabels(podAutoscaler(""), names.ServiceTypePrivate), words)
	}
	silent := func(nodes string) {
		put(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "coordination.k8s.io/v1", "Lease", &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Name: wire.SilentNodes, Namespace: "knative-serving", Annotations: map[string]string{wire.SilentNodesAnnotation: nodes}}})
	}
	activators := func(words string) { list("knative-serving", "activators-x", names.ActivatorService, nil, words) }

	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	world := reconcile.NewManager(clients, settings.NewStore(nil), record.NewFakeRecorder(100), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	controller := New(world)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		controllers := []*reconcile.Controller{controller}
		if err := world.Run(ctx, controllers, reconcile.Options{Timeout: time.Minute, Alone: true,
			Metrics: reconcile.NewMetrics(prometheus.NewRegistry())}); err != nil {
			t.Error(err)
		}
	}()
	seen := ""
	until := func(want string) {
		t.Helper()
		eventually.Seen(t, fmt.Sprintf("the list is %q", want), func() (string, bool) {
			if o := store.Get(endpointsOf, "default", "hello-00001"); o != nil {
				var s discoveryv1.EndpointSlice
				if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
					t.Fatal(err)
				}
				seen = addresses(s.Endpoints)
			}
			return seen, seen == want
		})
	}
	activators("10.0.9.1 10.0.9.2")
	mode("")
	until("10.0.9.1 10.0.9.2")
	store.Writes()
	pods("-10.0.0.1")
	mode("Serve")
	pods("10.0.0.1")
	until("10.0.0.1")
	pods("10.0.0.1 10.0.0.2")
	until("10.0.0.1 10.0.0.2")
	silent("b")
	until("10.0.0.1")
	silent("")
	until("10.0.0.1 10.0.0.2")
	pods("10.0.0.1 ~10.0.0.2")
	until("10.0.0.1")
	mode("Proxy")
	until("10.0.9.1 10.0.9.2")
	pods("")
	activators("10.0.9.2 10.0.9.3")
	until("10.0.9.2 10.0.9.3")
	published := 0
	for _, w := range store.Writes() {
		if w.Resource != "endpointslices" {
			continue
		}
		published++
		if endpoints, _, _ := unstructured.NestedSlice(w.Object, "endpoints"); len(endpoints) == 0 {
			t.Errorf("a list of nobody was written: %s", w)
		}
	}
	if published == 0 {
		t.Error("no write was seen")
	}
}
