package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	gateways "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned"

	ebb "ebb.dev/ebb/api/client/versioned"
	"ebb.dev/ebb/internal/lease"
	"ebb.dev/ebb/settings"
)

// Clients of one API server.
type Clients struct {
	Kube     kubernetes.Interface
	Ebb      ebb.Interface
	Gateways gateways.Interface
	Dynamic  dynamic.Interface
}

// Connect finds the API server by a kubeconfig, or as a pod does if path is empty.
func Connect(path string) (Clients, error) {
	config, err := rest.InClusterConfig()
	if path != "" {
		config, err = clientcmd.BuildConfigFromFlags("", path)
	}
	if err != nil {
		return Clients{}, fmt.Errorf("find the API server: %w", err)
	}
	return ConnectTo(config)
}

// ConnectTo makes the clients for a configuration. Two hundred services applied at once are a normal day, some 25 calls each,
// and the API server's own priority and fairness protects it better than a small number here.
func ConnectTo(config *rest.Config) (Clients, error) {
	config = rest.CopyConfig(config)
	// The API server comments on names that are public and fixed, at every write.
	config.WarningHandler = rest.NoWarnings{}
	if config.QPS == 0 {
		config.QPS, config.Burst = 500, 1000 // for each client
	}
	// Kubernetes' own kinds travel as protobuf: half the bytes and a third of the CPU time of JSON.
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

// LeaseScheme is how the settings want the keys to be shared out, as they are at each call.
func LeaseScheme(store *settings.Store) func() (lease.Scheme, <-chan struct{}) {
	return func() (lease.Scheme, <-chan struct{}) {
		snapshot, replaced := store.Current()
		s := snapshot.LeaderElection
		prefix := "controller"
		if given := s.LeasePrefixes["controller"]; given != "" {
			prefix = given
		}
		return lease.Scheme{Prefix: prefix + ".", Buckets: int(s.Buckets),
			LeaseDuration: s.LeaseDuration, RenewDeadline: s.RenewDeadline, RetryPeriod: s.RetryPeriod}, replaced
	}
}

// Names lists controllers for a log line.
func Names(list []*Controller) string {
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, c.Name)
	}
	return strings.Join(names, " ")
}

// FollowLevel keeps a log level at what the settings say for a component.
func FollowLevel(store *settings.Store, level *slog.LevelVar, component string) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		for {
			s, replaced := store.Current()
			level.Set(s.Logging.LevelOf(component))
			select {
			case <-ctx.Done():
				return nil
			case <-replaced:
			}
		}
	}
}

// Health answers the kubelet: alive from the start, ready once the caches are filled.
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
