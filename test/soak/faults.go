package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
	"ebb.dev/ebb/test/internal/result"
)

// fault is something that breaks in the cluster. It needs the dev cluster: its programs are
// processes of this machine.
type fault struct {
	name string
	// do breaks something and returns once it is whole again.
	do func(ctx context.Context) error
}

// faults lists all faults. long is how long something stays away that a cluster must do without
// for some time.
func (s *soak) faults(long time.Duration) []fault {
	program := func(verb, name string, d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error { return devctl(ctx, verb, name, d.String()) }
	}
	list := []fault{
		{"API server away", program("away", "kube-apiserver", long)},
		{"API server frozen", program("freeze", "kube-apiserver", min(long, time.Minute))},
		{"etcd restarted", program("away", "etcd", 2*time.Second)},
		{"kubelet restarted", program("away", "kubelet", 5*time.Second)},
		{"containerd restarted", program("away", "containerd", 2*time.Second)},
		{"kube-proxy restarted", program("away", "kube-proxy", 5*time.Second)},
		{"DNS frozen", func(ctx context.Context) error {
			return s.freeze(ctx, "kube-system", "k8s-app=kube-dns", "coredns", min(long, 30*time.Second))
		}},
		{"gateway replaced", s.replaceGateway},
		{"activator cut off from half of the pods", func(ctx context.Context) error { return s.cutOff(ctx, min(long, 30*time.Second)) }},
	}
	for _, component := range cluster.Components {
		list = append(list,
			fault{component + " killed", func(ctx context.Context) error { return s.kill(ctx, cluster.System, "app="+component, component) }},
			fault{component + " frozen", func(ctx context.Context) error {
				return s.freeze(ctx, cluster.System, "app="+component, component, min(long, 90*time.Second))
			}})
	}
	return list
}

// choose returns the named faults, separated by commas, or all.
func choose(list []fault, names string) ([]fault, error) {
	if names == "all" {
		return list, nil
	}
	var out []fault
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(list, func(f fault) bool { return f.name == name })
		if i < 0 {
			var known []string
			for _, f := range list {
				known = append(known, f.name)
			}
			return nil, fmt.Errorf("there is no fault %q: want all, or some of %s", name, strings.Join(known, ", "))
		}
		out = append(out, list[i])
	}
	return out, nil
}

// breakAll goes through the faults until the time is over, each at least once, and prints for each
// what the requests saw until the cluster was whole again.
func (s *soak) breakAll(ctx context.Context, list []fault, probers map[string]*probe.Prober) (n int, err error) {
	end := time.Now().Add(s.lasts)
	for n < len(list) || time.Now().Before(end) {
		if n%len(list) == 0 {
			s.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		f := list[n%len(list)]
		count, began := s.watch(ctx, probers), time.Now()
		if err := f.do(ctx); err != nil {
			count()
			return n, fmt.Errorf("%s: %w", f.name, err)
		}
		broken := time.Since(began)
		whole, cancel := context.WithTimeout(ctx, 5*time.Minute)
		err := s.recover(whole)
		cancel()
		w := count()
		if err != nil {
			return n, fmt.Errorf("after %s: %w", f.name, err)
		}
		n++
		line := result.Fields{"fault": f.name, "at": began.UTC().Format("15:04:05"), "broken_s": round(broken), "whole_after_s": round(time.Since(began) - broken),
			"requests": w.requests, "failed": w.failed, "failed_by_status": w.byStatus, "resets": w.resets, "not_sent": w.skipped,
			"longest_gap_ms": result.Milliseconds(w.gap), "wrong_pod_seconds": w.wrongScale, "api_away_s": w.unseen}
		if err := s.out.Line(line); err != nil {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, context.Cause(ctx)
		case <-time.After(s.every):
		}
	}
	return n, nil
}

// recover waits until the API server answers, the node is ready and every component is.
func (s *soak) recover(ctx context.Context) error {
	return errors.Join(cluster.Until(ctx, func() (bool, string, error) {
		nodes, err := s.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error(), nil
		}
		for _, node := range nodes.Items {
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return false, "node " + node.Name + ": " + c.Message, nil
				}
			}
		}
		return true, "", nil
	}), s.AwaitComponents(ctx))
}

