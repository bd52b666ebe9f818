package process

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	networkingv1alpha1 "ebb.dev/ebb/api/networking/v1alpha1"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	servingv1beta1 "ebb.dev/ebb/api/serving/v1beta1"
	"ebb.dev/ebb/controller/internal/digest"
	"ebb.dev/ebb/controller/internal/stage"
	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/apiservertest/policy"
	"ebb.dev/ebb/test/eventually"
	"ebb.dev/ebb/wire"
)

var httpRoutes = schema.GroupResource{Group: "gateway.networking.k8s.io", Resource: "httproutes"}

// gatewayPod answers for each host that an HTTPRoute names with the hash that its rules add to
// requests.
func gatewayPod(t *testing.T, store *apiservertest.Store) *url.URL {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range store.Versions(httpRoutes, labels.Everything()) {
			namespace, short, _ := strings.Cut(name, "/")
			route := store.Get(httpRoutes, namespace, short)
			if route == nil {
				continue
			}
			hosts, _, _ := unstructured.NestedStringSlice(route.Object, "spec", "hostnames")
			for _, host := range hosts {
				if host == r.Host {
					_, after, _ := strings.Cut(fmt.Sprint(route.Object["spec"]), "name:"+wire.HeaderNetworkHash+" value:")
					hash, _, _ := strings.Cut(after, "]")
					w.Header().Set(wire.HeaderNetworkHash, hash)
					return
				}
			}
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// maxWritesToReady bounds what all reconcilers write from `kubectl apply` of a Service until it is
// Ready, without the autoscaler. Sixteen are usual: 12 objects and the statuses of the Service,
// the Configuration, the Route and the Revision. On a slow machine statuses
// that show progress are added, one for each two seconds and object.
const maxWritesToReady = 28

// Every reconciler of the list in main.go, woken by events alone, against one API server and one
// gateway pod.
func TestAllReconcilersTogetherNeedFewWritesToReadyAndThenNone(t *testing.T) {
	store, config := apiservertest.Start(t)
	policy.Enforce(t, store, "controller")
	w := &world{t: t, store: store}
	address := gatewayPod(t, store)
	put := func(resource schema.GroupResource, object map[string]any) {
		store.Put(resource, &unstructured.Unstructured{Object: object})
	}
	slice := func(service, host, portName string, port int64) {
		put(endpointSlices, map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
			"metadata":  map[string]any{"name": service + "-1", "namespace": "knative-serving", "labels": map[string]any{"kubernetes.io/service-name": service}},
			"endpoints": []any{map[string]any{"addresses": []any{host}}},
			"ports":     []any{map[string]any{"name": portName, "port": port}}})
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ebb-external-istio", "ebb-local-istio"} {
		put(coreServices, map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": name, "namespace": "knative-serving"},
			"spec": map[string]any{"ports": []any{map[string]any{"name": "http", "port": int64(80)}}}})
		slice(name, address.Hostname(), "http", port)
	}
	slice("activator-service", "10.0.0.1", "http", 8012)

	w.world = stage.Manager(t, config, stage.Settings(t, map[string]map[string]string{settings.DomainName: {"example.com": ""},
		settings.DeploymentName: {"queue-sidecar-image": "dev.local/queue-proxy:1"}}))
	var later atomic.Int64
	w.world.Now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	list := controllers(w.world, func() []byte { return []byte("0123456789abcdef0123456789abcdef") }, digest.ReadOptions(env.New(os.Getenv)))
	ctx := t.Context()
	stage.Run(t, w.world, list...)

	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hello"}}
	service.Spec.Template.Spec.Containers = []corev1.Container{{Image: "dev.local/hello:1"}}
	if _, err := w.world.Ebb.ServingV1().Services("ns").Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	store.Writes()
	eventually.True(t, "the revision has its children", func() bool {
		return store.Get(autoscalers, "ns", "hello-00001") != nil && store.Get(deployments, "ns", "hello-00001-deployment") != nil
	})
	w.pods(map[string]string{"rev": "hello-00001", "n": "1", "ready": ""}, "")
	w.autoscaler(map[string]string{"rev": "hello-00001", "want": "1", "ready": "1"})
	isReady := func() bool {
		live, err := w.world.Ebb.ServingV1().Services("ns").Get(ctx, "hello", metav1.GetOptions{})
		return err == nil && live.Status.GetCondition(apis.ConditionReady).IsTrue() && live.Status.ObservedGeneration == live.Generation
	}
	eventually.True(t, "the Service is Ready", isReady)
	writes := store.Writes()
	var lines []string
	for _, write := range writes {
		lines = append(lines, describe(write))
	}
	t.Logf("%d writes:\n%s", len(writes), strings.Join(lines, "\n"))
	if len(writes) > maxWritesToReady {
		t.Errorf("%d writes from apply to Ready, at most %d are expected:\n%s", len(writes), maxWritesToReady, strings.Join(lines, "\n"))
	}

	// A domain of its own, so that every kind is there.
	claim := &networkingv1alpha1.ClusterDomainClaim{ObjectMeta: metav1.ObjectMeta{Name: "hello.test"}}
	claim.Spec.Namespace = "ns"
	if _, err := w.world.Ebb.NetworkingV1alpha1().ClusterDomainClaims().Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	mapping := &servingv1beta1.DomainMapping{ObjectMeta: metav1.ObjectMeta{Name: "hello.test", Namespace: "ns"}}
	mapping.Spec.Ref = duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Name: "hello", Namespace: "ns"}
	if _, err := w.world.Ebb.ServingV1beta1().DomainMappings("ns").Create(ctx, mapping, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.True(t, "the DomainMapping is Ready", func() bool {
		live, err := w.world.Ebb.ServingV1beta1().DomainMappings("ns").Get(ctx, "hello.test", metav1.GetOptions{})
		return err == nil && live.Status.GetCondition(apis.ConditionReady).IsTrue()
	})

	// Until the last write has come round to every cache, a reconcile may still have something to
	// add.
	quiet := 0
	eventually.True(t, "nothing is written any more", func() bool {
		if quiet++; len(store.Writes()) > 0 {
			quiet = 0
		}
		return quiet > 500
	})
	// Then three minutes pass, and everything is looked at in each, as it is when a setting
	// changes.
	for range 3 {
		later.Add(int64(time.Minute))
		for _, c := range list {
			for _, key := range c.Keys() {
				if _, err := c.Reconcile(ctx, key); err != nil {
					t.Errorf("%s %s: %v", c.Name, key, err)
				}
			}
		}
	}
	for _, write := range store.Writes() {
		t.Errorf("a steady world was written to: %s", describe(write))
	}
	if !isReady() {
		t.Error("the Service is not Ready any more")
	}

	// The namespace is deleted with everything in it. Children may go first, and nobody creates
	// them again.
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "ns", "deletionTimestamp": "2026-03-01T12:00:00Z", "finalizers": []any{"kubernetes"}}}}
	store.Put(schema.GroupResource{Resource: "namespaces"}, namespace)
	eventually.True(t, "the controller knows that the namespace is being deleted", func() bool { return w.world.Terminating("ns") })
	if err := w.world.Ebb.ServingV1().Revisions("ns").Delete(ctx, "hello-00001", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, resource := range []schema.GroupResource{deployments, httpRoutes, coreServices} {
		for name := range store.Versions(resource, labels.Everything()) {
			if space, short, _ := strings.Cut(name, "/"); space == "ns" {
				store.Remove(resource, space, short)
			}
		}
	}
	for _, err := range []error{
		w.world.Ebb.ServingV1().Routes("ns").Delete(ctx, "hello", metav1.DeleteOptions{}),
		w.world.Ebb.ServingV1().Configurations("ns").Delete(ctx, "hello", metav1.DeleteOptions{}),
		w.world.Ebb.ServingV1beta1().DomainMappings("ns").Delete(ctx, "hello.test", metav1.DeleteOptions{}),
		w.world.Ebb.ServingV1().Services("ns").Delete(ctx, "hello", metav1.DeleteOptions{}),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	eventually.True(t, "the Route and the DomainMapping are gone", func() bool {
		return store.Get(routesResource, "ns", "hello") == nil &&
			store.Get(schema.GroupResource{Group: "serving.knative.dev", Resource: "domainmappings"}, "ns", "hello.test") == nil
	})
	for _, write := range store.Writes() {
		if finalized := write.Verb == "patch" && (write.Resource == "routes" || write.Resource == "domainmappings"); !finalized && write.Verb != "delete" {
			t.Errorf("in a namespace that is being deleted: %s", describe(write))
		}
	}
}
