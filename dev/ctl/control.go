package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/install"
	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/place"
	"ebb.dev/ebb/dev/ctl/internal/preflight"
	"ebb.dev/ebb/dev/ctl/internal/process"
	"ebb.dev/ebb/dev/ctl/internal/step"
)

// control is one run of ctl.
type control struct {
	place.Places
	steps    *step.List
	out      io.Writer
	table    process.Table
	machine  preflight.Machine
	plan     network.Plan
	pauseRef string

	background sync.WaitGroup // tasks
}

func newControl(p place.Places, steps *step.List, out io.Writer) *control {
	return &control{
		Places: p, steps: steps, out: out, table: process.Table{Dir: p.Pids()},
		machine: preflight.Machine{
			UID:       os.Geteuid,
			Look:      func(tool string) error { _, err := exec.LookPath(tool); return err },
			Disk:      preflight.DiskOf,
			Listeners: preflight.Listeners,
			Holder:    preflight.Holder,
		},
	}
}

func (c *control) cluster() kube.Cluster {
	return kube.Cluster{Places: c.Places, Plan: c.plan, Pause: c.pauseRef}
}

func (c *control) kubectl() install.Kubectl {
	return install.Kubectl{Path: c.Bin("kubectl"), Config: c.Kubeconfig()}
}

// lock keeps two runs, of this checkout or another, from working at the same time. The kernel
// releases it when this process ends, however it ends.
func (c *control) lock() (release func(), err error) {
	file, err := os.OpenFile(c.Run+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer file.Close()
		who, _ := io.ReadAll(io.LimitReader(file, 200))
		return nil, fmt.Errorf("another `make up` or `make down` is at work (%s): wait until it is done and run this again", strings.TrimSpace(string(who)))
	}
	_ = file.Truncate(0)
	_, _ = fmt.Fprintf(file, "pid %d, in %s\n", os.Getpid(), c.Root)
	return func() { file.Close() }, nil
}

// owned makes sure that the machine has no cluster, or this checkout's. It leaves the cluster of
// another checkout alone, with two exceptions: under CI nobody needs it any more, and a cluster
// whose checkout is gone can be taken down only from here.
func (c *control) owned(ctx context.Context) error {
	text, err := os.ReadFile(c.Owner())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := strings.TrimSpace(string(text))
	if owner == c.Root || !filepath.IsAbs(owner) || !c.anyAlive() {
		return nil
	}
	_, err = os.Stat(filepath.Join(owner, "dev", "ctl.sh"))
	if gone := errors.Is(err, os.ErrNotExist); gone || os.Getenv("CI") == "true" {
		other := newControl(place.Of(owner, os.Getenv), c.steps, c.out)
		_ = other.loadPlan() // needed only to restart a containerd that has ended
		return other.takeDown(ctx)
	}
	return fmt.Errorf("this machine's cluster runs from the checkout %s: take that one down first with `make -C %s down`", owner, owner)
}

func (c *control) anyAlive() bool {
	for _, name := range c.table.Names() {
		if c.table.Running(name) {
			return true
		}
	}
	return false
}

// loadPlan reads the addresses that a running cluster was made with.
func (c *control) loadPlan() error {
	text, err := os.ReadFile(c.In("plan.json"))
	if err != nil {
		return fmt.Errorf("no cluster is up: run `make up` first (%w)", err)
	}
	return json.Unmarshal(text, &c.plan)
}

// sameNodes refuses another number of nodes than this checkout's cluster has: its addresses follow
// from that. Without a number it stays as it is.
func (c *control) sameNodes(p *parts) error {
	is := 1
	if c.loadPlan() == nil {
		is = max(1, c.plan.Nodes)
		if p.nodes != 0 && p.nodes != is {
			return fmt.Errorf("this cluster has %s: run `make down` first, or leave out NODES=%d", nodesOf(is), p.nodes)
		}
	}
	if p.nodes == 0 {
		p.nodes = is
	}
	return nil
}

// choosePlan keeps the addresses of this checkout's cluster. If there is none, it takes addresses
// that the machine does not use.
func (c *control) choosePlan(ctx context.Context, nodes int) error {
	if c.loadPlan() == nil {
		return nil
	}
	used, err := network.Used(ctx)
	if err != nil {
		return err
	}
	if c.plan, err = network.Choose(network.Candidates(nodes), used); err != nil {
		return err
	}
	text, err := json.Marshal(c.plan)
	if err != nil {
		return err
	}
	return os.WriteFile(c.In("plan.json"), text, 0o644)
}

func (c *control) kubeconfig() error {
	if _, err := os.Stat(c.Kubeconfig()); err != nil {
		return errors.New("no cluster is up: run `make up` first")
	}
	if err := c.loadPlan(); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "export KUBECONFIG=%s\nexport PATH=\"%s:$PATH\"\nexport EBB_AUDIT_LOG=%s\nexport CONTAINERD_ADDRESS=%s\nexport CONTAINERD_NAMESPACE=k8s.io\n",
		c.Kubeconfig(), c.In("path"), c.Log("audit"), c.cluster().Nodes()[0].Own.Socket())
	return nil
}

func (c *control) status() error {
	names := c.table.Names()
	if len(names) == 0 {
		fmt.Fprintln(c.out, "no cluster is up")
		return nil
	}
	for _, n := range names {
		state := "ended"
		if c.table.Running(n) {
			state = "runs"
		}
		fmt.Fprintf(c.out, "%-24s %-6s log %s\n", n, state, c.Log(n))
	}
	if c.loadPlan() == nil {
		fmt.Fprint(c.out, c.describe())
	}
	return nil
}

// disturb is what a test of faults does to a program. It returns when the program is ready again.
func (c *control) disturb(ctx context.Context, how, name, lasts string) error {
	d, err := time.ParseDuration(lasts)
	if err != nil {
		return err
	}
	if err := c.loadPlan(); err != nil {
		return err
	}
	name = c.oneOf(name)
	if how == "freeze" {
		return c.table.Freeze(ctx, name, d)
	}
	errs := []error{c.table.Away(ctx, name, d)}
	mend := context.WithoutCancel(ctx)
	for _, p := range c.cluster().Programs() {
		if p.Name == name && errs[0] == nil {
			errs = append(errs, c.table.Wait(mend, p))
		}
	}
	// The new process has no CPU share yet.
	return errors.Join(append(errs, c.share(mend))...)
}

// oneOf returns the program of the first node, if the program's name leaves out the node.
func (c *control) oneOf(name string) string {
	if first := name + "-" + place.NodeNames[0]; c.plan.Nodes > 1 && !slices.Contains(c.table.Names(), name) && slices.Contains(c.table.Names(), first) {
		return first
	}
	return name
}

func (c *control) logs(names []string) error {
	if len(names) > 0 {
		text, err := os.ReadFile(c.Log(filepath.Base(names[0])))
		if err != nil {
			return err
		}
		lines := strings.SplitAfter(string(text), "\n")
		fmt.Fprint(c.out, strings.Join(lines[max(0, len(lines)-60):], ""))
		return nil
	}
	files, _ := filepath.Glob(c.In("log", "*.log"))
	for _, f := range files {
		fmt.Fprintln(c.out, f)
	}
	fmt.Fprintln(c.out, "a pod's: kubectl -n NAMESPACE logs POD")
	return nil
}
