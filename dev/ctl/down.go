package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/shares"
	"ebb.dev/ebb/dev/ctl/internal/step"
	"ebb.dev/ebb/dev/ctl/internal/swap"
	"ebb.dev/ebb/dev/ctl/internal/sweep"
)

func (c *control) down(ctx context.Context) error {
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
	_ = c.loadPlan() // without it, everything is killed in place of being stopped
	return c.takeDown(ctx)
}

// takeDown continues after a failure, to remove as much as it can.
func (c *control) takeDown(ctx context.Context) error {
	var errs []error
	do := func(title string, f func(context.Context, *step.Report) error) {
		errs = append(errs, c.steps.Do(ctx, title, f))
	}
	do("stop the kubelet", func(ctx context.Context, _ *step.Report) error {
		errs := []error{c.table.Stop(ctx, "addresses", 2*time.Second)}
		for _, name := range place.NodeNames {
			errs = append(errs, kube.GroupsOf(name).Freeze(false)) // what is frozen does not end
		}
		// The kubelet first: it would restart the pods that are stopped next.
		for _, name := range c.table.Names() {
			if name == "kubelet" || strings.HasPrefix(name, "kubelet-") {
				errs = append(errs, c.table.Stop(ctx, name, 2*time.Second))
			}
		}
		return errors.Join(errs...)
	})
	do("remove the pods", c.removePods)
	do("stop Kubernetes", func(ctx context.Context, _ *step.Report) error {
		var errs []error
		// Clients before servers; the grace period is short because the API server waits for open
		// watches.
		for _, name := range []string{"kube-proxy", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd", "containerd"} {
			errs = append(errs, c.table.Stop(ctx, name, 3*time.Second))
		}
		for _, name := range c.table.Names() {
			errs = append(errs, c.table.Stop(ctx, name, 3*time.Second))
		}
		return errors.Join(errs...)
	})
	do("remove mounts, control groups, swap and the bridge", func(ctx context.Context, r *step.Report) error {
		return c.sweep(ctx, r)
	})
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w\nsomething is left behind; run `make down` again once the cause is gone", err)
	}
	return nil
}

// removePods asks the container runtimes to remove all pods. sweep removes the rest.
func (c *control) removePods(ctx context.Context, r *step.Report) error {
	sandboxes := c.Bin("sandboxes")
	if _, err := os.Stat(sandboxes); err != nil {
		return nil // no pod was ever started
	}
	nodes := c.cluster().Nodes()
	said := make([]string, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { said[i] = c.removePodsOf(ctx, n, sandboxes) })
	}
	all.Wait()
	r.Note("%s", strings.Join(slices.DeleteFunc(said, func(s string) bool { return s == "" }), "; "))
	return nil
}

// removePodsOf starts a node's container runtime if it does not run and has left containers behind.
func (c *control) removePodsOf(ctx context.Context, n kube.Node, sandboxes string) string {
	runtime := n.Containerd()
	if !c.table.Running(runtime.Name) {
		if _, err := os.Stat(n.Own.In("conf", "containerd.toml")); err != nil {
			return ""
		}
		if left, _ := filepath.Glob(filepath.Join(n.Own.Run, "containerd", "io.containerd.runtime.v2.task", "k8s.io", "*")); len(left) == 0 {
			return ""
		}
		if _, err := c.table.Start(ctx, runtime); err != nil {
			return runtime.Name + " does not start, its pods are killed instead"
		}
	}
	out, _ := exec.CommandContext(ctx, sandboxes, n.Own.Socket()).CombinedOutput()
	return strings.ReplaceAll(strings.TrimSpace(string(out)), "\n", "; ")
}

// sweep removes what processes have left behind, of this checkout's cluster or of one that another
// checkout has left.
func (c *control) sweep(ctx context.Context, r *step.Report) error {
	killed, err := sweep.Containers(filepath.Join(c.Run, "containerd"), c.Socket())
	errs := []error{err}
	cgroups := append([]string{"kubepods"}, shares.Groups...)
	for _, name := range place.NodeNames {
		n, err := c.sweepNode(ctx, name)
		killed += n
		errs = append(errs, err)
		cgroups = append(cgroups, kube.GroupsOf(name).Name)
	}
	folders := []string{c.Run, c.Dev}
	if owner, err := os.ReadFile(c.Owner()); err == nil {
		if root := strings.TrimSpace(string(owner)); filepath.IsAbs(root) && root != c.Root {
			folders = append(folders, place.Places{Root: root, Dev: filepath.Join(root, ".dev")}.Dev)
		}
	}
	unmounted, err := sweep.Mounts(folders...)
	errs = append(errs, err, sweep.Cgroups(10*time.Second, cgroups...), network.Down(ctx, c.settingsBefore()), swap.Off(ctx, c.zram()))
	if killed > 0 {
		r.Note("killed %d processes that were left, unmounted %d", killed, unmounted)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// Only now: nothing is mounted in them any more.
	for _, dir := range []string{"etcd", "containerd", "kubelet", "cni", "conf", "pki", "applied", "overlay", "images"} {
		errs = append(errs, os.RemoveAll(c.In(dir)))
	}
	for _, name := range place.NodeNames {
		errs = append(errs, os.RemoveAll(c.Places.Node(name).Dev))
	}
	for _, file := range []string{"kubeconfig", "plan.json", "images.json", "kubernetes"} {
		if err := os.Remove(c.In(file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.Run))...)
}

// settingsBefore is the file with the machine's own kernel settings while a cluster is up. A reboot
// restores the settings, and removes the file with all of /run.
func (c *control) settingsBefore() string { return filepath.Join(c.Run, "settings-before.json") }

// zram is the file with the number of the cluster's swap device.
func (c *control) zram() string { return filepath.Join(c.Run, "zram") }
