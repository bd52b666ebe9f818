package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"ebb.dev/ebb/dev/ctl/internal/image"
	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// The implementations of the Gateway API that `make up GATEWAY=...` installs.
const (
	istio        = "istio"
	envoyGateway = "envoy-gateway"
)

var titles = map[string]string{istio: "Istio", envoyGateway: "Envoy Gateway"}

var implementations = map[string]install.Implementation{
	istio:        {Namespace: "istio-system", Deployment: "istiod", Classes: []string{"istio", "istio-remote"}},
	envoyGateway: {Namespace: "envoy-gateway-system", Deployment: "envoy-gateway", Classes: []string{"envoy-gateway"}},
}

// gatewayRecipes are the images of the implementation, and of the Envoys that it starts.
func gatewayRecipes(p *parts) []recipe {
	envoy := filepath.Join(p.envoy, "envoy/_bin/envoy")
	if p.gateway == envoyGateway {
		return []recipe{
			program("dev.local/envoy-gateway/gateway", p.programs["gateway"], p.programs["gateway"], "/usr/local/bin/envoy-gateway", image.Settings{}),
			linked("dev.local/envoy-gateway/proxy", p.libc, envoy, "/usr/local/bin/envoy", image.Settings{}),
		}
	}
	pilot := p.programs["istio"]
	return []recipe{
		program("dev.local/istio/pilot", pilot, pilot, "/usr/local/bin/pilot-discovery", image.Settings{User: "1337:1337"}),
		linked("dev.local/istio/proxy", p.libc, envoy, "/usr/local/bin/envoy",
			image.Settings{Entrypoint: []string{"/usr/local/bin/pilot-agent"}, User: "1337:1337"},
			image.Entry{Path: "/usr/local/bin/pilot-agent", From: pilot, Mode: 0o755},
			image.Entry{Path: "/var/lib/istio/envoy/envoy_bootstrap_tmpl.json", From: filepath.Join(p.implementation, "tools/packaging/common/envoy_bootstrap.json"), Mode: 0o644},
			image.Entry{Path: "/etc/istio/proxy", Dir: true, Mode: 0o777},
			image.Entry{Path: "/var/lib/istio/data", Dir: true, Mode: 0o777}),
	}
}

// gateways installs the implementation that is wanted, in place of another one.
func (c *control) gateways(ctx context.Context, p *parts) (err error) {
	for name := range implementations {
		if name != p.gateway {
			if err := c.withoutGateways(ctx, name); err != nil {
				return err
			}
		}
	}
	var manifests []byte
	if p.gateway == envoyGateway {
		manifests, err = install.EnvoyGatewayManifests(ctx, p.helm, p.implementation, p.refs["dev.local/envoy-gateway/gateway"], p.refs["dev.local/envoy-gateway/proxy"])
	} else {
		manifests, err = install.IstioManifests(ctx, p.programs["istio/chart"], p.implementation, p.refs["dev.local/istio/pilot"], p.refs["dev.local/istio/proxy"])
	}
	if err != nil {
		return err
	}
	file := c.gatewayManifests(p.gateway)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, manifests, 0o644); err != nil {
		return err
	}
	return c.once(ctx, titles[p.gateway], string(manifests), func(ctx context.Context, _ *step.Report) error {
		return implementations[p.gateway].Install(ctx, c.kubectl(), manifests)
	})
}

// gatewayManifests is the file with all that was applied for an implementation.
func (c *control) gatewayManifests(name string) string { return c.In("applied", name+".yaml") }

// withoutGateways removes an implementation if it is there, and the Gateways of Ebb.
func (c *control) withoutGateways(ctx context.Context, name string) error {
	k, implementation, file := c.kubectl(), implementations[name], c.gatewayManifests(name)
	_ = os.Remove(c.applied(titles[name]))
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		there, err := k.Run(ctx, nil, "get", "namespace", implementation.Namespace, "--ignore-not-found", "-o", "name")
		if err == nil && len(there) > 0 {
			err = fmt.Errorf("nothing says what belongs to %s, which an older checkout has installed: run `make up GATEWAY=%s` once, then this again", titles[name], name)
		}
		return err
	}
	if err := c.steps.Do(ctx, "remove "+titles[name], func(ctx context.Context, _ *step.Report) error {
		return implementation.Remove(ctx, k, file)
	}); err != nil {
		return err
	}
	_ = os.Remove(c.applied("install Ebb")) // its Gateways are gone
	return os.Remove(file)
}
