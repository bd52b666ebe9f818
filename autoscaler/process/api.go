package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"ebb.dev/ebb/api/view/v1alpha1"
	"ebb.dev/ebb/internal/servingcert"
	"ebb.dev/ebb/internal/telemetry"
)

// Names in config/core/autoscaler.yaml.
const (
	viewService = "autoscaler-view"
	viewSecret  = "autoscaler-view-certs"
	viewAPI     = "/apis/apiregistration.k8s.io/v1/apiservices/" + v1alpha1.Version + "." + v1alpha1.Group
)

// Bounds of connections to the API: open ones of API servers, which send many requests over one,
// and of those that have not shown yet that they are that; and handshakes of one address in a
// second.
const (
	maxViewConnections = 256
	maxViewStrangers   = 128
	maxViewHandshakes  = 50
)

// viewCertificate keeps the certificate of the API, and the authority in its APIService.
func viewCertificate(kube kubernetes.Interface, namespace string, log *slog.Logger) *servingcert.Rotator {
	return servingcert.New(servingcert.Options{Client: kube, Namespace: namespace, Service: viewService, Secret: viewSecret, Log: log, Now: time.Now,
		Register: func(ctx context.Context, bundle []byte) error { return registerView(ctx, kube, bundle) }})
}

// registerView has API servers trust the authorities in a bundle.
func registerView(ctx context.Context, kube kubernetes.Interface, bundle []byte) error {
	type spec struct {
		CABundle []byte `json:"caBundle"`
	}
	var found struct {
		Spec spec `json:"spec"`
	}
	client := kube.Discovery().RESTClient()
	text, err := client.Get().AbsPath(viewAPI).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		return fmt.Errorf("read the APIService of %s: %w", v1alpha1.Group, err)
	}
	if bytes.Equal(found.Spec.CABundle, bundle) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": spec{bundle}})
	if err == nil {
		err = client.Patch(types.MergePatchType).AbsPath(viewAPI).Body(patch).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("name the authority in the APIService of %s: %w", v1alpha1.Group, err)
	}
	return nil
}

// viewServer answers API servers over TLS.
type viewServer struct {
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// verify refuses who is not an API server, in the handshake. No network policy can tell them
	// from any pod, and a cluster whose API servers are kept out cannot delete its namespaces.
	verify  func(tls.ConnectionState) error
	handler http.Handler
}

func (v *viewServer) listen(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var config net.ListenConfig
		listener, err := config.Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("listen for the API server: %w", err)
		}
		return v.serve(ctx, listener)
	}
}

func (v *viewServer) serve(ctx context.Context, on net.Listener) error {
	listener := telemetry.NewProving(on, maxViewStrangers, maxViewConnections, maxViewHandshakes)
	return telemetry.Serve(ctx, tls.NewListener(listener, &tls.Config{
		MinVersion:       tls.VersionTLS12,
		NextProtos:       []string{"h2", "http/1.1"},
		GetCertificate:   v.certificate,
		ClientAuth:       tls.RequireAnyClientCert,
		VerifyConnection: v.verify,
	}), v.handler, func(server *http.Server) {
		server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // of handshakes, which strangers fail as often as they like
		server.ConnState = func(c net.Conn, state http.ConnState) {
			if state == http.StateActive { // a request came, so the handshake succeeded
				listener.Proven(c)
			}
		}
	})
}
