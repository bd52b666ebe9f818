package main

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

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"ebb.dev/ebb/api/names"
	servingv1 "ebb.dev/ebb/api/serving/v1"
	"ebb.dev/ebb/internal/apiservertest"
	"ebb.dev/ebb/wire"
)

const (
	systemNamespace = "knative-serving"
	namespace       = "bench"
)

var tokenKey = []byte(strings.Repeat("k", 32))

// cluster is what the activator knows of one: an API server in memory, the file that says where it is, and who takes its stats.
type cluster struct {
	store      *apiservertest.Store
	kubeconfig string
	autoscaler *httptest.Server
	reports    atomic.Int64 // reports that came with the right token
	stop       func()
}

// startCluster holds the token's Secret and the ConfigMaps, which are empty: every setting has its default.
func startCluster(dir string) (*cluster, error) {
	store, config, stop := apiservertest.Serve()
	c := &cluster{store: store, kubeconfig: filepath.Join(dir, "kubeconfig")}
	c.autoscaler = httptest.NewServer(http.HandlerFunc(c.take))
	c.stop = func() {
		c.autoscaler.CloseClientConnections()
		c.autoscaler.Close()
		stop()
	}
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: x, cluster: {server: %q}}]\n"+
		"contexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x}]\ncurrent-context: x\n", config.Host)
	if err := os.WriteFile(c.kubeconfig, []byte(text), 0o600); err != nil {
		c.stop()
		return nil, fmt.Errorf("write the activator's kubeconfig: %w", err)
	}
	objects := []any{&corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: wire.TokenSecret},
		Data:       map[string][]byte{wire.TokenSecretKey: tokenKey}}}
	for _, name := range []string{"config-defaults", "config-logging", "config-network", "config-observability"} {
		objects = append(objects, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: systemNamespace, Name: name}})
	}
	if err := c.put(objects...); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// take is the autoscaler's side of a report.
func (c *cluster) take(out http.ResponseWriter, r *http.Request) {
	if r.URL.Path != wire.PathStats || r.Header.Get("Authorization") != wire.Bearer(wire.Token(tokenKey, "", wire.ActivatorSubject)) {
		http.Error(out, "not a report of the activator", http.StatusForbidden)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	c.reports.Add(1)
	out.WriteHeader(http.StatusNoContent)
}

// revision adds a Revision without a limit whose one ready pod is at addr, the way the controller and Kubernetes would.
func (c *cluster) revision(name, addr string) error {
	pod, err := netip.ParseAddrPort(addr)
	if err != nil {
		return fmt.Errorf("the pod of revision %s: %w", name, err)
	}
	labels := map[string]string{names.ServiceLabel: name, names.ConfigurationLabel: name}
	revision := &servingv1.Revision{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Revision"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	revision.Spec.Containers = []corev1.Container{{Image: "registry.example/bench"}}
	private := metav1.ObjectMeta{Namespace: namespace, Name: name + "-private",
		Labels: map[string]string{names.RevisionLabel: name, names.ServiceTypeLabel: names.ServiceTypePrivate}}
	portName, port, ready := "http", int32(pod.Port()), true
	service := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: *private.DeepCopy(),
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: portName, Port: 80}}}}
	slice := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: *private.DeepCopy(), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod.Addr().String()}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}}
	slice.Labels[discoveryv1.LabelServiceName] = service.Name
	return c.put(revision, service, slice)
}

func (c *cluster) put(objects ...any) error {
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
