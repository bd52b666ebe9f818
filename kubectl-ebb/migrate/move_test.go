package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/names"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/test/eventually"
)

// fixedMapper knows the kinds of the test.
type fixedMapper struct{ *meta.DefaultRESTMapper }

func (fixedMapper) Reset() {}

func mapper() fixedMapper {
	m := meta.NewDefaultRESTMapper(nil)
	for kind, r := range map[string]schema.GroupVersionResource{"Deployment": deploymentResource, "ReplicaSet": replicaResource, "Service": serviceResource, "Pod": podResource,
		"Endpoints": endpointsResource, "EndpointSlice": sliceResource, "Lease": leaseResource, "ConfigMap": gvr("", "v1", "configmaps"), "HTTPRoute": httpRouteResource,
		"Ingress": ingresses, "ServerlessService": serverless, "PodAutoscaler": autoscalers, "Route": routes, "Certificate": certificates, "Metric": metrics, "Image": images, "Secret": secretResource, "Gateway": gatewayResource,
		"HorizontalPodAutoscaler": gvr("autoscaling", "v2", "horizontalpodautoscalers"), "PodDisruptionBudget": gvr("policy", "v1", "poddisruptionbudgets")} {
		m.AddSpecific(r.GroupVersion().WithKind(kind), r, r, meta.RESTScopeNamespace)
	}
	for kind, r := range map[string]schema.GroupVersionResource{"CustomResourceDefinition": kindResource, "MutatingWebhookConfiguration": mutatingResource,
		"ValidatingWebhookConfiguration": validatingResource, "ClusterRole": gvr("rbac.authorization.k8s.io", "v1", "clusterroles")} {
		m.AddSpecific(r.GroupVersion().WithKind(kind), r, r, meta.RESTScopeRoot)
	}
	return fixedMapper{m}
}

// world is a cluster in memory, with what controllers of Kubernetes, Knative and Ebb do there.
type world struct {
	*apiservertest.Store
	*Cluster
	mu     sync.Mutex
	writes int // of the move
	limit  int // the write at which the command is killed, 0 for none
	plugin plugin
	served bool // an HTTPRoute led the host to the Service
	lost   bool // afterwards, none did
	rounds atomic.Int64
}

// plugin is how an ingress plugin names its HTTPRoutes, and what it does if a name is taken.
type plugin struct{ name, taken string }

// The plugins that there are.
var (
	namesItsOwn = plugin{name: "of-plugin"}
	refuses     = plugin{name: host, taken: "refuses"}
	overwrites  = plugin{name: host, taken: "overwrites"}
)

var secretResource = gvr("", "v1", "secrets")

// host is that of the Service. Ebb's HTTPRoute has its name.
const host = "cart.shop.example.com"

var errKilled = errors.New("killed")

func (w *world) put(o Object) {
	mapping, err := w.mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version)
	if err != nil {
		panic(err)
	}
	w.Store.Put(mapping.Resource.GroupResource(), o)
}

func (w *world) find(r schema.GroupVersionResource, namespace, name string) Object {
	return w.Store.Get(r.GroupResource(), namespace, name)
}

func newWorld(t *testing.T, p plugin) *world {
	store, config := apiservertest.Start(t)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{Store: store, Cluster: &Cluster{Interface: client, Kube: kube, mapper: mapper()}, plugin: p}
	store.Admit = func(string, schema.GroupResource, string, *unstructured.Unstructured) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.writes++; w.limit > 0 && w.writes >= w.limit {
			return apierrors.NewBadRequest(errKilled.Error())
		}
		return nil
	}
	w.knative()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.controllers()
			w.rounds.Add(1)
			time.Sleep(time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
	eventually.True(t, "Knative has made what it makes", func() bool {
		return w.find(ingresses, "shop", "cart") != nil && w.find(sliceResource, "shop", "cart-1-mirror") != nil
	})
	return w
}

const knative = "knative"

// deployed is a Deployment of the system namespace.
func deployed(name, image string) Object {
	d := object("apps/v1", "Deployment", names.SystemNamespace, name)
	d.SetLabels(map[string]string{"app.kubernetes.io/name": "knative-serving", "app.kubernetes.io/version": "v1"})
	d.Object["spec"] = map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": name}},
		"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": name, "image": image}}}}}
	return d
}

