package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/build"
	"ebb.dev/ebb/dev/ctl/internal/fetch"
	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/preflight"
	"ebb.dev/ebb/dev/ctl/internal/process"
	"ebb.dev/ebb/dev/ctl/internal/shares"
	"ebb.dev/ebb/dev/ctl/internal/step"
	"ebb.dev/ebb/dev/ctl/internal/swap"
	"ebb.dev/ebb/dev/ctl/internal/sweep"
)

// debian lists the packages that `up` installs when one of the tools is missing.
var debian = []string{
	"containerd", "runc", "containernetworking-plugins", "iptables", "nftables", "conntrack", "socat",
	"iproute2", "util-linux", "kmod", "python3", "python3-pip", "ca-certificates",
}

// tools are the programs that those packages bring and the cluster needs.
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
	"nsenter":                 "util-linux",
	"unshare":                 "util-linux",
	"modprobe":                "kmod",
	"python3":                 "python3",
	"pip3":                    "python3-pip",
	"/usr/lib/cni/bridge":     "containernetworking-plugins",
}

// up is the whole of `make up`: a list of steps, each of which finds out by itself whether there is
// anything to do. Long builds and downloads go on in the background while other steps run.
func (c *control) up(ctx context.Context, parts *parts) (err error) {
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
	ctx, cancel := context.WithCancel(ctx)
	defer c.background.Wait()
	defer cancel()
	building, err := c.preflight(ctx, parts)
	if err != nil {
		// A refusal leaves nothing behind; a folder that is in use is not removed by this.
		_ = os.Remove(c.Pids())
		_ = os.Remove(c.Run)
		return err
	}
	if err := c.programs(ctx, building, parts); err != nil {
		return err
	}
	compiling := c.begin(ctx, func(ctx context.Context, t *task) (err error) {
		if parts.bare {
			return nil
		}
		names, err := c.images()
		if err != nil {
			return err
		}
		parts.ebb, err = c.compile(ctx, t.progress, build.Target{}, c.In("bin", "ebb"), append(slices.Collect(maps.Keys(names)), plugin))
		return err
	})
	if err := c.start(ctx, parts); err != nil {
		return err
	}
	if err := c.platform(ctx, parts); err != nil {
		return err
	}
	if parts.bare {
		return c.withoutEbb(ctx)
	}
	if parts.knative {
		return c.knative(ctx, compiling, parts)
	}
	if err := c.withoutKnative(ctx); err != nil {
		return err
	}
	return c.ebb(ctx, compiling, parts)
}

// parts are what the steps hand to one another.
type parts struct {
	all                     bool              // with the metrics server and cert-manager
	monitoring              bool              // with Prometheus
	bare                    bool              // without Ebb
	knative                 bool              // with Knative in place of Ebb
	shipped                 bool              // Knative with the CPU requests that it ships
	edge                    bool              // with Ebb in one process
	nodes                   int               // how many, 0 if it stays as it is
	kubernetes              string            // the version, if not that of dev/go.mod
	gateway                 string            // the implementation of the Gateway API
	programs                map[string]string // binaries, by their folder in dev/
	foreign                 map[string]string // binaries of Knative, by their names
	pause, helm             string            // binaries
	ebb                     map[string]string // binaries of Ebb, samples and test images, by their folder
	libc, envoy, prom       string            // unpacked packages
	trees                   map[string]string // unpacked packages below a sample, by its name
	gatewayAPI, certManager string            // folders of modules
	implementation          string            // the folder of that of p.gateway
	refs                    map[string]string // images of the platform
}

// preflight refuses before anything is changed, says how long the rest takes, begins the build, and
// installs Debian packages if some are missing.
func (c *control) preflight(ctx context.Context, p *parts) (*task, error) {
	if err := c.machine.Check(preflight.Needs{Root: c.Root, Tools: map[string]string{
		"go":       "install Go 1.26 and have its bin folder on the PATH",
		"apt-get":  "this machine is not a Debian, and the cluster takes containerd, runc and the rest from Debian packages",
		"dpkg-deb": "install the Debian package dpkg",
	}}); err != nil {
		return nil, err
	}
	if err := errors.Join(c.sameKubernetes(p), c.sameNodes(p)); err != nil {
		return nil, err
	}
	forecast, err := c.forecast(ctx, p)
	if err != nil {
		return nil, err
	}
	c.steps.Say("%s", forecast)
	if err := c.machine.Check(preflight.Needs{Dirs: forecast.disk, Kept: map[string]uint64{c.Dev: kube.KeptFree}}); err != nil {
		return nil, err
	}
	missing := map[string]string{}
	for tool, pkg := range tools {
		if c.machine.Look(tool) != nil {
			missing[tool] = "apt-get install " + pkg
		}
	}
	if err := c.Places.Make(); err != nil {
		return nil, err
	}
	building := c.beginBuild(ctx, p)
	if len(missing) > 0 {
		err := c.steps.Do(ctx, "Debian packages", func(ctx context.Context, r *step.Report) error {
			r.Note("installed containerd, runc, CNI plugins, nftables and others")
			return fetch.Install(ctx, c.Log("apt"), debian)
		})
		if err != nil {
			return nil, err
		}
	}
	if err := c.machine.Check(preflight.Needs{Tools: missing}); err != nil {
		return nil, err
	}
	if err := c.leftovers(ctx); err != nil {
		return nil, err
	}
	if err := c.choosePlan(ctx, p.nodes); err != nil {
		return nil, err
	}
	var ports []netip.AddrPort
	for program, list := range c.cluster().Ports() {
		if !c.table.Running(program) {
			ports = append(ports, list...)
		}
	}
	return building, c.machine.Check(preflight.Needs{Ports: ports})
}

