package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// groups are the control groups of containers, by what they are a part of.
type groups map[string][]group

// group is the control group of a container, in both versions of the kernel's interface
// (cgroups(7)).
type group struct{ cpu, memory string }

// usage is what control groups have used: CPU time since they began, and anonymous memory now. The
// kernel can drop other memory, and counts a file's at the group that read it first.
type usage struct {
	cpu  time.Duration
	anon float64 // bytes
}

// groupsOf finds the containers of the pods with a label that run. Name tells what each is a part
// of, "" of nothing.
func (v *visit) groupsOf(ctx context.Context, namespace, selector string, name func(*corev1.Pod, string) string) (groups, error) {
	pods, err := v.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods of %s: %w", namespace, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := groups{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		for _, status := range pod.Status.ContainerStatuses {
			part := name(&pod, status.Name)
			if part == "" || status.State.Running == nil {
				continue
			}
			_, id, _ := strings.Cut(status.ContainerID, "://")
			g, ok := groupOf(processes, id)
			if !ok {
				return nil, fmt.Errorf("container %s of %s/%s has no process here: is its node this machine?", status.Name, pod.Namespace, pod.Name)
			}
			found[part] = append(found[part], g)
		}
	}
	return found, nil
}

// groupOf reads where the processes of a container are.
func groupOf(processes []string, id string) (group, bool) {
	for _, file := range processes {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(id)) { // otherwise it has ended
			return parseGroup(string(text), id)
		}
	}
	return group{}, false
}

// parseGroup reads /proc/PID/cgroup: lines of hierarchy, controllers and path, with no controllers
// in version 2.
func parseGroup(text, id string) (g group, ok bool) {
	for line := range strings.Lines(text) {
		field := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(field) != 3 || !strings.Contains(field[2], id) {
			continue
		}
		controllers := strings.Split(field[1], ",")
		folder := filepath.Join("/sys/fs/cgroup", field[1], field[2])
		if field[1] == "" && g.cpu == "" && g.memory == "" {
			g = group{folder, folder}
		}
		if slices.Contains(controllers, "cpuacct") {
			g.cpu = folder
		}
		if slices.Contains(controllers, "memory") {
			g.memory = folder
		}
	}
	return g, g.cpu != "" && g.memory != ""
}

// usage adds up what each part has used.
func (all groups) usage() (map[string]usage, error) {
	sums := map[string]usage{}
	for part, list := range all {
		for _, g := range list {
			u, err := g.usage()
			if err != nil {
				return nil, fmt.Errorf("read what %s has used: %w", part, err)
			}
			sums[part] = usage{sums[part].cpu + u.cpu, sums[part].anon + u.anon}
		}
	}
	return sums, nil
}

func (g group) usage() (usage, error) {
	memory, err := os.ReadFile(filepath.Join(g.memory, "memory.stat"))
	if err != nil {
		return usage{}, err
	}
	anon, err := number(string(memory), "total_rss", "anon")
	if err != nil {
		return usage{}, err
	}
	if text, err := os.ReadFile(filepath.Join(g.cpu, "cpuacct.usage")); err == nil {
		nanoseconds, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		return usage{time.Duration(nanoseconds), anon}, err
	}
	text, err := os.ReadFile(filepath.Join(g.cpu, "cpu.stat"))
	if err != nil {
		return usage{}, err
	}
	microseconds, err := number(string(text), "usage_usec")
	return usage{time.Duration(microseconds) * time.Microsecond, anon}, err
}

// number returns the value of the first key that is there, in lines of key and value.
func number(text string, keys ...string) (float64, error) {
	for _, key := range keys {
		for line := range strings.Lines(text) {
			if value, ok := strings.CutPrefix(line, key+" "); ok {
				return strconv.ParseFloat(strings.TrimSpace(value), 64)
			}
		}
	}
	return 0, fmt.Errorf("there is no line of %s", strings.Join(keys, " or "))
}
