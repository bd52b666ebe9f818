// Command dashboard serves a page that shows what Ebb does with Services, and why.
//
// Owns: nothing. Reads: what a page asks for, from the API server, with the token that the page
// shows. Writes: nothing. Never: has rights of its own.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"ebb.dev/ebb/dashboard/page"
	"ebb.dev/ebb/internal/env"
	"ebb.dev/ebb/internal/run"
	"ebb.dev/ebb/internal/telemetry"
)

func main() { telemetry.Main("dashboard", start) }

func start(ctx context.Context, get func(string) string, stdout io.Writer) error {
	o, err := readOptions(env.New(get))
	if err != nil {
		return err
	}
	log, _ := telemetry.NewLogger(stdout, "dashboard")
	registry := telemetry.NewRegistry()
	handler, err := page.New(page.Options{API: o.api, Transport: transport(o.authorities), Log: log, Registry: registry})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	log.Info("dashboard is built", "address", listener.Addr().String(), "apiServer", o.api.String())
	return run.All(ctx,
		telemetry.MetricsServer(o.metrics, registry),
		run.Part{Name: "page", Run: func(ctx context.Context) error { return page.Serve(ctx, listener, handler) }},
	)
}

// options are what the environment says.
type options struct {
	api             *url.URL
	authorities     *x509.CertPool
	listen, metrics string
}

func readOptions(e *env.Reader) (options, error) {
	inside := ""
	if host := e.Text("KUBERNETES_SERVICE_HOST", "", "Address of the API server's Service."); host != "" {
		inside = "https://" + net.JoinHostPort(host, e.Text("KUBERNETES_SERVICE_PORT", "", "Port of the API server's Service."))
	}
	o := options{
		listen:  e.Text("EBB_LISTEN", ":8080", "Address of the page."),
		metrics: e.Text("EBB_LISTEN_METRICS", ":9090", "Address of /metrics."),
	}
	address := e.Text("EBB_API_SERVER", inside, "URL of the API server, instead of its Service.")
	var err error
	if o.api, err = url.Parse(address); err != nil || o.api.Host == "" {
		return o, fmt.Errorf("environment EBB_API_SERVER is %q, and not the address of an API server, such as https://10.0.0.1:6443", address)
	}
	if file := e.Text("EBB_API_SERVER_CA", "", "File with the authorities of the API server's certificate."); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return o, fmt.Errorf("read EBB_API_SERVER_CA: %w", err)
		}
		o.authorities = x509.NewCertPool()
		if !o.authorities.AppendCertsFromPEM(text) {
			return o, fmt.Errorf("read EBB_API_SERVER_CA: %s has no certificate", file)
		}
	}
	return o, nil
}

// transport is the way to the API server. It has no credentials.
func transport(authorities *x509.CertPool) http.RoundTripper {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   5 * time.Second,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ResponseHeaderTimeout: 30 * time.Second,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
	}
}