// knative puts an installation of Knative with one Service into the world.
func (w *world) knative() {
	for _, name := range components {
		w.put(deployed(name, knative))
	}
	if w.plugin.taken != "" { // it shares the Gateway with Ebb
		w.put(object("gateway.networking.k8s.io/v1", "Gateway", names.SystemNamespace, "ebb-external"))
	}
	plugin := deployed("plugin", knative)
	plugin.SetLabels(map[string]string{pluginLabel: "x"})
	w.put(plugin)
	pod := object("v1", "Pod", names.SystemNamespace, "activator-1")
	pod.SetLabels(map[string]string{"app": "activator"})
	w.put(pod)
	for _, kind := range append(slices.Clone(onlyKnative), servingServices) {
		o := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", kind.GroupResource().String())
		o.SetLabels(map[string]string{"app.kubernetes.io/name": "knative-serving"})
		o.Object["spec"] = map[string]any{"of": knative}
		w.put(o)
	}
	hook := object("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "", "hook")
	hook.Object["webhooks"] = []any{map[string]any{"name": "a", "clientConfig": map[string]any{"service": map[string]any{"namespace": names.SystemNamespace, "name": "webhook"}}}}
	w.put(hook)
	config := object("v1", "ConfigMap", names.SystemNamespace, "config-deployment")
	config.SetLabels(map[string]string{"app.kubernetes.io/name": "knative-serving"})
	config.Object["data"] = map[string]any{"queue-sidecar-image": knative, "progress-deadline": "90s"}
	w.put(config)
	role := object("rbac.authorization.k8s.io/v1", "ClusterRole", "", "theirs")
	role.SetLabels(map[string]string{"app.kubernetes.io/name": "knative-serving"})
	w.put(role)

	w.put(object("serving.knative.dev/v1", "Route", "shop", "cart"))
	w.put(object("autoscaling.internal.knative.dev/v1alpha1", "PodAutoscaler", "shop", "cart-1"))
	w.sks()
	for _, name := range []string{"cart-1", "cart-1-private"} {
		s := object("v1", "Service", "shop", name)
		s.SetLabels(map[string]string{names.ServerlessServiceLabel: "cart-1"})
		w.owned(s, w.find(serverless, "shop", "cart-1"))
	}
}

func (w *world) sks() {
	w.owned(object("networking.internal.knative.dev/v1alpha1", "ServerlessService", "shop", "cart-1"), w.find(autoscalers, "shop", "cart-1"))
}

// owned puts an object with an owner.
func (w *world) owned(o, owner Object) {
	is := true
	o.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(), Controller: &is}})
	w.put(o)
}

// controllers does once what controllers do all the time.
func (w *world) controllers() {
	of := ""
	for _, name := range append([]string{"plugin"}, components...) {
		d := w.find(deploymentResource, names.SystemNamespace, name)
		if d == nil {
			continue
		}
		image := imagesOf(d)[0]
		if name == "controller" {
			of = image
		}
		if d.Object["status"] == nil {
			d.Object["status"] = map[string]any{"observedGeneration": d.GetGeneration() + 1, "availableReplicas": int64(1), "updatedReplicas": int64(1), "replicas": int64(1)}
			w.put(d)
		}
	}
	for _, kind := range onlyKnative {
		if o := w.find(kindResource, "", kind.GroupResource().String()); o != nil && o.Object["status"] == nil {
			o.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
			w.put(o)
		}
	}
	if pod := w.find(podResource, names.SystemNamespace, pullName); pod != nil && pod.Object["status"] == nil {
		pod.Object["status"] = map[string]any{"containerStatuses": []any{map[string]any{"state": map[string]any{"terminated": map[string]any{"exitCode": int64(0)}}}}}
		w.put(pod)
	}
	route, pa := w.find(routes, "shop", "cart"), w.find(autoscalers, "shop", "cart-1")
	slice := object("discovery.k8s.io/v1", "EndpointSlice", "shop", "cart-1")
	slice.Object["endpoints"] = []any{map[string]any{"addresses": []any{"10.0.0.1"}}}
	ingress := w.find(ingresses, "shop", "cart")
	w.watch()
	switch of {
	case knative:
		if ingress == nil {
			i := object("networking.internal.knative.dev/v1alpha1", "Ingress", "shop", "cart")
			i.SetFinalizers([]string{"plugin.example/x"})
			w.owned(i, route)
			ingress = w.find(ingresses, "shop", "cart")
		}
		w.route(w.plugin.name, "plugin", ingress)
		if sks := w.find(serverless, "shop", "cart-1"); sks != nil && w.find(sliceResource, "shop", "cart-1-mirror") == nil {
			e := object("v1", "Endpoints", "shop", "cart-1")
			e.SetLabels(map[string]string{names.ServerlessServiceLabel: "cart-1"})
			w.owned(e, sks)
			slice.SetName("cart-1-mirror")
			slice.SetLabels(map[string]string{"endpointslice.kubernetes.io/managed-by": "endpointslicemirroring-controller.k8s.io", "kubernetes.io/service-name": "cart-1"})
			w.owned(slice, w.find(endpointsResource, "shop", "cart-1"))
		}
	case "r/controller:1":
		if w.find(sliceResource, "shop", "cart-1") == nil {
			slice.SetLabels(map[string]string{"endpointslice.kubernetes.io/managed-by": "ebb-controller", names.ServerlessServiceLabel: "cart-1"})
			w.owned(slice, pa)
		}
		w.route(host, "ebb", route)
		if w.find(secretResource, "shop", names.PodSecret) == nil {
			w.put(object("v1", "Secret", "shop", names.PodSecret))
		}
	}
}

