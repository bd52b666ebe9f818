package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ebb.dev/ebb/dev/ctl/internal/kube"
	"ebb.dev/ebb/dev/ctl/internal/network"
	"ebb.dev/ebb/dev/ctl/internal/process"
	"ebb.dev/ebb/dev/ctl/internal/sweep"
)

// parseNodes reads how many nodes a person wants.
func parseNodes(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > network.MaxNodes {
		return 0, fmt.Errorf("NODES=%s: a cluster on one machine has 1 to %d nodes", text, network.MaxNodes)
	}
	return n, nil
}

func nodesOf(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// room makes what one of several nodes has of its own on the machine: control groups and a network.
// A node that was frozen or cut off is so no longer.
func (c *control) room(ctx context.Context, n kube.Node) error {
	if n.Name == "" {
		return nil
	}
	if err := n.Groups().Make(c.plan.Nodes); err != nil {
		return err
	}
	if err := n.Groups().Freeze(false); err != nil {
		return err
	}
	if err := c.plan.NodeUp(ctx, n.Node, n.Namespace()); err != nil {
		return err
	}
	return network.Mend(ctx, n.Namespace())
}

const nodeUsage = "node NAME off | cut [in|out] [control|nodes] | freeze | back"

// node is what a test of faults does to a node, or what mends it.
func (c *control) node(ctx context.Context, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("a node needs a name and what to do: %s", nodeUsage)
	}
	if err := c.machine.Root(); err != nil {
		return err
	}
	if err := c.loadPlan(); err != nil {
		return err
	}
	n, err := c.nodeNamed(args[0])
	if err != nil {
		return err
	}
	switch verb, more := args[1], args[2:]; {
	case (verb == "cut" || verb == "freeze") && !c.on(n):
		return fmt.Errorf("node %s has no power: `make node NAME=%s DO=back` first", n.Name, n.Name)
	case verb == "cut":
		cut, err := network.ParseCut(more)
		if err != nil {
			return err
		}
		return c.plan.Lose(ctx, n.Node, n.Namespace(), cut)
	case len(more) > 0:
	case verb == "off":
		return c.powerOff(ctx, n)
	case verb == "freeze":
		return n.Groups().Freeze(true)
	case verb == "back":
		return c.back(ctx, n)
	}
	return fmt.Errorf("a node cannot %s: %s", strings.Join(args[1:], " "), nodeUsage)
}

func (c *control) nodeNamed(name string) (kube.Node, error) {
	nodes := c.cluster().Nodes()
	if nodes[0].Name == "" {
		return kube.Node{}, errors.New("this cluster has one node, which is the machine itself: run `make down` and `make up NODES=3` first")
	}
	var names []string
	for _, n := range nodes {
		if name == n.Name || name == n.Hostname() {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return kube.Node{}, fmt.Errorf("there is no node %q, only %s", name, strings.Join(names, ", "))
}

// powerOff ends a node as a power cut does: nobody hears anything more of it, and what it had in
// memory is gone. Its disk, the node's folder in .dev, stays.
func (c *control) powerOff(ctx context.Context, n kube.Node) error {
	// First the link. The connections of a process that ends are closed, which nobody may see.
	if err := n.PowerOff(ctx); err != nil {
		return err
	}
	_, err := c.sweepNode(ctx, n.Name)
	errs := []error{err}
	for _, p := range n.Programs() {
		errs = append(errs, c.table.Stop(ctx, p.Name, 0)) // it has ended, and is forgotten
	}
	_, err = sweep.Mounts(n.Own.Run, n.Own.Dev) // with them the network namespaces of the node and of its pods
	errs = append(errs, err, sweep.Cgroups(10*time.Second, n.Groups().Name))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(n.Own.Run)
}

// sweepNode ends everything that runs on one of several nodes, and returns how many processes that
// were.
func (c *control) sweepNode(ctx context.Context, name string) (killed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	killed, err = kube.GroupsOf(name).Kill(ctx)
	own := c.Places.Node(name)
	// What is not in the groups: a shim that was just being started.
	left, sweepErr := sweep.Containers(filepath.Join(own.Run, "containerd"), own.Socket())
	return killed + left, errors.Join(err, sweepErr)
}

// back brings a node back, whatever was done to it, and returns when it is Ready.
func (c *control) back(ctx context.Context, n kube.Node) error {
	if err := c.room(ctx, n); err != nil {
		return err
	}
	for _, p := range n.Programs() {
		_, err := c.table.Start(ctx, p)
		for range backTries {
			if err == nil || ctx.Err() != nil {
				break
			}
			time.Sleep(time.Second)
			_, err = c.table.Start(ctx, p)
		}
		if err != nil {
			return err
		}
	}
	return c.nodeReady(ctx, n, 2*time.Minute)
}

// backTries is how often a program of a node that comes back is started again that ended at once:
// containerd listens a moment before it serves a kubelet, which ends then.
const backTries = 5

// on says whether the node has power: whether a program of its own runs, or is frozen.
func (c *control) on(n kube.Node) bool {
	return slices.ContainsFunc(n.Programs(), func(p process.Program) bool { return c.table.Running(p.Name) })
}

// describe is what status says of several nodes.
func (c *control) describe() string {
	var text strings.Builder
	for _, n := range c.cluster().Nodes() {
		if n.Name == "" {
			continue
		}
		state := "off"
		if c.on(n) {
			state = "on"
		}
		fmt.Fprintf(&text, "node %-19s %-6s zone %s, address %s, pods %s\n", n.Hostname(), state, n.Zone(), n.Address, n.Pods)
	}
	return text.String()
}
