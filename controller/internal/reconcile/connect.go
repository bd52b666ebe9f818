package reconcile

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	ebb "ebb.dev/ebb/api/client/versioned"
)

// Clients are the clients of one API server.
type Clients struct {
	Kube     kubernetes.Interface
	Ebb      ebb.Interface
	Gateways gateways.Interface
	Dynamic  dynamic.Interface
}

// ConnectTo returns the clients for a configuration. Their rate limit is high: 200 services at
// once, with about 20 writes each, are normal, and the API server's priority and fairness protects
// it better than a low limit here.
func ConnectTo(config *rest.Config) (Clients, error) {
	config = rest.CopyConfig(config)
	// The API server warns about names that the public API fixes, at every write.
	config.WarningHandler = rest.NoWarnings{}
	if config.QPS == 0 {
		config.QPS, config.Burst = 500, 1000 // for each client
	}
	// Kubernetes' own kinds are encoded as protobuf, with half the bytes and a third of the CPU
	// time of JSON.
	compact := rest.CopyConfig(config)
	compact.ContentType = "application/vnd.kubernetes.protobuf"
	compact.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	var c Clients
	var err error
	if c.Kube, err = kubernetes.NewForConfig(compact); err != nil {
		return c, err
	}
	if c.Ebb, err = ebb.NewForConfig(config); err != nil {
		return c, err
	}
	if c.Gateways, err = gateways.NewForConfig(config); err != nil {
		return c, err
	}
	c.Dynamic, err = dynamic.NewForConfig(config)
	return c, err
}

// Names returns the names of controllers, for a log line.
func Names(list []*Controller) string {
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

// EnqueueAllOf is EnqueueAll of the controller with a name.
func EnqueueAllOf(list []*Controller, name string, within time.Duration) {
	for _, c := range list {
		if c.Name == name {
			c.EnqueueAll(within)
		}
	}
}

// Health serves the kubelet's probes: alive from the start, ready when the caches are filled.
func Health(synced *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readiness", func(w http.ResponseWriter, _ *http.Request) {
		if !synced.Load() {
			http.Error(w, "caches are not filled yet", http.StatusServiceUnavailable)
		}
	})
	return mux
}