// route writes an HTTPRoute of the host for its owner, as a controller does, and sets the owner's
// condition.
func (w *world) route(name, by string, owner Object) {
	have, state := w.find(httpRouteResource, "shop", name), "True"
	switch {
	case have == nil:
		made := object("gateway.networking.k8s.io/v1", "HTTPRoute", "shop", name)
		made.Object["spec"] = map[string]any{"hostnames": []any{host}, "by": by}
		made.Object["status"] = map[string]any{"parents": []any{map[string]any{"conditions": []any{map[string]any{"type": "Accepted", "status": "True", "observedGeneration": int64(9)}}}}}
		w.owned(made, owner)
	case controllerOf(have).UID != owner.GetUID() && (by == "ebb" || w.plugin == refuses):
		state = "False"
	case fieldOf(have, "by") != by:
		have.Object["spec"] = map[string]any{"hostnames": []any{host}, "by": by}
		w.put(have)
	}
	if conditionOf(owner, "Ready") != state {
		owner.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": state}}}
		w.put(owner)
	}
}

// watch sees whether the host is always led somewhere.
func (w *world) watch() {
	served := w.find(httpRouteResource, "shop", host) != nil || w.find(httpRouteResource, "shop", namesItsOwn.name) != nil
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lost = w.lost || w.served && !served
	w.served = served
}

func (w *world) lostAHost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func fieldOf(o Object, name string) string {
	text, _, _ := unstructured.NestedString(o.Object, "spec", name)
	return text
}

// ends reports what of an installation is there.
func (w *world) ends() map[string]string {
	found := map[string]string{}
	for _, name := range append([]string{"plugin"}, components...) {
		if d := w.find(deploymentResource, names.SystemNamespace, name); d != nil {
			found[name] = imagesOf(d)[0]
		}
	}
	for _, name := range []string{"cart-1", "cart-1-private"} {
		if s := w.find(serviceResource, "shop", name); s != nil {
			found["service "+name] = controllerOf(s).Kind
		}
	}
	for _, o := range []Object{w.find(ingresses, "shop", "cart"), w.find(serverless, "shop", "cart-1"), w.find(secretResource, "shop", names.PodSecret),
		w.find(endpointsResource, "shop", "cart-1"), w.find(sliceResource, "shop", "cart-1"), w.find(validatingResource, "", "hook"), w.find(gvr("rbac.authorization.k8s.io", "v1", "clusterroles"), "", "theirs"),
		w.find(podResource, names.SystemNamespace, "activator-1"), w.find(podResource, names.SystemNamespace, pullName), w.find(kindResource, "", ingresses.GroupResource().String())} {
		if o != nil {
			found[o.GetKind()+" "+o.GetName()] = "there"
		}
	}
	if o := w.find(gatewayResource, names.SystemNamespace, "ebb-external"); o != nil {
		found["Gateway"] = fmt.Sprint("changed: ", len(o.GetAnnotations()) > 0)
	}
	for _, name := range []string{host, namesItsOwn.name} {
		if o := w.find(httpRouteResource, "shop", name); o != nil {
			found["HTTPRoute "+name] = controllerOf(o).Kind + " by " + fieldOf(o, "by")
		}
	}
	if o := w.find(kindResource, "", servingServices.GroupResource().String()); o != nil {
		found["kind"], _, _ = unstructured.NestedString(o.Object, "spec", "of")
	}
	if o := w.find(gvr("", "v1", "configmaps"), names.SystemNamespace, "config-deployment"); o != nil {
		data, _, _ := unstructured.NestedStringMap(o.Object, "data")
		for key, value := range data {
			found["setting "+key] = value
		}
	}
	return found
}

// moved runs a move that is killed at one of its writes, and again until it is done. It reports
// whether it was killed.
func (w *world) moved(t *testing.T, at int, do func(*Move) error) bool {
	t.Helper()
	m := &Move{Cluster: w.Cluster, Manifests: ebb(t), Out: io.Discard}
	w.mu.Lock()
	w.writes, w.limit = 0, at
	w.mu.Unlock()
	err := do(m)
	w.mu.Lock()
	w.limit = 0
	w.mu.Unlock()
	if err == nil {
		return false
	}
	if err := do(m); err != nil {
		t.Fatalf("killed at write %d, and then: %v", at, err)
	}
	return true
}

