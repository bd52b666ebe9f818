package endpoints

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	autoscalingv1alpha1 "ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/controller/internal/reconcile"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
)

func TestMarksOfAPublicService(t *testing.T) {
	s := &corev1.Service{}
	for _, c := range []struct {
		do    func(*corev1.Service, string)
		route string
		want  string
	}{
		{Mark, "b", "b"}, {Mark, "a", "a,b"}, {Mark, "b", "a,b"}, {Unmark, "c", "a,b"}, {Unmark, "b", "a"}, {Unmark, "a", ""}, {Unmark, "a", ""},
	} {
		c.do(s, c.route)
		if got := strings.Join(NeededBy(s), ","); got != c.want || got != s.Annotations[names.NeededByAnnotation] {
			t.Errorf("after %s the marks are %q, not %q", c.route, got, c.want)
		}
	}
	if NeededBy(nil) != nil {
		t.Error("no Service has a mark")
	}
}

// beside is a reconciler whose caches are empty, with an API server. Hosts may rest.
func beside(t *testing.T) (*reconciler, *reconcile.Controller) {
	_, config := apiservertest.Start(t)
	clients, err := reconcile.ConnectTo(config)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := settings.Parse(map[string]map[string]string{settings.GatewayName: {"resting-routes": "Enabled"}})
	if err != nil {
		t.Fatal(err)
	}
	mgr := reconcile.NewManager(clients, settings.NewStore(snapshot), record.NewFakeRecorder(100), slog.New(slog.DiscardHandler), "knative-serving", "cluster.local")
	of := mgr.Kubernetes("", names.ServerlessServiceLabel)
	services, c := of.Core().V1().Services(), &reconcile.Controller{Name: "endpoints"}
	return &reconciler{kube: clients.Kube, services: services.Lister(),
		slices: reconcile.IndexByLabel[*discoveryv1.EndpointSlice](of.Discovery().V1().EndpointSlices().Informer(), names.ServerlessServiceLabel),
		needs:  newNeeds(mgr, c, services.Informer())}, c
}

