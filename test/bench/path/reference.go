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
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/nginx"
)

// besideContainer starts nginx in the pod's network namespace, in front of its container. The node is this machine, so that
// its processes can be seen.
func besideContainer(ctx context.Context, pod *corev1.Pod, port int32) (address string, stop func(context.Context) error, err error) {
	path, err := nginx.Find(ctx)
	if err != nil {
		return "", nil, err
	}
	process, err := processOf(pod)
	if err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp("", "ebb-path-")
	if err != nil {
		return "", nil, fmt.Errorf("make a place for nginx: %w", err)
	}
	address = net.JoinHostPort(pod.Status.PodIP, "18080")
	arguments, err := nginx.Arguments(dir, address, net.JoinHostPort("127.0.0.1", fmt.Sprint(port)))
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	// Not bound to ctx: it ends when it is told to, whatever ended the benchmark.
	command := exec.Command("nsenter", append([]string{"--net=/proc/" + process + "/ns/net", path}, arguments...)...)
	output := &bytes.Buffer{}
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		return "", nil, errors.Join(fmt.Errorf("start nginx in the pod's network: %w", err), os.RemoveAll(dir))
	}
	stop = func(context.Context) error {
		killed := command.Process.Kill()
		_ = command.Wait() // says that it was killed
		return errors.Join(killed, os.RemoveAll(dir))
	}
	if err := await(ctx, address); err != nil {
		return "", nil, errors.Join(fmt.Errorf("nginx in the pod's network: %w", err), stop(ctx), errors.New(output.String()))
	}
	return address, stop, nil
}

// processOf returns a process of the pod: the names of its control groups have the pod's uid, with the systemd driver in underscores.
func processOf(pod *corev1.Pod) (string, error) {
	groups, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return "", fmt.Errorf("list processes: %w", err)
	}
	uid := string(pod.UID)
	for _, file := range groups {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if text := string(data); strings.Contains(text, uid) || strings.Contains(text, strings.ReplaceAll(uid, "-", "_")) {
			return filepath.Base(filepath.Dir(file)), nil
		}
	}
	return "", fmt.Errorf("no process of pod %s/%s: is its node this machine?", pod.Namespace, pod.Name)
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
