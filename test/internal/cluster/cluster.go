// Package cluster connects end-to-end tests, benchmarks and the soak to the cluster that KUBECONFIG
// names. They use it as a user does: they apply manifests, read objects and send requests to the
// gateway.
//
// Owns: the clients and their connections. Reads: anything. Writes: what a caller applies, in
// namespaces that it created. Never: reaches into a component; it uses only Ebb's public API.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// System is the namespace in which Ebb runs.
const System = "knative-serving"

// ExternalGateway is the Gateway, in System, that carries external hosts.
const ExternalGateway = "ebb-external"

// The resources that tests use.
var (
	Services       = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"}
	Configurations = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "configurations"}
	Revisions      = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "revisions"}
	Routes         = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "routes"}
	DomainMappings = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1beta1", Resource: "domainmappings"}
	DomainClaims   = schema.GroupVersionResource{Group: "networking.internal.knative.dev", Version: "v1alpha1", Resource: "clusterdomainclaims"}
	PodAutoscalers = schema.GroupVersionResource{Group: "autoscaling.internal.knative.dev", Version: "v1alpha1", Resource: "podautoscalers"}
	Gateways       = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}
	HTTPRoutes     = schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"}
)

// Cluster is a connection to one cluster with Ebb installed. Its methods may be called
// concurrently.
type Cluster struct {
	Config  *rest.Config
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	// Gateway is host:port of the external gateway.
	Gateway string
	// Programs are the Deployments in which Ebb's components run.
	Programs []string

	mapper *restmapper.DeferredDiscoveryRESTMapper
}

// Connect reads KUBECONFIG (or the usual default) and finds the gateway.
func Connect(ctx context.Context) (*Cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster: %w; bring one up with `make up` and point KUBECONFIG at it with `eval \"$(make -s kubeconfig)\"`", err)
	}
	return connect(ctx, config)
}

func connect(ctx context.Context, config *rest.Config) (*Cluster, error) {
	config.QPS = -1                           // the API server's priority and fairness limits enough
	config.WarningHandler = rest.NoWarnings{} // a benchmark of 200 services would print 200 of them
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	c := &Cluster{Config: config, Kube: kube, Dynamic: dyn,
		mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kube.Discovery()))}
	if c.Gateway, err = c.findGateway(ctx); err != nil {
		return nil, err
	}
	if c.Programs, err = c.findPrograms(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// findGateway reads the address from the Gateway's status. EBB_GATEWAY overrides it if that address
// cannot be reached from here (port-forward, NodePort).
func (c *Cluster) findGateway(ctx context.Context) (string, error) {
	if address := os.Getenv("EBB_GATEWAY"); address != "" {
		return address, nil
	}
	gateway, err := c.Dynamic.Resource(Gateways).Namespace(System).Get(ctx, ExternalGateway, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read Gateway %s/%s: %w", System, ExternalGateway, err)
	}
	addresses, _, _ := unstructured.NestedSlice(gateway.Object, "status", "addresses")
	for _, address := range addresses {
		if fields, ok := address.(map[string]any); ok {
			if value, _ := fields["value"].(string); value != "" {
				return net.JoinHostPort(value, "80"), nil
			}
		}
	}
	return "", fmt.Errorf("the Gateway %s/%s has no address in its status yet", System, ExternalGateway)
}

// Client returns an HTTP client with its own connections, which connects to the gateway for every
// host, whatever the name resolves to. It follows no redirects and waits for a response for at most
// timeout.
func (c *Cluster) Client(timeout time.Duration) *http.Client { return c.ClientOf(c.Gateway, timeout) }

// ClientOf is Client with another gateway, at host:port.
func (c *Cluster) ClientOf(gateway string, timeout time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, network, gateway)
			},
			MaxIdleConnsPerHost: 1000,
			DisableCompression:  true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Namespace creates a namespace whose name begins with prefix. It returns a function that deletes
// it.
func (c *Cluster) Namespace(ctx context.Context, prefix string) (name string, remove func(context.Context) error, err error) {
	made := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"generateName": prefix + "-", "labels": map[string]any{"ebb.dev/test": "true"}}}}
	made, err = c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(ctx, made, metav1.CreateOptions{})
	if err != nil {
		return "", nil, fmt.Errorf("make a namespace for %s: %w", prefix, err)
	}
	name = made.GetName()
	return name, func(ctx context.Context) error {
		return c.Kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	}, nil
}

// HostOf returns the host of a URL in an object's status, or an error with the URL.
func HostOf(text string) (string, error) {
	parsed, err := url.Parse(text)
	if err != nil {
		return "", fmt.Errorf("status has an invalid URL: %w", err)
	}
	if parsed.Hostname() == "" {
		return "", errors.New("status has the URL " + strconv.Quote(text) + " without a host")
	}
	return parsed.Hostname(), nil
}

// Undo reverts changes, the last one first, even if the run is interrupted.
type Undo []func(context.Context) error

// Run reverts everything and returns the errors.
func (u Undo) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for i := len(u) - 1; i >= 0; i-- {
		errs = append(errs, u[i](ctx))
	}
	return errors.Join(errs...)
}