// A cache may not show yet that a Route has marked a Service, or that there is the Route.
func TestAServiceThatWasMarkedMeanwhileStays(t *testing.T) {
	r, _ := beside(t)
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	api := r.kube.CoreV1().Services(pa.Namespace)
	seen, err := api.Create(t.Context(), publicService(pa), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	marked := seen.DeepCopy()
	Mark(marked, "hello")
	if marked, err = api.Update(t.Context(), marked, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.takeAway(t.Context(), pa, seen); !apierrors.IsConflict(err) {
		t.Errorf("it was marked since it was seen: %v", err)
	}
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: pa.Namespace, Name: "hello"}}
	if _, err := r.needs.client.ServingV1().Routes(pa.Namespace).Create(t.Context(), route, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.takeAway(t.Context(), pa, marked); err != nil {
		t.Error(err)
	}
	if _, err := api.Get(t.Context(), seen.Name, metav1.GetOptions{}); err != nil {
		t.Fatalf("it is gone: %v", err)
	}
	if err := r.needs.client.ServingV1().Routes(pa.Namespace).Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.takeAway(t.Context(), pa, marked); err != nil {
		t.Error(err)
	}
	if _, err := api.Get(t.Context(), seen.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the mark is of a Route that is gone, and the Service is there: %v", err)
	}
}

// While an activator is replaced, its EndpointSlice changes several times.
func TestOnlyRevisionsWithAPublicServiceFollowActivators(t *testing.T) {
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	for what, c := range map[string]struct{ rests, there, want bool }{
		"hosts may rest, and it is there": {true, true, true},
		"hosts may rest, and it is not":   {true, false, false},
		"no host may rest":                {false, false, true},
	} {
		s := settings.Default()
		s.Gateway.Resting = c.rests
		services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		if c.there {
			if err := services.Add(publicService(pa)); err != nil {
				t.Fatal(err)
			}
		}
		r := &reconciler{services: corelisters.NewServiceLister(services), needs: &needs{settings: settings.NewStore(s)}}
		if got := len(r.published([]any{pa})) == 1; got != c.want {
			t.Errorf("%s: it is looked at: %v", what, got)
		}
	}
}

// A Route may make the Service, or mark it, while the cache is behind. Marks of Routes that are
// gone do not pile up.
func TestWhatIsWrittenKeepsTheMarks(t *testing.T) {
	r, _ := beside(t)
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	api, caches := r.kube.CoreV1().Services(pa.Namespace), cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	r.services = corelisters.NewServiceLister(caches)
	for _, name := range []string{"first", "second"} {
		route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: pa.Namespace, Name: name}}
		if _, err := r.needs.client.ServingV1().Routes(pa.Namespace).Create(t.Context(), route, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(marks ...string) *corev1.Service {
		t.Helper()
		have, err := api.Get(t.Context(), pa.Name, metav1.GetOptions{})
		if err != nil || !slices.Equal(NeededBy(have), marks) {
			t.Fatalf("the marks are %v, not %v, %v", NeededBy(have), marks, err)
		}
		return have
	}
	if _, err := api.Create(t.Context(), Public(pa, "first"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.service(t.Context(), pa, publicService(pa)); err != nil {
		t.Fatal(err)
	}
	old := want("first")
	next := old.DeepCopy()
	Mark(next, "second")
	next, err := api.Update(t.Context(), next, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pa.Annotations["a"] = "new"
	if err := caches.Add(old); err != nil {
		t.Fatal(err)
	}
	if err := r.service(t.Context(), pa, publicService(pa)); !apierrors.IsConflict(err) {
		t.Fatalf("it was marked since: %v", err)
	}
	if err := caches.Update(next); err != nil {
		t.Fatal(err)
	}
	if err := r.service(t.Context(), pa, publicService(pa)); err != nil {
		t.Fatal(err)
	}
	next = want("first", "second")
	if err := caches.Update(next); err != nil {
		t.Fatal(err)
	}
	if err := r.needs.client.ServingV1().Routes(pa.Namespace).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.service(t.Context(), pa, publicService(pa)); err != nil {
		t.Fatal(err)
	}
	want("second")
}

// The cache of EndpointSlices may be ahead of that of Services.
func TestEndpointSlicesStayWhileTheirServiceDoes(t *testing.T) {
	r, _ := beside(t)
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	api, slices := r.kube.CoreV1().Services(pa.Namespace), r.kube.DiscoveryV1().EndpointSlices(pa.Namespace)
	slice := makeSlices(pa, nil)[0]
	informer := cache.NewSharedIndexInformer(nil, &discoveryv1.EndpointSlice{}, 0, cache.Indexers{})
	r.slices = reconcile.IndexByLabel[*discoveryv1.EndpointSlice](informer, names.ServerlessServiceLabel)
	seen, err := slices.Create(t.Context(), slice, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := informer.GetStore().Add(seen); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Create(t.Context(), Public(pa, "hello"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.takeAway(t.Context(), pa, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := slices.Get(t.Context(), slice.Name, metav1.GetOptions{}); err != nil {
		t.Fatalf("its Service is there: %v", err)
	}
	if err := api.Delete(t.Context(), pa.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	next := seen.DeepCopy()
	next.Labels["a"] = "new"
	if next, err = slices.Update(t.Context(), next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.takeAway(t.Context(), pa, nil); !apierrors.IsConflict(err) {
		t.Errorf("another replica has written it since: %v", err)
	}
	if err := informer.GetStore().Update(next); err != nil {
		t.Fatal(err)
	}
	if err := r.takeAway(t.Context(), pa, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := slices.Get(t.Context(), slice.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Service is gone: %v", err)
	}
}

// While another replica had the revision, somebody may have needed its Service. The minute begins
// anew.
func TestAnotherReplicasMinuteDoesNotCount(t *testing.T) {
	r, c := beside(t)
	pa := podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1)
	have := publicService(pa)
	now := time.Now()
	r.needs.now = func() time.Time { return now }
	for range 2 {
		if wait, ok := r.needs.unneeded(pa, have); !ok || wait != unneededFor {
			t.Fatalf("it goes after %s, %t", wait, ok)
		}
		now = now.Add(time.Hour)
		c.Others(reconcile.Key{Namespace: pa.Namespace, Name: pa.Name})
	}
}

// With system-internal-tls nothing rests. A revision has its Service before a Route leads to it, so
// that gateways use TLS from the first request on.
func TestWithTLSEachRevisionHasAService(t *testing.T) {
	r, _ := beside(t)
	snapshot, err := settings.Parse(map[string]map[string]string{settings.GatewayName: {"resting-routes": "Enabled"},
		settings.NetworkName: {"system-internal-tls": "Enabled"}})
	if err != nil {
		t.Fatal(err)
	}
	r.needs.settings.Set(snapshot)
	if _, unneeded := r.needs.unneeded(podAutoscaler(autoscalingv1alpha1.ProtocolHTTP1), nil); unneeded {
		t.Error("nobody needs it")
	}
}
