package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/preflight"
	"ebb.dev/ebb/dev/ctl/internal/process"
	"ebb.dev/ebb/dev/ctl/internal/shares"
	"ebb.dev/ebb/dev/ctl/internal/step"
	"ebb.dev/ebb/dev/ctl/internal/sweep"
)

// debian is what `up` installs when one of the programs is missing.
var debian = []string{
	"containerd", "runc", "containernetworking-plugins", "iptables", "nftables", "conntrack", "socat",
	"iproute2", "kmod", "python3", "python3-pip", "ca-certificates",
}

// tools are the programs that those packages bring, and cannot be done without.
var tools = map[string]string{
	"containerd":              "containerd",
	"ctr":                     "containerd",
	"containerd-shim-runc-v2": "containerd",
	"runc":                    "runc",
	"nft":                     "nftables",
	"iptables":                "iptables",
	"conntrack":               "conntrack",
	"socat":                   "socat",
	"ip":                      "iproute2",
	"modprobe":                "kmod",
	"python3":                 "python3",
	"pip3":                    "python3-pip",
	"/usr/lib/cni/bridge":     "containernetworking-plugins",
}

const gib = 1 << 30

// up is the whole of `make up`: a list of steps, each of which finds out by
// itself whether there is anything to do.
func (c *control) up(ctx context.Context) (err error) {
	if err := c.machine.Root(); err != nil {
		return err
	}
	release, err := c.lock()
	if err != nil {
		return err
	}
	defer release()
	if err := c.owned(ctx); err != nil {
		return err
	}
	if err := c.preflight(ctx); err != nil {
		// A refusal leaves nothing; what holds something is not removed by this.
		_ = os.Remove(c.Pids())
		_ = os.Remove(c.Run)
		return err
	}
	parts := &parts{}
	if err := c.programs(ctx, parts); err != nil {
		return err
	}
	if err := c.start(ctx, parts); err != nil {
		return err
	}
	if err := c.platform(ctx, parts); err != nil {
		return err
	}
	return c.ebb(ctx, parts)
}

// parts are what the steps hand to one another.
type parts struct {
	kube, istio, chart, dns, metrics, certManager, pause string // binaries
	libc, python, envoy                                  string // unpacked packages
	gatewayAPI, istioModule, certManagerModule           string // module folders
	refs                                                 map[string]string
}

// preflight refuses before anything is changed, and installs Debian packages
// if some are missing.
func (c *control) preflight(ctx context.Context) error {
	if err := c.machine.Check(preflight.Needs{Root: c.Root, Dirs: c.space(), Tools: map[string]string{
		"go":       "install Go 1.26 and have its bin folder on the PATH",
		"apt-get":  "this machine is not a Debian, and the cluster takes containerd, runc and the rest from Debian packages",
		"dpkg-deb": "install the Debian package dpkg",
	}}); err != nil {
		return err
	}
	missing := map[string]string{}
	for tool, pkg := range tools {
		if c.machine.Look(tool) != nil {
			missing[tool] = "apt-get install " + pkg
		}
	}
	if err := c.Places.Make(); err != nil {
		return err
	}
	if len(missing) > 0 {
		err := c.steps.Do(ctx, "Debian packages", func(ctx context.Context, r *step.Report) error {
			r.Note("installing containerd, runc, CNI plugins, nftables and others")
			return fetch.Install(ctx, c.Log("apt"), debian)
		})
		if err != nil {
			return err
		}
	}
	if err := c.machine.Check(preflight.Needs{Tools: missing}); err != nil {
		return err
	}
	if err := c.leftovers(ctx); err != nil {
		return err
	}
	if err := c.choosePlan(ctx); err != nil {
		return err
	}
	var ports []netip.AddrPort
	for program, list := range c.cluster().Ports() {
		if !c.table.Running(program) {
			ports = append(ports, list...)
		}
	}
	return c.machine.Check(preflight.Needs{Ports: ports})
}

// space is how much room the cluster needs: more when all is still to be built.
func (c *control) space() map[string]uint64 {
	if built, _ := filepath.Glob(filepath.Join(c.Cache, "programs", "kube-*")); len(built) == 0 {
		return map[string]uint64{c.Dev: 4 * gib, c.Cache: 10 * gib}
	}
	return map[string]uint64{c.Dev: 3 * gib, c.Cache: 1 * gib}
}

