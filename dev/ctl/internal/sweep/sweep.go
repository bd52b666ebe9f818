// Package sweep removes what a container runtime leaves behind when it was
// killed: container processes, their shims, mounts and cgroups.
//
// Owns: nothing lasting. Reads: /proc and containerd's state folder. Writes:
// signals, unmounts, removals. Never: touches a process, mount or cgroup that
// is not traced to the cluster's own socket or folders.
package sweep

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Containers kills what still runs of a containerd with this state folder and socket, and returns
// the number of processes.
func Containers(state, socket string) (int, error) {
	killed := 0
	var errs []error
	bundles, _ := filepath.Glob(filepath.Join(state, "io.containerd.runtime.v2.task", "*", "*"))
	for _, shim := range Shims(socket) {
		// Shims first: a shim whose container dies would wait for containerd.
		n, err := kill(shim)
		killed += n
		errs = append(errs, err)
	}
	for _, bundle := range bundles {
		id := filepath.Base(bundle)
		if pid, err := readPID(filepath.Join(bundle, "init.pid")); err == nil && inCgroup(pid, id) {
			n, err := kill(pid)
			killed += n
			errs = append(errs, err)
		}
		// What runc remembers of it. The shim would have removed that.
		_ = os.RemoveAll(filepath.Join("/run/containerd/runc", filepath.Base(filepath.Dir(bundle)), id))
		if address, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil {
			path := strings.TrimPrefix(strings.TrimSpace(string(address)), "unix://")
			if strings.HasPrefix(path, "/run/containerd/s/") {
				_ = os.Remove(path)
			}
		}
	}
	for _, dir := range []string{"runc/k8s.io", "runc", "s", ""} {
		_ = os.Remove(filepath.Join("/run/containerd", dir)) // fails if another containerd uses it
	}
	return killed, errors.Join(errs...)
}

// Shims are the processes that were started for this socket: it is one of
// their arguments.
func Shims(socket string) []int {
	var found []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && isShim(strings.Split(string(text), "\x00"), socket) {
			if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil {
				found = append(found, pid)
			}
		}
	}
	return found
}

func isShim(args []string, socket string) bool {
	at := slices.Index(args, "-address")
	return strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") && at > 0 && at+1 < len(args) && args[at+1] == socket
}

func readPID(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// inCgroup guards against a process id that belongs to another process by now.
func inCgroup(pid int, id string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(text), id)
}

func kill(pid int) (int, error) {
	if pid <= 1 {
		return 0, nil
	}
	err := syscall.Kill(pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return 0, nil
	}
	return 1, err
}

// Mounts unmounts everything below the folders, innermost first.
func Mounts(folders ...string) (int, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	points, err := below(f, folders)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, p := range points {
		err := syscall.Unmount(p, 0)
		if errors.Is(err, syscall.EBUSY) {
			// A process that is just ending may still use it.
			err = syscall.Unmount(p, syscall.MNT_DETACH)
		}
		if err != nil && !errors.Is(err, syscall.EINVAL) { // not mounted any more
			errs = append(errs, fmt.Errorf("unmount %s: %w", p, err))
		}
	}
	return len(points), errors.Join(errs...)
}

// below lists the mount points in the folders, the last mounted first.
func below(r io.Reader, folders []string) ([]string, error) {
	var points []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescape(fields[4])
		for _, dir := range folders {
			if strings.HasPrefix(point, strings.TrimSuffix(dir, "/")+"/") {
				points = append(points, point)
				break
			}
		}
	}
	slices.Reverse(points)
	return points, lines.Err()
}

// unescape undoes the kernel's octal form of spaces and the like.
func unescape(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// Cgroups removes control groups and those in them, in whichever versions and
// hierarchies the machine mounts. Groups that still hold processes stay and
// are an error.
func Cgroups(within time.Duration, names ...string) error {
	var roots []string
	for _, name := range names {
		for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
			found, _ := filepath.Glob(pattern)
			roots = append(roots, found...)
		}
	}
	end := time.Now().Add(within)
	for _, root := range roots {
		for {
			err := removeGroup(root)
			if err == nil || errors.Is(err, os.ErrNotExist) {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("remove the control group %s: %w", root, err)
			}
			time.Sleep(50 * time.Millisecond) // the kernel lets go of a group a moment after its last process
		}
	}
	return nil
}

func removeGroup(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(dirs) // children after parents becomes children first
	for _, d := range dirs {
		if err := syscall.Rmdir(d); err != nil && !errors.Is(err, syscall.ENOENT) {
			return err
		}
	}
	return nil
}
