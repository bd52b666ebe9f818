package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"ebb.dev/ebb/internal/egress"
	"ebb.dev/ebb/settings"
)

// maxConnections bounds the connections to the gateway for one host.
const maxConnections = 4096

// client sends the requests of calls to the gateway. The Host of a request names the service. It is
// never looked up: what DNS says of a name in a tenant's namespace, the tenant decides.
func client(gateway func() (string, error), allowed egress.Rule) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second, ControlContext: allowed.Control}
	return &http.Client{
		// A service that redirects has answered.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				address, err := gateway()
				if err != nil {
					return nil, err
				}
				return dialer.DialContext(ctx, network, address)
			},
			MaxIdleConns: maxConnections, MaxIdleConnsPerHost: 256, MaxConnsPerHost: maxConnections, IdleConnTimeout: time.Minute,
			DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

// toGateway returns the client for calls. Outside a cluster fixed is the gateway, host:port.
func toGateway(fixed string, s *settings.Store, clusterDomain string) *http.Client {
	if fixed != "" {
		return client(func() (string, error) { return fixed, nil }, func(context.Context, netip.Addr) error { return nil })
	}
	return client(func() (string, error) { return localGateway(s.Load().Gateway, clusterDomain) }, egress.NotLocal)
}

// localGateway returns host:port of the Service in front of the first local Gateway, to which
// names of services inside the cluster lead.
func localGateway(g settings.Gateway, clusterDomain string) (string, error) {
	if len(g.Local) == 0 {
		return "", errors.New("config-gateway names no local gateway: set local-gateways")
	}
	first := g.Local[0]
	return fmt.Sprintf("%s.%s.svc.%s.:80", first.ServiceName(), first.ServiceNamespace(), clusterDomain), nil
}
