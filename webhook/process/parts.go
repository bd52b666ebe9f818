package process

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"ebb.dev/ebb/internal/servingcert"
	"ebb.dev/ebb/internal/telemetry"
)

// readiness answers 200 once requests can be answered, and no longer when the process is to end.
func readiness(ctx context.Context, rotator *servingcert.Rotator) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch {
		case ctx.Err() != nil:
			http.Error(w, "shutting down", http.StatusServiceUnavailable)
		case !rotator.Ready():
			http.Error(w, "the certificate is not registered yet", http.StatusServiceUnavailable)
		}
	})
}

// Bounds of open connections. All are of API servers, which come from few addresses, or of nobody
// who has business here.
const (
	maxConnections      = 2048
	maxConnectionsOfOne = 1024
)

// goodbye is for how long a webhook that is to end still answers: until the API server's
// connections and the endpoints have moved to another replica.
const goodbye = 5 * time.Second

// serve answers the API server over TLS.
func serve(address string, rotator *servingcert.Rotator, handler http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("listen for the API server: %w", err)
		}
		secured := tls.NewListener(telemetry.Bound(listener, maxConnections, maxConnectionsOfOne), &tls.Config{
			MinVersion:     tls.VersionTLS13,
			NextProtos:     []string{"http/1.1"},
			GetCertificate: rotator.Certificate,
		})
		late, stop := context.WithCancel(context.WithoutCancel(ctx))
		defer stop()
		release := context.AfterFunc(ctx, func() { time.AfterFunc(goodbye, stop) })
		defer release()
		return telemetry.Serve(late, secured, handler)
	}
}
