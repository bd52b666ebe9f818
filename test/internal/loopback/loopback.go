// Package loopback runs Ebb's real data path without a cluster. An API server in memory tells
// activators about revisions and their pods, and a server accepts their stats.
//
// Owns: the API server and its objects. Reads: stats. Writes: a kubeconfig. Never: decides
// anything.
package loopback

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/api/autoscaling/v1alpha1"
	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/test/apiservertest"
	"ebb.dev/ebb/wire"
)

// Namespaces of the cluster: one for the system, one for the revisions.
const (
	SystemNamespace = "knative-serving"
	Namespace       = "loopback"
)

// TokenKey is the key of all tokens (wire.Token).
var TokenKey = []byte(strings.Repeat("k", 32))

// Cluster is what activators need from a cluster: an API server in memory, its kubeconfig, and a
// server that accepts stats.
type Cluster struct {
	Kubeconfig string       // the value of KUBECONFIG
	Autoscaler string       // host:port that accepts stats
	Reports    atomic.Int64 // stats with the right token
	Stop       func()

	store *apiservertest.Store
}

// Start creates a cluster with the token's Secret and empty ConfigMaps, so every setting has its
// default.
func Start(dir string) (*Cluster, error) {
	store, config, stop := apiservertest.Serve()
	c := &Cluster{store: store, Kubeconfig: filepath.Join(dir, "kubeconfig")}
	autoscaler := httptest.NewServer(http.HandlerFunc(c.take))
	c.Autoscaler = autoscaler.Listener.Addr().String()
	c.Stop = func() {
		autoscaler.CloseClientConnections()
		autoscaler.Close()
		stop()
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: %q}}]\n"+
		"contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x}]\ncurrent-context: x\n", config.Host)
	if err := os.WriteFile(c.Kubeconfig, []byte(text), 0o600); err != nil {
		c.Stop()
		return nil, fmt.Errorf("write the activator's kubeconfig: %w", err)
	}
	objects := []any{&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: wire.TokenSecret},
		Data:       map[string][]byte{wire.TokenSecretKey: TokenKey}},
		&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: wire.CourierSecret},
			Data:       map[string][]byte{wire.CourierSecretToken: []byte(wire.Token(TokenKey, "", wire.ActivatorSubject))}}}
	for _, name := range []string{"config-defaults", "config-logging", "config-network", "config-observability"} {
		objects = append(objects, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: name}})
	}
	if err := c.put(objects...); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// take accepts stats as the autoscaler does.
func (c *Cluster) take(out http.ResponseWriter, r *http.Request) {
	keys := wire.KeysOf(map[string][]byte{wire.TokenSecretKey: TokenKey})
	if s, err := wire.ReadSignature(r); r.URL.Path != wire.PathStats || err != nil || !s.By(keys, "", wire.ActivatorSubject) {
		http.Error(out, "not stats of an activator", http.StatusForbidden)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	c.Reports.Add(1)
	out.WriteHeader(http.StatusNoContent)
}

// Revision adds a Revision with a limit of requests per pod (0: no limit) and ready pods at the
// addresses, as the controller and Kubernetes would. Each pod has its own EndpointSlice, because
// ports differ.
func (c *Cluster) Revision(name string, limit int64, pods ...string) error {
	return c.RevisionIn(Namespace, name, limit, pods...)
}

// RevisionIn adds a Revision in another namespace, that of another tenant.
func (c *Cluster) RevisionIn(namespace, name string, limit int64, pods ...string) error {
	labels := map[string]string{names.ServiceLabel: name, names.ConfigurationLabel: name}
	revision := &servingv1.Revision{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Revision"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	revision.Spec.Containers = []corev1.Container{{Image: "registry.example/loopback"}}
	revision.Spec.ContainerConcurrency = &limit
	private := metav1.ObjectMeta{Namespace: namespace, Name: name + "-private",
		Labels: map[string]string{names.RevisionLabel: name, names.ServiceTypeLabel: names.ServiceTypePrivate}}
	portName, ready := "http", true
	objects := []any{revision, &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: *private.DeepCopy(),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: portName, Port: 80}}}}}
	for i, address := range pods {
		pod, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("pod %d of revision %s: %w", i, name, err)
		}
		port := int32(pod.Port())
		slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
			ObjectMeta: *private.DeepCopy(), AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod.Addr().String()},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: fmt.Sprintf("%s-%d", name, i)},
				Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
		slice.Name = fmt.Sprintf("%s-%d", private.Name, i)
		slice.Labels[discoveryv1.LabelServiceName] = private.Name
		objects = append(objects, slice)
	}
	return c.put(objects...)
}

