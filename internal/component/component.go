// Package component is how processes of Ebb begin, and what they have in common: the environment, a
// log, clients, settings, metrics and profiles.
//
// Owns: the variables that they all read. Reads: the environment, the config-* ConfigMaps, and
// Secrets that a process asks for. Writes: nothing. Never: knows what a process is for.
package component

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"ebb.dev/ebb/internal/clusterdomain"
	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/internal/rewatch"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/secretvalue"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/settings"
	"ebb.dev/ebb/wire"
)

// Component is a process, or a part of one that could be one.
type Component struct {
	Name, Namespace, Pod string
	// ClusterDomain ends the names of Services, such as "cluster.local".
	ClusterDomain string
	// Ports are where it tells of itself.
	Ports    Ports
	Env      *env.Reader
	Log      *slog.Logger
	Registry *prometheus.Registry
	// QPS and Burst bound the calls of each client, if set before Dial; 0 is client-go's default.
	QPS   float32
	Burst int

	// Config and Kube are there after Dial, Settings after Start.
	Config   *rest.Config
	Kube     kubernetes.Interface
	Settings *settings.Store

	level          *slog.LevelVar
	kubeconfig, ip string
}

// Ports of a component. They differ only where components share a process. Only controller and
// webhook have Health, for the kubelet's probes.
type Ports struct{ Metrics, Profiling, Health int }

// New reads the variables that all components have. Dial returns what is wrong with them, and with
// those that the component reads of Env before.
func New(name string, get func(string) string, stdout io.Writer) *Component {
	e := env.New(get)
	c := &Component{Name: name, Env: e, Registry: telemetry.NewRegistry(),
		Namespace:     e.Needed("SYSTEM_NAMESPACE", "Namespace of Ebb."),
		Pod:           e.Needed("POD_NAME", "Name of this pod."),
		ClusterDomain: clusterdomain.Read(e.Text("CLUSTER_DOMAIN", clusterdomain.Default, "Domain of the cluster, if /etc/resolv.conf does not name it.")),
		kubeconfig:    e.Text("KUBECONFIG", "", "Outside a pod, the file that says where the cluster is."),
		Ports: Ports{
			Metrics:   e.Port("EBB_METRICS_PORT", wire.PortMetrics, "Port of /metrics."),
			Profiling: e.Port("EBB_PPROF_PORT", wire.PortProfiling, "Port of /debug/pprof/."),
			Health:    e.Port("EBB_HEALTH_PORT", wire.PortComponentLive, "Port of the probes of controller and webhook."),
		},
	}
	if ip := e.IP("EBB_LISTEN_IP", "The only address to listen on; all of them if not set."); ip.IsValid() {
		c.ip = ip.String()
	}
	c.Log, c.level = telemetry.NewLogger(stdout, name)
	return c
}

// Address is where to listen on a port.
func (c *Component) Address(port int) string { return net.JoinHostPort(c.ip, strconv.Itoa(port)) }

// Autoscaler is the host and port that stats go to.
func (c *Component) Autoscaler() string {
	// The dot at the end spares the resolver its search list: one look-up instead of four or five.
	service := fmt.Sprintf("autoscaler.%s.svc.%s.:%d", c.Namespace, c.ClusterDomain, wire.PortStats)
	return c.Env.Text("EBB_AUTOSCALER", service, "Host and port that activator and courier send stats to, instead of the autoscaler's Service.")
}

// Dial makes the clients.
func (c *Component) Dial() error {
	if err := c.Env.Err(); err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if c.kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	}
	if err != nil {
		return fmt.Errorf("read the cluster's access: %w", err)
	}
	rewatch.Soon(config)
	config.QPS, config.Burst = c.QPS, c.Burst
	c.Config = config
	if c.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("build client: %w", err)
	}
	return nil
}

// Start makes the clients and reads the settings, which it follows until ctx ends.
func (c *Component) Start(ctx context.Context) error {
	if err := c.Dial(); err != nil {
		return err
	}
	c.Settings = settings.NewStore(nil)
	return settings.Watch(ctx, c.Kube, c.Namespace, c.Settings, c.Log)
}

// Secret follows a Secret of the namespace of Ebb until ctx ends.
func (c *Component) Secret(ctx context.Context, name string) (*secretvalue.Value, error) {
	return secretvalue.Watch(ctx, c.Kube, c.Namespace, name)
}

// Keys follows the keys that components sign messages with, until ctx ends.
func (c *Component) Keys(ctx context.Context) (func() wire.Keys, error) {
	secret, err := c.Secret(ctx, wire.TokenSecret)
	return func() wire.Keys { return wire.KeysOf(secret.Load()) }, err
}

// Metrics is the part that shows Registry.
func (c *Component) Metrics() run.Part {
	return telemetry.MetricsServer(c.Address(c.Ports.Metrics), c.Registry)
}

// Run runs the parts of a component that has started, after those that all components have.
func (c *Component) Run(ctx context.Context, parts ...run.Part) error {
	profiling := func() bool { return c.Settings.Load().Observability.RuntimeProfiling }
	return run.All(ctx, append([]run.Part{
		{Name: "log level", Run: c.Settings.FollowLevel(c.Name, c.level)},
		telemetry.Server("profiles", c.Address(c.Ports.Profiling), telemetry.Profiles(profiling)),
		c.Metrics(),
		telemetry.Exporter(c.Name, c.Namespace, c.Pod, c.Registry, c.Log, c.Settings.MetricsExport),
	}, parts...)...)
}
