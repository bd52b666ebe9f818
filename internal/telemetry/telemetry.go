// Package telemetry is how a component tells what it does: JSON logs with a level that can change
// while it runs, Prometheus metrics, profiles, and the small HTTP servers that these are read from.
//
// Owns: nothing beyond what its callers hold. queue-proxy does not use it: a Prometheus client
// would be a third of its memory.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/wire"
)

// Main runs a command until it is told to stop, and ends the process with its error. client-go logs
// as the command does.
func Main(name string, command func(ctx context.Context, env func(string) string, stdout io.Writer) error) {
	version.Answer()
	ctx, stop := run.SignalContext(context.Background())
	defer stop()
	log, _ := NewLogger(os.Stdout, name)
	klog.SetSlogLogger(log)
	if err := command(ctx, os.Getenv, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// NewLogger returns a logger that writes one JSON object a line to w, each with the component's
// name, and the level that decides what is written; it starts at info.
func NewLogger(w io.Writer, component string) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: level,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			switch a.Key {
			case slog.TimeKey:
				a.Key = "timestamp"
			case slog.LevelKey:
				a.Key = "severity"
			case slog.MessageKey:
				a.Key = "message"
			}
			return a
		},
	})
	return slog.New(handler).With("component", component), level
}

// NewRegistry returns a registry that already reports on the Go runtime and the process.
func NewRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "process_anonymous_memory_bytes",
			Help: "Resident memory that no file backs: what the process needs. The kernel can drop the rest.",
		}, anonymousMemory),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "ebb_build_info",
			Help:        "1, with the version of the component and of Go as labels.",
			ConstLabels: prometheus.Labels{"version": version.Version, "go_version": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	return registry
}

// anonymousMemory reads RssAnon of this process. It returns NaN where there is no /proc.
func anonymousMemory() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return math.NaN()
	}
	_, rest, _ := strings.Cut(string(status), "\nRssAnon:")
	var kib float64
	if _, err := fmt.Sscanf(rest, "%g kB", &kib); err != nil {
		return math.NaN()
	}
	return kib * 1024
}

// Metrics returns the handler of /metrics for registry, OpenMetrics with exemplars where the reader
// asks for it.
func Metrics(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: 4})
}

// MetricsServer returns a part that shows registry at /metrics.
func MetricsServer(address string, registry *prometheus.Registry) run.Part {
	mux := http.NewServeMux()
	mux.Handle(wire.PathMetrics, Metrics(registry))
	return Server("metrics", address, mux)
}

// Profiles returns the handlers of /debug/pprof/; they answer 404 while enabled says no.
func Profiles(enabled func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !enabled() {
			http.Error(w, "profiling is off: set runtime-profiling to enabled in config-observability", http.StatusNotFound)
			return
		}
		// A profile takes longer than the request may: the deadline for reading it would end it.
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		mux.ServeHTTP(w, r)
	})
}

// Bounds of a server that anybody in the cluster may connect to. A connection takes about 20 KiB,
// and its head at most MaxHeaderBytes more while it arrives. The bound of one address leaves room
// for all pods of a node, because some networks send them from the node's address.
const (
	maxConnections          = 16384
	maxConnectionsOfOne     = 256
	maxHead                 = 8 << 10
	requestMustArriveWithin = 10 * time.Second
)

// Server returns a part that serves handler on address until it is stopped, and then lets requests
// in flight finish for at most five seconds.
func Server(name, address string, handler http.Handler) run.Part {
	return run.Part{Name: name, Run: func(ctx context.Context) error {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		return Serve(ctx, Bound(listener, maxConnections, maxConnectionsOfOne), handler)
	}}
}

// Serve is what Server's part does, on a listener that is there already. Each of with may change
// the server before it starts.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, with ...func(*http.Server)) error {
	server := &http.Server{
		Handler:        handler,
		ReadTimeout:    requestMustArriveWithin, // the head and the body
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: maxHead,
	}
	for _, change := range with {
		change(server)
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