// leftovers removes what a cluster of another checkout left when it ended
// without `make down`, for example by a reboot.
func (c *control) leftovers(ctx context.Context) error {
	owner, err := os.ReadFile(c.Owner())
	if err == nil && strings.TrimSpace(string(owner)) != c.Root {
		err := c.steps.Do(ctx, "remove what the cluster of "+strings.TrimSpace(string(owner))+" has left", c.sweep)
		if err != nil {
			return err
		}
		return c.Places.Make()
	}
	return nil
}

// programs builds and downloads what does not depend on Ebb's own code.
func (c *control) programs(ctx context.Context, p *parts) error {
	builds := []struct {
		title string
		into  *string
		build.Module
	}{
		{"pause", &p.pause, build.Module{Name: "pause", Dir: filepath.Join(c.Root, "dev/ctl/pause")}},
		{"Kubernetes " + kube.Version, &p.kube, build.Module{Name: "kube", Dir: filepath.Join(c.Root, "dev/kube"), LDFlags: kube.LDFlags}},
		{"CoreDNS", &p.dns, build.Module{Name: "dns", Dir: filepath.Join(c.Root, "dev/dns")}},
		{"the metrics server", &p.metrics, build.Module{Name: "metrics", Dir: filepath.Join(c.Root, "dev/metrics")}},
		{"Istio", &p.istio, build.Module{Name: "istio", Dir: filepath.Join(c.Root, "dev/istio")}},
		{"cert-manager", &p.certManager, build.Module{Name: "certmanager", Dir: filepath.Join(c.Root, "dev/certmanager")}},
		{"Istio's chart", &p.chart, build.Module{Name: "chart", Dir: filepath.Join(c.Root, "dev/istio"), Package: "./chart"}},
	}
	for _, b := range builds {
		err := c.steps.Do(ctx, "build "+b.title, func(ctx context.Context, r *step.Report) error {
			path, built, err := b.Cached(ctx, c.Cache, c.Log("build-"+b.Name), func(done, total int) { r.Progress(done, total, "packages") })
			if !built {
				r.Note("in the cache")
			}
			*b.into = path
			return err
		})
		if err != nil {
			return err
		}
	}
	err := c.steps.Do(ctx, "Envoy, the C library, Python and the Gateway API's kinds", func(ctx context.Context, r *step.Report) error {
		return c.downloads(ctx, p)
	})
	if err != nil {
		return err
	}
	return c.link(p)
}