// A move and its way back end in the same state wherever they were interrupted.
func TestAMoveGoesOnWhereverItWasKilled(t *testing.T) {
	pause, settle = time.Millisecond, time.Millisecond
	for _, p := range []plugin{refuses, overwrites} {
		t.Run(p.taken, func(t *testing.T) { goesOn(t, p, 9) })
	}
	t.Run("names of its own", func(t *testing.T) { goesOn(t, namesItsOwn, 1) })
}

// goesOn kills the command at each of its writes that is a multiple of step.
func goesOn(t *testing.T, p plugin, step int) {
	afterMove, afterBack := map[string]string{}, map[string]string{}
	last := false
	for at := 0; !last && !t.Failed(); at += step {
		t.Run(fmt.Sprint("killed at write ", at), func(t *testing.T) {
			w := newWorld(t, p)
			before := w.ends()
			there := w.moved(t, at, func(m *Move) error { return m.Apply(t.Context()) })
			w.settled(t)
			moved := w.ends()
			back := w.moved(t, at, func(m *Move) error { return m.Rollback(t.Context()) })
			w.settled(t)
			after := w.ends()
			if w.lostAHost() {
				t.Error("the host led nowhere for a moment")
			}
			if at == 0 {
				afterMove, afterBack = moved, after
				delete(before, "Pod activator-1") // Knative's own Deployment has another one
				if diff := cmp.Diff(before, after); diff != "" {
					t.Errorf("the way back ends elsewhere: -before +after\n%s", diff)
				}
				if want := expected(p); !maps.Equal(moved, want) {
					t.Errorf("after the move: %s", cmp.Diff(want, moved))
				}
				return
			}
			if !maps.Equal(moved, afterMove) {
				t.Errorf("the move ends elsewhere: %s", cmp.Diff(afterMove, moved))
			}
			if !maps.Equal(after, afterBack) {
				t.Errorf("the way back ends elsewhere: %s", cmp.Diff(afterBack, after))
			}
			if last = !there && !back; last && at < 20 {
				t.Errorf("only %d writes were made", at-1)
			}
		})
	}
}

// The way back begins wherever a move was given up.
func TestAWayBackBeginsAtAnyStep(t *testing.T) {
	pause, settle = time.Millisecond, time.Millisecond
	last := false
	for at := 1; !last && !t.Failed(); at++ {
		t.Run(fmt.Sprint("killed at write ", at), func(t *testing.T) {
			w := newWorld(t, refuses)
			before := w.ends()
			w.mu.Lock()
			w.writes, w.limit = 0, at
			w.mu.Unlock()
			last = (&Move{Cluster: w.Cluster, Manifests: ebb(t), Out: io.Discard}).Apply(t.Context()) == nil
			w.mu.Lock()
			w.limit = 0
			w.mu.Unlock()
			state, err := w.load(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := (&Move{Cluster: w.Cluster, Out: io.Discard}).Rollback(t.Context()); state == nil {
				if err == nil {
					t.Error("before anything was changed there was a way back")
				}
				return
			} else if err != nil {
				t.Fatalf("there was no way back: %v", err)
			}
			w.settled(t)
			after := w.ends()
			delete(before, "Pod activator-1")
			delete(after, "Pod activator-1") // it stays if the move did not come to it
			delete(after, "Pod "+pullName)
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the way back ends elsewhere: -before +after\n%s", diff)
			}
		})
	}
}

// settled lets the controllers see what was done last, and do what follows from it.
func (w *world) settled(t *testing.T) {
	t.Helper()
	until := w.rounds.Load() + 6
	eventually.True(t, "the controllers go on", func() bool { return w.rounds.Load() >= until })
}

// expected is what is there after a move.
func expected(p plugin) map[string]string {
	return map[string]string{"activator": "r/activator:1", "autoscaler": "r/autoscaler:1", "controller": "r/controller:1", "webhook": "r/webhook:1",
		"service cart-1": "PodAutoscaler", "service cart-1-private": "PodAutoscaler", "HTTPRoute " + host: "Route by ebb", "Gateway": fmt.Sprint("changed: ", p.taken == ""), "Secret " + names.PodSecret: "there", "EndpointSlice cart-1": "there",
		"kind": "", "setting queue-sidecar-image": "r/queue-proxy:1", "setting progress-deadline": "90s", "setting _example": "new"}
}
