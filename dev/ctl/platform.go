package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/image"
	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/process"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

func (c *control) pauseRecipe(p *parts) recipe {
	return program("dev.local/dev/pause", p.pause, p.pause, "/pause", image.Settings{})
}

// platformImages loads the images of everything but Ebb.
func (c *control) platformImages(ctx context.Context, r *step.Report, p *parts) error {
	s, err := c.shelf(ctx)
	if err != nil {
		return err
	}
	recipes := append(gatewayRecipes(p),
		c.pauseRecipe(p),
		program("dev.local/dev/dns", p.programs["dns"], p.programs["dns"], "/coredns", image.Settings{}))
	if p.all {
		recipes = append(recipes,
			program("dev.local/dev/metrics", p.programs["metrics"], p.programs["metrics"], "/metrics-server", image.Settings{}),
			program("dev.local/dev/certmanager", p.programs["certmanager"], p.programs["certmanager"], "/certmanager", image.Settings{}))
	}
	if p.monitoring {
		recipes = append(recipes,
			linked("dev.local/dev/prometheus", p.libc, filepath.Join(p.prom, "usr/bin/prometheus"), "/usr/bin/prometheus", image.Settings{}),
			program("dev.local/dev/targets", p.programs["targets"], p.programs["targets"], "/targets", image.Settings{}))
	}
	var fresh int
	p.refs, fresh, err = s.load(ctx, recipes)
	r.Note("%d new", fresh)
	return err
}

func (c *control) shelf(ctx context.Context) (*shelf, error) {
	var sockets []string
	for _, n := range c.cluster().Nodes() {
		sockets = append(sockets, n.Own.Socket())
	}
	return openShelf(ctx, c.In("images.json"), c.In("images", "new.tar"), sockets...)
}

// applied is the file that remembers what a step has applied.
func (c *control) applied(title string) string {
	return c.In("applied", strings.ReplaceAll(strings.ToLower(title), " ", "-"))
}

// once repeats a step only if what the step depends on has changed since it last succeeded on this
// cluster.
func (c *control) once(ctx context.Context, title, key string, f func(context.Context, *step.Report) error) error {
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(key)))
	file := c.applied(title)
	return c.steps.Do(ctx, title, func(ctx context.Context, r *step.Report) error {
		if done, err := os.ReadFile(file); err == nil && string(done) == digest {
			r.Note("unchanged")
			return nil
		}
		if err := f(ctx, r); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		return os.WriteFile(file, []byte(digest), 0o644)
	})
}

// platform installs load balancer addresses, the Gateway API, DNS and the gateway, with
// parts.monitoring Prometheus, and with parts.all the metrics server and cert-manager.
func (c *control) platform(ctx context.Context, p *parts) error {
	k := c.kubectl()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	version, err := fileDigest(self)
	if err != nil {
		return err
	}
	if err := c.run(ctx, "load balancer addresses", process.Program{
		Name: "addresses", Salt: version, Path: self, Args: []string{"addresses"}, Log: c.Log("addresses"), Dir: c.Root,
	}); err != nil {
		return err
	}
	if err := c.once(ctx, "Gateway API", p.gatewayAPI, func(ctx context.Context, _ *step.Report) error {
		return install.GatewayAPI(ctx, k, p.gatewayAPI)
	}); err != nil {
		return err
	}
	dns, err := install.DNSManifests(p.refs["dev.local/dev/dns"], c.plan.DNS())
	if err != nil {
		return err
	}
	if err := c.once(ctx, "DNS", string(dns), func(ctx context.Context, _ *step.Report) error {
		if _, err := k.Apply(ctx, dns); err != nil {
			return err
		}
		// Gateways look for what configures them by name.
		return k.Rollout(ctx, "kube-system", "deployment/coredns", time.Minute)
	}); err != nil {
		return err
	}
	if err := c.gateways(ctx, p); err != nil {
		return err
	}
	if p.monitoring {
		if err := c.prometheus(ctx, p); err != nil {
			return err
		}
	}
	if !p.all {
		return nil
	}
	metrics, err := install.MetricsManifests(p.refs["dev.local/dev/metrics"])
	if err != nil {
		return err
	}
	if err := c.once(ctx, "metrics server", string(metrics), func(ctx context.Context, _ *step.Report) error {
		// No step waits for it: it answers after it has asked the kubelet twice.
		_, err := k.Apply(ctx, metrics)
		return err
	}); err != nil {
		return err
	}
	return c.certManager(ctx, p)
}

// prometheus installs Prometheus with the configuration, rules and alerts of config/monitoring.
func (c *control) prometheus(ctx context.Context, p *parts) error {
	folder := filepath.Join(c.Root, "config/monitoring/prometheus")
	manifests, err := install.PrometheusManifests(folder, p.refs["dev.local/dev/prometheus"], p.refs["dev.local/dev/targets"])
	if err != nil {
		return err
	}
	return c.once(ctx, "Prometheus", string(manifests), func(ctx context.Context, r *step.Report) error {
		r.Note("kubectl -n monitoring port-forward service/prometheus 9090")
		_, err := c.kubectl().Apply(ctx, manifests) // no step waits for it
		return err
	})
}

// certManager installs cert-manager with the issuers that Ebb's settings name.
func (c *control) certManager(ctx context.Context, p *parts) error {
	manifests, err := install.CertManagerManifests(p.refs["dev.local/dev/certmanager"])
	if err != nil {
		return err
	}
	issuers := filepath.Join(c.Root, "config/certmanager")
	text, err := os.ReadFile(filepath.Join(issuers, "issuers.yaml"))
	if err != nil {
		return err
	}
	return c.once(ctx, "cert-manager", p.certManager+string(manifests)+string(text), func(ctx context.Context, _ *step.Report) error {
		return install.CertManager(ctx, c.kubectl(), p.certManager, manifests, issuers)
	})
}
