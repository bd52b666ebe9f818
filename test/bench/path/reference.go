package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/nginx"
)

// besideContainer starts nginx in the pod's network namespace, in front of its container. It runs
// in queue-proxy's control groups: with a CPU share of its own its rate differs by a third. The
// node must be this machine, where the pod's processes can be seen.
func besideContainer(ctx context.Context, pod *corev1.Pod, port int32) (address string, stop func(context.Context) error, err error) {
	path, err := nginx.Find(ctx)
	if err != nil {
		return "", nil, err
	}
	process, err := queueProxyOf(pod)
	if err != nil {
		return "", nil, err
	}
	groups, err := groupsOf(process)
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "ebb-path-")
	if err != nil {
		return "", nil, fmt.Errorf("make a directory for nginx: %w", err)
	}
	address = net.JoinHostPort(pod.Status.PodIP, "18080")
	arguments, err := nginx.Arguments(dir, address, net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	// Not bound to ctx: nginx runs until stop, however the benchmark ends.
	command := exec.Command("sh", append([]string{"-c", `for g in $GROUPS_TO_JOIN; do echo $$ > $g || exit 1; done; exec nsenter "$@"`, "sh",
		"--net=/proc/" + process + "/ns/net", path}, arguments...)...)
	command.Env = append(os.Environ(), "GROUPS_TO_JOIN="+strings.Join(groups, " "))
	output := &bytes.Buffer{}
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("start nginx in the pod's network: %w", err), os.RemoveAll(dir))
	}
	stop = func(context.Context) error {
		killed := command.Process.Kill()
		_ = command.Wait() // its error says that nginx was killed
		return errors.Join(killed, os.RemoveAll(dir))
	}
	if err := await(ctx, address); err != nil {
		return "", nil, errors.Join(fmt.Errorf("nginx in the pod's network: %w", err), stop(ctx), errors.New(output.String()))
	}
	return address, stop, nil
}

// queueProxyOf returns the process id of the pod's queue-proxy. The names of its control groups
// contain the pod's UID, under the systemd driver with underscores.
func queueProxyOf(pod *corev1.Pod) (string, error) {
	all, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return "", fmt.Errorf("list processes: %w", err)
	}
	uid := string(pod.UID)
	for _, file := range all {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if text := string(data); !strings.Contains(text, uid) && !strings.Contains(text, strings.ReplaceAll(uid, "-", "_")) {
			continue
		}
		process := filepath.Dir(file)
		if name, err := os.Readlink(filepath.Join(process, "exe")); err == nil && filepath.Base(name) == "queue-proxy" {
			return filepath.Base(process), nil
		}
	}
	return "", fmt.Errorf("pod %s/%s has no queue-proxy process here: is its node this machine?", pod.Namespace, pod.Name)
}

// groupsOf returns the files through which a process joins the CPU control groups of another.
func groupsOf(process string) ([]string, error) {
	data, err := os.ReadFile("/proc/" + process + "/cgroup")
	if err != nil {
		return nil, fmt.Errorf("read the control groups of process %s: %w", process, err)
	}
	var files []string
	for line := range strings.Lines(string(data)) {
		// hierarchy:controllers:path; cgroup v2 lists no controllers (cgroups(7))
		field := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(field) != 3 {
			continue
		}
		controllers := strings.Split(field[1], ",")
		switch {
		case slices.Contains(controllers, "cpu"), slices.Contains(controllers, "cpuacct"):
			files = append(files, filepath.Join("/sys/fs/cgroup", field[1], field[2], "cgroup.procs"))
		case field[0] == "0" && len(files) == 0:
			files = append(files, filepath.Join("/sys/fs/cgroup", field[2], "cgroup.procs"))
		}
	}
	return files, nil
}

func await(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var dialer net.Dialer
	return cluster.Until(ctx, func() (done bool, seen string, err error) {
		conn, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return false, err.Error(), nil
		}
		return true, "", conn.Close()
	})
}
