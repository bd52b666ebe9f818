// Package shares gives the programs of the cluster a share of the processors that pods cannot take from them, as they have it on a
// cluster in earnest: there the control plane has machines of its own, and a node reserves for its daemons.
//
// Owns: the control groups Groups below the processor controller's root. Reads: which version of control groups the machine
// mounts. Writes: these groups, and which processes are in them. Never: touches the kubelet's groups or the root's share.
package shares

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// The groups. The kubelet gives all pods together 1024 for each processor.
const (
	Node    = "ebb-dev-node"    // the kubelet, containerd with its shims, kube-proxy
	Control = "ebb-dev-control" // etcd, the API server, controller manager and scheduler
)

// Enough that a burst of requests does not keep pods from starting, and no more than all pods have on two processors: with eight
// times as much, starting pods starved those that served, whose requests then waited for ten seconds and made more pods start.
var shares = map[string]int{Node: 2048, Control: 1024}

// Groups are the names of all groups, for whoever removes them.
var Groups = []string{Node, Control}

// ErrNone says that the machine mounts no processor controller: everything then competes as it did.
var ErrNone = errors.New("no processor controller is mounted")

// Give puts processes, with all their threads, into a group, and makes it if need be. root is where control groups are mounted,
// /sys/fs/cgroup. What such a process starts later is in the group as well. A process that has ended needs no share.
func Give(root, group string, pids []int) error {
	dir, file, value, err := place(root, group)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the control group %s: %w", dir, err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0o644); err != nil {
		return fmt.Errorf("set the share of %s: %w", dir, err)
	}
	for _, pid := range pids {
		err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("put process %d into the control group %s: %w", pid, dir, err)
		}
	}
	return nil
}

// place says where a group belongs and which file takes its share, in either version of control groups.
func place(root, group string) (dir, file string, value int, err error) {
	if _, err := os.Stat(filepath.Join(root, "cpu", "cpu.shares")); err == nil {
		return filepath.Join(root, "cpu", group), "cpu.shares", shares[group], nil
	}
	if _, err := os.Stat(filepath.Join(root, "cgroup.subtree_control")); err != nil {
		return "", "", 0, ErrNone
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+cpu"), 0o644); err != nil {
		return "", "", 0, fmt.Errorf("%w: %w", ErrNone, err)
	}
	// The kubelet translates shares in the same way: 2 to 262144 become 1 to 10000.
	return filepath.Join(root, group), "cpu.weight", 1 + (shares[group]-2)*9999/262142, nil
}
