// Package shares gives the cluster's programs a CPU share that pods cannot take from them. A
// production cluster has that too: its control plane runs on other machines, and a node reserves
// CPU for its daemons.
//
// Owns: the control groups Groups below the root of the CPU controller. Reads: which version of
// cgroups the machine mounts. Writes: these groups, and which processes are in them. Never: touches
// the kubelet's groups or the root's share.
package shares

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// The groups. The kubelet gives all pods together a share of 1024 per CPU.
const (
	Node    = "ebb-dev-node"    // the kubelet, containerd with its shims, kube-proxy
	Control = "ebb-dev-control" // etcd, the API server, controller manager and scheduler
)

// Enough that pods start during a burst of requests, and no more than all pods have on two CPUs.
// With eight times as much, starting pods starved the serving ones: their requests waited for ten
// seconds and made more pods start.
var shares = map[string]int{Node: 2048, Control: 1024}

// Groups are the names of all groups, for their removal.
var Groups = []string{Node, Control}

// ErrNone says that the machine mounts no CPU controller: all programs then compete for the CPUs as
// before.
var ErrNone = errors.New("no CPU controller is mounted")

// Give moves processes with all their threads into a group, which it creates if needed. root is
// where cgroups are mounted, /sys/fs/cgroup. Processes that they start later are in the group as
// well. Give ignores processes that have ended.
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

// place says where a group belongs and which file takes its share, in either version of control
// groups.
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
