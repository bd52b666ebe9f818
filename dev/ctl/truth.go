package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// podList is the part of the API server's list of pods that is read here.
type podList struct {
	Items []struct {
		Metadata struct{ Namespace, Name string }
		Status   struct {
			ContainerStatuses []struct {
				ContainerID string
				Ready       bool
			}
		}
	}
}

// claims lists the pods that have a container that is ready according to the API server but does
// not run.
func (pods podList) claims(running []string) (dead []string) {
	for _, pod := range pods.Items {
		for _, container := range pod.Status.ContainerStatuses {
			_, id, _ := strings.Cut(container.ContainerID, "://")
			if container.Ready && !slices.Contains(running, id) {
				dead = append(dead, pod.Metadata.Namespace+"/"+pod.Metadata.Name)
				break
			}
		}
	}
	return dead
}

// believed waits until no container is ready according to the API server that has ended. After a
// restart of the machine or of the kubelet, the API server shows the old state until the kubelet
// has checked each pod.
func (c *control) believed(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		var pods podList
		err := c.kubectl().Get(ctx, &pods, "pods", "--all-namespaces")
		if err == nil {
			var running []string
			if running, err = c.tasks(ctx); err == nil {
				dead := pods.claims(running)
				if len(dead) == 0 {
					return nil
				}
				err = fmt.Errorf("the API server still shows these pods as ready, although their containers have ended: %s", strings.Join(dead, ", "))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the kubelets' logs are in %s", err, c.In("log"))
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// tasks lists the containers that run.
func (c *control) tasks(ctx context.Context) ([]string, error) {
	var running []string
	for _, n := range c.cluster().Nodes() {
		out, err := ctr(ctx, n.Own.Socket(), "tasks", "list")
		if err != nil {
			return nil, fmt.Errorf("ask containerd what runs: %w", err)
		}
		running = append(running, runningTasks(out)...)
	}
	return running, nil
}

func runningTasks(table string) (running []string) {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "RUNNING" {
			running = append(running, fields[0])
		}
	}
	return running
}
