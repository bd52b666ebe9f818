// Package groups makes the control groups of one of several nodes, in which all of its processes
// are: its programs in a group of their own, and its pods below the kubelet's kubepods.
//
// Owns: one group at the top of each hierarchy, and what is below it. Reads: which version of
// cgroups the machine mounts. Writes: these groups; signals. Never: touches another group or a
// process that is in none of these.
package groups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Node is the groups of one node.
type Node struct {
	Mount string // where the machine's cgroups are mounted, /sys/fs/cgroup
	Name  string // of the group, and the kubelet's --cgroup-root
}

// programs is the group of the kubelet, containerd with its shims, and kube-proxy.
const programs = "programs"

// share is that of a node's programs. The kubelet gives all pods of a node 1024 per CPU.
const share = 2048

// ErrNone says that the machine mounts no cgroups, or not those that a node needs.
var ErrNone = errors.New("no cgroups that a node can have a part of")

// version2 says whether there is one hierarchy for all controllers.
func (n Node) version2() bool {
	_, err := os.Stat(filepath.Join(n.Mount, "cgroup.controllers"))
	return err == nil
}

// hierarchies are the folders that controllers are mounted on. Some have links under other names.
func (n Node) hierarchies() []string {
	if n.version2() {
		return []string{n.Mount}
	}
	var found []string
	files, _ := filepath.Glob(filepath.Join(n.Mount, "*", "tasks")) // only version 1 has it
	for _, f := range files {
		if dir, err := filepath.EvalSymlinks(filepath.Dir(f)); err == nil && !slices.Contains(found, dir) {
			found = append(found, dir)
		}
	}
	return found
}

// Programs are the folders that a program of the node has to be in.
func (n Node) Programs() []string {
	var dirs []string
	for _, h := range n.hierarchies() {
		dirs = append(dirs, filepath.Join(h, n.Name, programs))
	}
	return dirs
}

// Make makes the groups, or what is missing of them. A node has one of so many parts of the CPU
// that the only node of a machine has.
func (n Node) Make(parts int) error {
	all := n.hierarchies()
	if len(all) == 0 {
		return fmt.Errorf("%w below %s", ErrNone, n.Mount)
	}
	for _, h := range all {
		for _, dir := range []string{filepath.Join(h, n.Name), filepath.Join(h, n.Name, programs)} {
			if err := n.enable(filepath.Dir(dir)); err != nil {
				return err
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make the control group %s: %w", dir, err)
			}
			if err := inherit(dir); err != nil {
				return err
			}
			value := share
			if filepath.Base(dir) == n.Name {
				value = max(2*share/parts, 2)
			}
			if err := setShare(dir, value); err != nil {
				return err
			}
		}
	}
	return nil
}

// enable gives the groups below dir all controllers that dir has. Version 1 has no such file.
func (n Node) enable(dir string) error {
	if !n.version2() {
		return nil
	}
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for c := range strings.FieldsSeq(string(controllers)) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("give the control groups below %s the controller %s: %w", dir, c, err)
		}
	}
	return nil
}

// inherit sets what a new group of the controller cpuset has to have before a process can join it.
func inherit(dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		now, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || strings.TrimSpace(string(now)) != "" {
			continue // another controller, or done
		}
		above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(above)) == "" {
			continue // version 2, where empty means all
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), above, 0o644)
		}
		if err != nil {
			return fmt.Errorf("set %s of %s: %w", file, dir, err)
		}
	}
	return nil
}

func setShare(dir string, value int) error {
	// The kubelet translates shares in the same way: 2 to 262144 become 1 to 10000.
	for file, text := range map[string]int{"cpu.shares": value, "cpu.weight": 1 + (value-2)*9999/262142} {
		file = filepath.Join(dir, file)
		if _, err := os.Stat(file); err != nil {
			continue // another controller or version
		}
		if err := os.WriteFile(file, []byte(strconv.Itoa(text)), 0o644); err != nil {
			return fmt.Errorf("set the share of %s: %w", dir, err)
		}
	}
	return nil
}

// top is the node's group where its processes are counted, frozen and ended.
func (n Node) top() string {
	if n.version2() {
		return filepath.Join(n.Mount, n.Name)
	}
	return filepath.Join(n.Mount, "freezer", n.Name)
}

// below lists a group and the groups in it.
func below(top string) (dirs []string, err error) {
	err = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone with its last process, or never made
		case err != nil:
			return err
		case d.IsDir():
			dirs = append(dirs, path)
		}
		return nil
	})
	return dirs, err
}

// processes are those of a group and of the groups in it.
func processes(top string) ([]int, error) {
	dirs, err := below(top)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
			return nil, err
		}
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// Kill ends all processes of the node without notice, and waits until there are none. It returns
// how many there were.
func (n Node) Kill(ctx context.Context) (killed int, err error) {
	seen := map[int]bool{}
	for {
		pids, err := processes(n.top())
		if err != nil {
			return len(seen), fmt.Errorf("list the processes of %s: %w", n.Name, err)
		}
		if len(pids) == 0 {
			return len(seen), nil
		}
		for _, pid := range pids {
			seen[pid] = true
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return len(seen), fmt.Errorf("kill process %d of %s: %w", pid, n.Name, err)
			}
		}
		// A frozen process of version 1 ends only when it is thawed. Those of pods that sleep are
		// frozen in groups of their own.
		if err := n.thawAll(); err != nil {
			return len(seen), err
		}
		select {
		case <-ctx.Done():
			return len(seen), fmt.Errorf("%d processes of %s do not end even when killed: %w", len(pids), n.Name, context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (n Node) thawAll() error {
	dirs, err := below(n.top())
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := setFrozen(dir, false); err != nil {
			return err
		}
	}
	return nil
}

// Freeze stops all processes of the node, or lets them go on. A pod that sleeps stays frozen.
func (n Node) Freeze(frozen bool) error {
	return setFrozen(n.top(), frozen)
}

func setFrozen(dir string, frozen bool) error {
	for file, words := range map[string][2]string{"freezer.state": {"THAWED", "FROZEN"}, "cgroup.freeze": {"0", "1"}} {
		file = filepath.Join(dir, file)
		if _, err := os.Stat(file); err != nil {
			continue
		}
		word := words[0]
		if frozen {
			word = words[1]
		}
		if err := os.WriteFile(file, []byte(word), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENODEV) {
			return fmt.Errorf("write %s to %s: %w", word, file, err)
		}
		return nil
	}
	if frozen {
		return fmt.Errorf("freeze %s: %w", dir, ErrNone)
	}
	return nil
}
