package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"ebb.dev/ebb/internal/servingcert"
	"ebb.dev/ebb/internal/telemetry"
)

type options struct {
	namespace, service string
	port               int
}

func readOptions(env func(string) string) (options, error) {
	o := options{namespace: env("SYSTEM_NAMESPACE"), service: env("WEBHOOK_NAME"), port: 8443}
	if o.namespace == "" {
		return o, fmt.Errorf("SYSTEM_NAMESPACE is not set: it is the namespace the webhook runs in")
	}
	if o.service == "" {
		o.service = "webhook"
	}
	if text := env("WEBHOOK_PORT"); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return o, fmt.Errorf("WEBHOOK_PORT is %q, want a port number", text)
		}
		o.port = int(port)
	}
	return o, nil
}

// readiness answers 200 once requests can be answered, and no longer when the process is to end.
func readiness(ctx context.Context, keeper *servingcert.Keeper) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case ctx.Err() != nil:
			http.Error(w, "shutting down", http.StatusServiceUnavailable)
		case !keeper.Ready():
			http.Error(w, "the certificate is not registered yet", http.StatusServiceUnavailable)
		}
	})
}

// Bounds of open connections. All are of API servers, which come from few addresses, or of nobody
// who has business here.
const (
	mostConnections      = 2048
	mostConnectionsOfOne = 1024
)

// goodbye is for how long a webhook that is to end still answers: until the API server's
// connections and the endpoints have moved to another replica.
const goodbye = 5 * time.Second

// serve answers the API server over TLS.
func serve(address string, keeper *servingcert.Keeper, handler http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("listen for the API server: %w", err)
		}
		secured := tls.NewListener(telemetry.Bound(listener, mostConnections, mostConnectionsOfOne), &tls.Config{
			MinVersion:     tls.VersionTLS13,
			NextProtos:     []string{"http/1.1"},
			GetCertificate: keeper.Certificate,
		})
		late, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		release := context.AfterFunc(ctx, func() { time.AfterFunc(goodbye, stop) })
		defer release()
		return telemetry.Serve(late, secured, handler)
	}
}