// link puts the programs under the names they are called by.
func (c *control) link(p *parts) error {
	links := map[string]string{c.In("path", "kubectl"): p.kube}
	for _, name := range kube.Programs {
		links[c.Bin(name)] = p.kube
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

// start brings up one node, from the bridge to a Ready kubelet. What it has
// started of a cluster that then does not come up, it takes away again.
func (c *control) start(ctx context.Context, p *parts) (err error) {
	fresh := !c.table.Running("kubelet")
	stale := fresh || !c.table.Running("containerd")
	defer func() {
		if err != nil && fresh {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
			defer cancel()
			err = errors.Join(err, c.takeDown(clean))
		}
	}()
	err = c.steps.Do(ctx, "bridge, certificates and configuration", func(ctx context.Context, r *step.Report) error {
		r.Note("node %s, pods %s, services %s", c.plan.Node(), c.plan.Pods, c.plan.Services)
		if err := os.WriteFile(c.Owner(), []byte(c.Root+"\n"), 0o644); err != nil {
			return err
		}
		if err := c.plan.Up(ctx, c.settingsBefore()); err != nil {
			return err
		}
		folder, leaves := c.cluster().Certificates()
		if err := folder.Ensure(leaves); err != nil {
			return err
		}
		pause, err := c.pauseRecipe(p).make()
		if err != nil {
			return err
		}
		c.pauseRef = pause.Ref()
		return c.cluster().Write()
	})
	if err != nil {
		return err
	}
	cluster := c.cluster()
	groups := []struct {
		title    string
		programs []process.Program
	}{
		{"containerd", []process.Program{cluster.Containerd()}},
		{"etcd and the API server", []process.Program{cluster.Etcd(), cluster.APIServer()}},
		{"controller manager and scheduler", []process.Program{cluster.ControllerManager(), cluster.Scheduler()}},
	}
	for _, g := range groups {
		if err := c.run(ctx, g.title, g.programs...); err != nil {
			return err
		}
	}
	if err := c.steps.Do(ctx, "images of the platform", func(ctx context.Context, r *step.Report) error { return c.platformImages(ctx, r, p) }); err != nil {
		return err
	}
	// kube-proxy waits for the node that the kubelet registers.
	if err := c.run(ctx, "kubelet and kube-proxy", cluster.Kubelet(), cluster.Proxy()); err != nil {
		return err
	}
	if err := c.share(ctx); err != nil {
		return err
	}
	return c.steps.Do(ctx, "node "+kube.NodeName+" is Ready", func(ctx context.Context, _ *step.Report) error {
		if err := c.nodeReady(ctx, 60*time.Second); err != nil || !stale {
			return err
		}
		return c.believed(ctx, 2*time.Minute)
	})
}

// run makes a group of programs run, all at once.
func (c *control) run(ctx context.Context, title string, programs ...process.Program) error {
	return c.steps.Do(ctx, title, func(ctx context.Context, r *step.Report) error {
		type result struct {
			name    string
			started bool
			err     error
		}
		results := make(chan result, len(programs))
		for _, p := range programs {
			if p.Name == "containerd" && !c.table.Running("containerd") {
				_ = os.Remove(c.Socket()) // of one that was killed: it would look ready
			}
			go func() {
				started, err := c.table.Start(ctx, p)
				results <- result{p.Name, started, err}
			}()
		}
		var errs []error
		started := 0
		for range programs {
			res := <-results
			errs = append(errs, res.err)
			if res.started {
				started++
			}
		}
		if started == 0 {
			r.Note("running")
		} else {
			r.Note("started")
		}
		return errors.Join(errs...)
	})
}

// share keeps pods, and whatever else the machine does, from starving the programs that start and stop pods. Without control
// groups for processors the cluster works as well, only slower under load.
func (c *control) share(ctx context.Context) error {
	return c.steps.Do(ctx, "shares of the processors", func(_ context.Context, r *step.Report) error {
		node := append(c.table.PIDs("containerd", "kubelet", "kube-proxy"), sweep.Shims(c.Socket())...)
		control := c.table.PIDs("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
		err := errors.Join(shares.Give("/sys/fs/cgroup", shares.Node, node), shares.Give("/sys/fs/cgroup", shares.Control, control))
		if err != nil {
			r.Note("not set: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return nil
	})
}

// nodeReady waits for the node; `kubectl wait` fails at once while there is none.
func (c *control) nodeReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		_, err := c.kubectl().Run(ctx, nil, "wait", "--for=condition=Ready", "node/"+kube.NodeName, "--timeout=10s")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the kubelet's log is %s", err, c.Log("kubelet"))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// platform puts DNS, load balancer addresses, the Gateway API and Istio onto
// the node.
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
		// The gateways look for istiod by name.
		return k.Rollout(ctx, "kube-system", "coredns", time.Minute)
	}); err != nil {
		return err
	}
	manifests, err := install.IstioManifests(ctx, p.chart, p.refs["dev.local/istio/pilot"], p.refs["dev.local/istio/proxy"])
	if err != nil {
		return err
	}
	if err := c.once(ctx, "Istio", string(manifests), func(ctx context.Context, _ *step.Report) error {
		_, err := install.Istio(ctx, k, manifests)
		return err
	}); err != nil {
		return err
	}
	metrics, err := install.MetricsManifests(p.refs["dev.local/dev/metrics"])
	if err != nil {
		return err
	}
	if err := c.once(ctx, "metrics server", string(metrics), func(ctx context.Context, _ *step.Report) error {
		// Nothing waits for it: it answers once it has asked the kubelet twice.
		_, err := k.Apply(ctx, metrics)
		return err
	}); err != nil {
		return err
	}
	return c.certManager(ctx, p)
}

// certManager puts cert-manager onto the node, with the issuers that Ebb's settings name.
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
	return c.once(ctx, "cert-manager", p.certManagerModule+string(manifests)+string(text), func(ctx context.Context, _ *step.Report) error {
		return install.CertManager(ctx, c.kubectl(), p.certManagerModule, manifests, issuers)
	})
}
