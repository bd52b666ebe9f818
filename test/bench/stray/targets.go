package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os/exec"
	"path/filepath"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/internal/envoy"
	"ebb.dev/ebb/wire"
)

// target is a proxy in front of the program.
type target struct {
	name, address string
	stop          func()
}

type tools struct{ queueProxy, envoy string }

// build builds queue-proxy as it is shipped, and installs Envoy if it is missing.
func build(ctx context.Context, dir string) (t tools, err error) {
	t.queueProxy = filepath.Join(dir, "queue-proxy")
	if err := process.Build(ctx, dir, "queue-proxy"); err != nil {
		return t, err
	}
	t.envoy, err = envoy.Find(ctx)
	return t, err
}

// startAll starts all proxies in front of the program.
func startAll(ctx context.Context, dir string, tools tools, program string) (targets []*target, err error) {
	for _, start := range []func() (*target, error){
		func() (*target, error) { return startQueueProxy(ctx, tools.queueProxy, program) },
		func() (*target, error) { return startEnvoy(ctx, dir, tools.envoy, program) },
		func() (*target, error) { return startReverseProxy(program), nil },
	} {
		var t *target
		for range 3 { // another process may take a port
			if t, err = start(); err == nil {
				targets = append(targets, t)
				break
			}
		}
		if err != nil {
			return targets, err
		}
	}
	return targets, nil
}

func startQueueProxy(ctx context.Context, path, program string) (*target, error) {
	user, err := netip.ParseAddrPort(program)
	if err != nil {
		return nil, err
	}
	serving, _, err := reserve.Take() // until this program ends
	if err != nil {
		return nil, err
	}
	told := wire.Sidecar{
		Place:  wire.Place{Namespace: "bench", Service: "bench", Configuration: "bench", Revision: "bench-00001", Pod: "bench", PodIP: user.Addr()},
		Ports:  wire.Ports{Port: int(serving.Port()), UserPort: int(user.Port())},
		Limits: wire.Limits{Timeout: 300 * time.Second}, Secrets: wire.Secrets{Token: "bench"},
	}
	return launch(ctx, "queue_proxy", serving.String(), path, nil, told.Env()...)
}

func startEnvoy(ctx context.Context, dir, path, program string) (*target, error) {
	reserved, _, err := reserve.Take() // until this program ends
	if err != nil {
		return nil, err
	}
	address := reserved.String()
	arguments, err := envoy.Arguments(dir, envoy.Proxy{Listen: address, Upstream: program})
	if err != nil {
		return nil, err
	}
	return launch(ctx, "envoy", address, path, arguments)
}

// startReverseProxy starts the one of net/http, in this process.
func startReverseProxy(program string) *target {
	transport := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	proxy := httptest.NewUnstartedServer(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: program}) },
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0),
	})
	proxy.Config.ErrorLog = log.New(io.Discard, "", 0)
	proxy.Start()
	return &target{"reverse_proxy", proxy.Listener.Addr().String(), func() {
		proxy.CloseClientConnections()
		proxy.Close()
		transport.CloseIdleConnections()
	}}
}

// launch starts a process and waits until it listens.
func launch(ctx context.Context, name, address, path string, arguments []string, env ...string) (*target, error) {
	p, err := process.Start(exec.CommandContext(ctx, path, arguments...), env...)
	if err != nil {
		return nil, err
	}
	if err := p.AwaitListening(ctx, address); err != nil {
		p.Stop()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return &target{name, address, p.Stop}, nil
}
