package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
)

// ctl runs the program behind `make up`, next to the kubeconfig that it wrote. If ctx ends, it
// mends what it broke.
func ctl(ctx context.Context, arguments ...string) error {
	dev := filepath.Dir(os.Getenv("KUBECONFIG"))
	cmd := exec.CommandContext(ctx, filepath.Join(dev, "bin", "ctl"), arguments...)
	cmd.Dir = filepath.Dir(dev)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ctl %s, which only the dev cluster has: %w: %s", strings.Join(arguments, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// Node does to one of several nodes what `make node` does.
func Node(ctx context.Context, name string, do ...string) error {
	return ctl(ctx, append([]string{"node", name}, do...)...)
}

// container is a container of all pods of a namespace with a label.
type container struct{ namespace, label, name string }

// program is the container in which a component of Ebb runs.
func (s Set) program(component string) container {
	name := s.Program(component)
	return container{cluster.System, "app=" + name, name}
}

// process is a container's process on this machine. The container's ID tells it apart from a later
// process with the same number.
type process struct {
	pid int
	id  string
	pod string
}

type processes []process

// ErrNoProcess says that a container does not run.
var ErrNoProcess = errors.New("no process")

// processes returns the processes of a container in all pods, those of one pod together.
func (s Set) processes(ctx context.Context, c container) (all processes, err error) {
	pods, err := s.Kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: c.label})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		if id := running(&pod, c.name); id != "" && pod.DeletionTimestamp == nil {
			all = append(all, processesOf(pod.Name, id)...)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w of container %s with label %s in %s: is this the dev cluster's machine?", ErrNoProcess, c.name, c.label, c.namespace)
	}
	return all, nil
}

// running returns the ID of a container of a pod, "" if it does not run.
func running(pod *corev1.Pod, name string) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == name && status.State.Running != nil {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			return id
		}
	}
	return ""
}

// processesOf returns the processes in the control group of a container.
func processesOf(pod, id string) (found processes) {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if p := (process{pid, id, pod}); err == nil && p.alive() {
			found = append(found, p)
		}
	}
	return found
}

func (p process) alive() bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", p.pid))
	return err == nil && p.id != "" && bytes.Contains(text, []byte(p.id))
}

func (all processes) ofOnePod() processes {
	return slices.DeleteFunc(slices.Clone(all), func(p process) bool { return p.id != all[0].id })
}

// signal sends a signal to the processes that still run.
func (all processes) signal(signal syscall.Signal) error {
	var errs []error
	for _, p := range all {
		if !p.alive() {
			continue
		}
		if err := syscall.Kill(p.pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("signal %v to %d: %w", signal, p.pid, err))
		}
	}
	return errors.Join(errs...)
}

// KillCourier kills the courier, and returns when the kubelet has started it again. It is no fault
// of All: what is under load there does not need the courier.
func (s Set) KillCourier(ctx context.Context) error {
	return s.kill(ctx, container{cluster.System, "app=courier", "courier"})
}

// cutOff takes from the activators the way to half of the pods of each revision.
func (s Set) cutOff(ctx context.Context) error {
	activators, err := s.processes(ctx, s.program("activator"))
	if err != nil {
		return err
	}
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	byRevision := map[string][]string{}
	for _, pod := range pods.Items {
		if revision := pod.Labels["serving.knative.dev/revision"]; pod.Status.PodIP != "" {
			byRevision[revision] = append(byRevision[revision], pod.Status.PodIP)
		}
	}
	var addresses []string
	for _, list := range byRevision {
		addresses = append(addresses, list[:len(list)/2]...)
	}
	if len(addresses) == 0 {
		return fmt.Errorf("no revision in %s has two pods", s.Namespace)
	}
	route := func(verb string) error {
		var errs []error
		for _, p := range activators {
			for _, address := range addresses {
				command := exec.Command("nsenter", "-t", strconv.Itoa(p.pid), "-n", "ip", "route", verb, "blackhole", address)
				if out, err := command.CombinedOutput(); err != nil && p.alive() {
					errs = append(errs, fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(out)))
				}
			}
		}
		return errors.Join(errs...)
	}
	err = route("add")
	if err == nil {
		s.last(ctx, halfMinute)
	}
	return errors.Join(err, route("del"))
}
