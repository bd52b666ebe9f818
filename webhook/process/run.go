// Package process is the webhook as one process, or as a part of one.
//
// Owns: its environment, its ports, and the order in which its parts start; they stop the other
// way round, admission first. Reads: the environment. Writes: nothing. Never: decides about an
// object.
package process

import (
	"context"
	"fmt"
	"io"
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"ebb.dev/ebb/internal/component"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/version"
	"ebb.dev/ebb/webhook/internal/admit"
	"ebb.dev/ebb/webhook/internal/certs"
)

// Run is the webhook until ctx is done. env is its environment.
func Run(ctx context.Context, env func(string) string, stdout io.Writer) error {
	c := component.New("webhook", env, stdout)
	service := c.Env.Text("WEBHOOK_NAME", "webhook", "Name of the Service that leads to the webhook.")
	port := c.Env.Port("WEBHOOK_PORT", 8443, "Port for the API server.")
	if err := c.Start(ctx); err != nil {
		return err
	}
	// Dry runs have a client of their own, so that many of them do not delay the rest, such as
	// renewing the certificate.
	config := rest.CopyConfig(c.Config)
	config.QPS, config.Burst = 50, 100
	dry, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("build client of dry runs: %w", err)
	}
	rotator := certs.New(c.Kube, c.Namespace, service, c.Log)
	c.Registry.MustRegister(telemetry.CertificateEnds(rotator.Ends))
	admission := admit.New(admit.Options{
		Rules: func() *admit.Rules {
			rules := c.Settings.Load().Rules()
			rules.ClusterDomain = c.ClusterDomain
			return rules
		},
		DryRun:  admit.PodDryRun(dry),
		Metrics: admit.NewMetrics(c.Registry),
		Log:     c.Log,
	})
	probes := http.NewServeMux()
	probes.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	probes.Handle("/readiness", readiness(ctx, rotator))
	c.Log.Info("webhook is built", "version", version.Version, "namespace", c.Namespace, "service", service, "port", port, "clusterDomain", c.ClusterDomain)
	return c.Run(ctx,
		telemetry.Server("probes", c.Address(c.Ports.Health), probes),
		run.Part{Name: "certificates", Run: rotator.Run},
		run.Part{Name: "admission", Run: serve(c.Address(port), rotator, admission)}, // last, so that it stops first
	)
}