// leftovers removes what the cluster of another checkout left behind when it ended without
// `make down`, for example in a reboot.
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

// start brings up the nodes and their control plane, from the bridge to Ready kubelets. If a first
// node does not come up, start stops what it has started.
func (c *control) start(ctx context.Context, p *parts) (err error) {
	fresh, stale := true, false
	for _, n := range c.cluster().Nodes() {
		kubelet, containerd := c.table.Running(n.Kubelet().Name), c.table.Running(n.Containerd().Name)
		fresh = fresh && !kubelet
		stale = stale || !kubelet || !containerd
	}
	defer func() {
		if err != nil && fresh {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
			defer cancel()
			err = errors.Join(err, c.takeDown(clean))
		}
	}()
	err = c.steps.Do(ctx, "bridge, certificates and configuration", func(ctx context.Context, r *step.Report) error {
		r.Note("%s, machine %s, pods %s, services %s", nodesOf(p.nodes), c.plan.Machine(), c.plan.Pods, c.plan.Services)
		if err := os.WriteFile(c.Owner(), []byte(c.Root+"\n"), 0o644); err != nil {
			return err
		}
		if err := c.rememberKubernetes(p); err != nil {
			return err
		}
		if err := c.plan.Up(ctx, c.settingsBefore()); err != nil {
			return err
		}
		for _, n := range c.cluster().Nodes() {
			if err := c.room(ctx, n); err != nil {
				return err
			}
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
	// kube-proxy waits for the node that the kubelet registers. The machine has one in any case.
	containerds, last := []process.Program{}, []process.Program{cluster.Proxy()}
	for _, n := range cluster.Nodes() {
		containerds, last = append(containerds, n.Containerd()), append(last, n.Kubelet())
		if n.Name != "" {
			last = append(last, n.Proxy())
		}
	}
	groups := []struct {
		title    string
		programs []process.Program
	}{
		{"containerd", containerds},
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
	if err := c.run(ctx, "kubelet and kube-proxy", last...); err != nil {
		return err
	}
	if err := c.share(ctx); err != nil {
		return err
	}
	if err := c.steps.Do(ctx, "swap in compressed memory", func(ctx context.Context, r *step.Report) error {
		device, err := swap.On(ctx, c.zram())
		if err != nil {
			device = fmt.Sprintf("none, so pods that sleep are not compressed: %v", err)
		}
		r.Note("%s", device)
		return nil
	}); err != nil {
		return err
	}
	title := "node " + kube.NodeName + " is Ready"
	if p.nodes > 1 {
		title = "the nodes are Ready"
	}
	return c.steps.Do(ctx, title, func(ctx context.Context, _ *step.Report) error {
		for _, n := range cluster.Nodes() {
			if err := c.nodeReady(ctx, n, 60*time.Second); err != nil {
				return err
			}
		}
		if !stale {
			return nil
		}
		return c.believed(ctx, 2*time.Minute)
	})
}

// run starts the programs of a group at the same time, those that do not run yet.
func (c *control) run(ctx context.Context, title string, programs ...process.Program) error {
	return c.steps.Do(ctx, title, func(ctx context.Context, r *step.Report) error {
		type result struct {
			name    string
			started bool
			err     error
		}
		results := make(chan result, len(programs))
		for _, p := range programs {
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

// share keeps pods, and other programs on the machine, from starving the programs that start and
// stop pods. Without the CPU control group the cluster works too, only slower under load.
func (c *control) share(ctx context.Context) error {
	return c.steps.Do(ctx, "CPU shares", func(_ context.Context, r *step.Report) error {
		var node []int
		control := c.table.PIDs("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
		if c.plan.Nodes < 2 {
			node = append(c.table.PIDs("containerd", "kubelet", "kube-proxy"), sweep.Shims(c.Socket())...)
		} else { // each of several nodes has a share of its own
			control = append(control, c.table.PIDs("kube-proxy")...)
		}
		err := errors.Join(shares.Give("/sys/fs/cgroup", shares.Node, node), shares.Give("/sys/fs/cgroup", shares.Control, control))
		if err != nil {
			r.Note("not set: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		return nil
	})
}

// nodeReady waits for the node. `kubectl wait` alone fails at once while there is no node.
func (c *control) nodeReady(ctx context.Context, n kube.Node, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		_, err := c.kubectl().Run(ctx, nil, "wait", "--for=condition=Ready", "node/"+n.Hostname(), "--timeout=10s")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the kubelet's log is %s", err, n.Kubelet().Log)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
