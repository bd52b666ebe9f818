package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// podList is what the API server says of the pods.
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

// claims lists the containers that are ready, by the API server's word, and
// not among those that run.
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

// believed waits until the API server calls no container ready that is dead.
// After the machine or the kubelet has gone down it goes on saying what was
// true before, and so would everything that asks it, until the kubelet has
// looked at each pod.
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
				err = fmt.Errorf("the API server still calls these pods ready, whose containers have ended: %s", strings.Join(dead, ", "))
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w; the kubelet's log is %s", err, c.Log("kubelet"))
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// tasks lists the containers that run.
func (c *control) tasks(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ctr", "--address", c.Socket(), "--namespace", "k8s.io", "tasks", "list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask containerd what runs: %w", err)
	}
	return runningTasks(string(out)), nil
}

func runningTasks(table string) (running []string) {
	for line := range strings.Lines(table) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "RUNNING" {
			running = append(running, fields[0])
		}
	}
	return running
}