// devctl runs a command of the program behind `make up`.
func devctl(ctx context.Context, arguments ...string) error {
	if out, err := exec.CommandContext(ctx, ".dev/bin/ctl", arguments...).CombinedOutput(); err != nil {
		return fmt.Errorf("ctl %s: %w: %s", strings.Join(arguments, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// processes returns the processes of a container, in all pods with the label.
func (s *soak) processes(ctx context.Context, namespace, label, container string) (pids []int, err error) {
	pods, err := s.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			_, id, _ := strings.Cut(status.ContainerID, "://")
			if status.Name == container && id != "" {
				pids = append(pids, processesOf(id)...)
			}
		}
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("no process of container %s with label %s in %s: is this the dev cluster's machine?", container, label, namespace)
	}
	return pids, nil
}

// processesOf returns the processes in the cgroup of a container.
func processesOf(id string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte(id)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (s *soak) kill(ctx context.Context, namespace, label, container string) error {
	pids, err := s.processes(ctx, namespace, label, container)
	if err != nil {
		return err
	}
	return signalAll(pids, syscall.SIGKILL)
}

func (s *soak) freeze(ctx context.Context, namespace, label, container string, d time.Duration) error {
	pids, err := s.processes(ctx, namespace, label, container)
	if err != nil {
		return err
	}
	if err := signalAll(pids, syscall.SIGSTOP); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
	return signalAll(pids, syscall.SIGCONT) // the kubelet may have killed them meanwhile
}

func signalAll(pids []int, signal syscall.Signal) error {
	var errs []error
	for _, pid := range pids {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("signal %v to %d: %w", signal, pid, err))
		}
	}
	return errors.Join(errs...)
}

// replaceGateway deletes the pods of the gateway in the way that an upgrade does.
func (s *soak) replaceGateway(ctx context.Context) error {
	deployments, err := s.Kube.AppsV1().Deployments(cluster.System).List(ctx, metav1.ListOptions{LabelSelector: "gateway.networking.k8s.io/gateway-name"})
	if err != nil {
		return err
	}
	if len(deployments.Items) == 0 {
		return fmt.Errorf("no Deployment of a Gateway in %s", cluster.System)
	}
	for _, d := range deployments.Items {
		patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"ebb.dev/replaced":%q}}}}}`, time.Now().Format(time.RFC3339Nano))
		if _, err := s.Kube.AppsV1().Deployments(d.Namespace).Patch(ctx, d.Name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{}); err != nil {
			return err
		}
		err := cluster.Until(ctx, func() (bool, string, error) {
			now, err := s.Kube.AppsV1().Deployments(d.Namespace).Get(ctx, d.Name, metav1.GetOptions{})
			if err != nil {
				return false, "", err
			}
			done := now.Status.ObservedGeneration >= now.Generation && now.Status.UpdatedReplicas == now.Status.Replicas && now.Status.AvailableReplicas == now.Status.Replicas
			return done, d.Name + " is being replaced", nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cutOff takes from the activators the way to every second pod of the services.
func (s *soak) cutOff(ctx context.Context, d time.Duration) error {
	pids, err := s.processes(ctx, cluster.System, "app=activator", "activator")
	if err != nil {
		return err
	}
	pods, err := s.Kube.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var addresses []string
	for i, pod := range pods.Items {
		if i%2 == 0 && pod.Status.PodIP != "" {
			addresses = append(addresses, pod.Status.PodIP)
		}
	}
	route := func(verb string) error {
		var errs []error
		for _, pid := range pids {
			for _, address := range addresses {
				command := exec.Command("nsenter", "-t", strconv.Itoa(pid), "-n", "ip", "route", verb, "blackhole", address)
				if out, err := command.CombinedOutput(); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(out)))
				}
			}
		}
		return errors.Join(errs...)
	}
	err = route("add")
	if err == nil {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	return errors.Join(err, route("del"))
}

// round is a duration in seconds.
func round(d time.Duration) float64 { return math.Round(d.Seconds()*10) / 10 }