// Settings sets keys of a ConfigMap.
func (c *Cluster) Settings(name string, data map[string]string) error {
	return c.put(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: SystemNamespace, Name: name}, Data: data})
}

// Route adds a Route to a revision of its name, and the PodAutoscaler of that with ready pods, and
// returns what a gateway says of requests that it leads to the courier.
func (c *Cluster) Route(namespace, name string, pods int32, limit int64, annotations map[string]string) (wire.AsyncTarget, error) {
	all := int64(100)
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations}
	route := &servingv1.Route{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Route"}, ObjectMeta: meta}
	route.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: name, Percent: &all}}
	meta.Annotations = nil
	pa := &v1alpha1.PodAutoscaler{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling.internal.knative.dev/v1alpha1", Kind: "PodAutoscaler"}, ObjectMeta: meta,
		Spec:   v1alpha1.PodAutoscalerSpec{ProtocolType: v1alpha1.ProtocolHTTP1, ContainerConcurrency: limit},
		Status: v1alpha1.PodAutoscalerStatus{ActualScale: &pods}}
	err := c.put(route, pa)
	kept := c.store.Get(schema.GroupResource{Group: "serving.knative.dev", Resource: "routes"}, namespace, name)
	if err != nil || kept == nil {
		return wire.AsyncTarget{}, fmt.Errorf("put Route %s/%s into the cluster: %w", namespace, name, err)
	}
	return wire.AsyncTarget{Namespace: namespace, Route: name, UID: string(kept.GetUID()), Host: name + "." + namespace + ".svc.cluster.local"}, nil
}

// Asleep adds a PodAutoscaler without pods, and its Deployment, as the controller leaves those of a
// revision that nobody asks for.
func (c *Cluster) Asleep(namespace, name string) error {
	none := int32(0)
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + "/" + name), Generation: 1,
		Labels: map[string]string{names.ServiceLabel: name, names.ConfigurationLabel: name, names.RevisionLabel: name}}
	pa := &v1alpha1.PodAutoscaler{TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling.internal.knative.dev/v1alpha1", Kind: "PodAutoscaler"}, ObjectMeta: meta,
		Spec: v1alpha1.PodAutoscalerSpec{ProtocolType: v1alpha1.ProtocolHTTP1,
			ScaleTargetRef: corev1.ObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name + "-deployment"}},
		Status: v1alpha1.PodAutoscalerStatus{DesiredScale: &none, ActualScale: &none, Mode: v1alpha1.ModeProxy}}
	pa.Status.ObservedGeneration = 1
	pa.Status.InitializeConditions()
	pa.Status.MarkScaleTargetInitialized()
	pa.Status.MarkInactive("NoTraffic", "")
	deployment := &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: meta}
	deployment.Name = pa.Spec.ScaleTargetRef.Name
	deployment.Spec.Replicas = &none
	return c.put(pa, deployment)
}

// Replicas is how many pods the autoscaler wants for a revision of Asleep.
func (c *Cluster) Replicas(namespace, name string) int64 {
	deployment := c.store.Get(schema.GroupResource{Group: "apps", Resource: "deployments"}, namespace, name+"-deployment")
	if deployment == nil {
		return 0
	}
	replicas, _, _ := unstructured.NestedInt64(deployment.Object, "spec", "replicas")
	return replicas
}

func (c *Cluster) put(objects ...any) error {
	for _, o := range objects {
		data, err := json.Marshal(o)
		if err != nil {
			return fmt.Errorf("put %T into the cluster: %w", o, err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(data); err != nil {
			return fmt.Errorf("put %T into the cluster: %w", o, err)
		}
		kind := object.GroupVersionKind()
		c.store.Put(schema.GroupResource{Group: kind.Group, Resource: strings.ToLower(kind.Kind) + "s"}, object)
	}
	return nil
}
