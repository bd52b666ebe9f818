// Package cgroup freezes, thaws and compresses the containers of pods, by the files of their
// cgroups: version 1 and 2, made by the kubelet itself (cgroupfs) or by systemd.
//
// Owns: nothing. Reads: the cgroups below kubepods. Writes: freezer.state, memory.force_empty
// (version 1), cgroup.freeze, memory.reclaim (version 2). Never: leaves the folder kubepods, or
// follows a name that is not a pod's UID or a container's ID.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// Tree is the cgroups of all pods of a node.
type Tree struct {
	freezer, memory *os.Root // the same folder in version 2
	files           files
	systemd         bool
}

// files are the names and words of a version.
type files struct {
	state, freeze, thaw string // the file to write, and what
	event, frozen       string // the file to read, and the line in it once all tasks are frozen
	compress            string
}

var (
	version1 = files{state: "freezer.state", freeze: "FROZEN", thaw: "THAWED", event: "freezer.state", frozen: "FROZEN", compress: "memory.force_empty"}
	version2 = files{state: "cgroup.freeze", freeze: "1", thaw: "0", event: "cgroup.events", frozen: "frozen 1", compress: "memory.reclaim"}
)

// Open finds the cgroups of pods below mount, where the node's cgroups are mounted. parent is the
// kubelet's --cgroup-root, empty by default.
func Open(mount, parent string) (*Tree, error) {
	for _, systemd := range []bool{false, true} {
		pods := filepath.Join(parent, "kubepods")
		if systemd {
			pods += ".slice"
		}
		if freezer, err := os.OpenRoot(filepath.Join(mount, "freezer", pods)); err == nil {
			memory, err := os.OpenRoot(filepath.Join(mount, "memory", pods))
			if err != nil {
				return nil, fmt.Errorf("open the memory cgroups of pods: %w", err)
			}
			return &Tree{freezer, memory, version1, systemd}, nil
		}
		if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err != nil {
			continue
		}
		if root, err := os.OpenRoot(filepath.Join(mount, pods)); err == nil {
			return &Tree{root, root, version2, systemd}, nil
		}
	}
	return nil, fmt.Errorf("no cgroups of pods below %s: neither kubepods nor kubepods.slice, in version 1 or 2", filepath.Join(mount, parent))
}

var (
	isUID       = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	isID        = regexp.MustCompile(`^[0-9a-f]{64}$`)
	isContainer = regexp.MustCompile(`^([a-z-]+-)?([0-9a-f]{64})(\.scope)?$`)
)

// ErrGone says that a pod or a container has no cgroup any more.
var ErrGone = errors.New("no such cgroup")

// pod returns the folder of a pod.
func (t *Tree) pod(uid string) (string, error) {
	if !isUID.MatchString(uid) {
		return "", fmt.Errorf("%q is not the UID of a pod", uid)
	}
	for _, class := range []string{"burstable", "besteffort", ""} {
		dir := path.Join(class, "pod"+uid)
		if t.systemd {
			name := strings.ReplaceAll("pod"+uid, "-", "_")
			dir = "kubepods-" + name + ".slice"
			if class != "" {
				dir = "kubepods-" + class + ".slice/kubepods-" + class + "-" + name + ".slice"
			}
		}
		if info, err := t.freezer.Stat(dir); err == nil && info.IsDir() {
			return dir, nil
		}
	}
	return "", fmt.Errorf("pod %s: %w", uid, ErrGone)
}

// containers returns the folders of the pod's containers with these IDs. All of them have to exist.
func (t *Tree) containers(uid string, ids []string) ([]string, error) {
	pod, err := t.pod(uid)
	if err != nil {
		return nil, err
	}
	found, err := t.list(pod)
	if err != nil {
		return nil, err
	}
	dirs := make([]string, 0, len(ids))
	for _, id := range ids {
		if !isID.MatchString(id) {
			return nil, fmt.Errorf("%q is not the ID of a container", id)
		}
		dir, ok := found[id]
		if !ok {
			return nil, fmt.Errorf("container %.12s of pod %s: %w", id, uid, ErrGone)
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// list returns the folders of all containers of a pod by their ID.
func (t *Tree) list(pod string) (map[string]string, error) {
	entries, err := fs.ReadDir(t.freezer.FS(), pod)
	if err != nil {
		return nil, fmt.Errorf("list the cgroups of a pod: %w", err)
	}
	dirs := map[string]string{}
	for _, e := range entries {
		if m := isContainer.FindStringSubmatch(e.Name()); m != nil && e.IsDir() {
			dirs[m[2]] = path.Join(pod, e.Name())
		}
	}
	return dirs, nil
}

// all returns the folders of all containers of all pods.
func (t *Tree) all() (dirs []string, err error) {
	err = fs.WalkDir(t.freezer.FS(), ".", func(dir string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a pod that is going away
		case err != nil:
			return err
		case e.IsDir() && isContainer.MatchString(e.Name()):
			dirs = append(dirs, dir)
			return fs.SkipDir
		}
		return nil
	})
	return dirs, err
}

// Close releases the tree.
func (t *Tree) Close() error { return errors.Join(t.freezer.Close(), t.memory.Close()) }
