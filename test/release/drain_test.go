//go:build release

package release

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"ebb.dev/ebb/test/internal/cluster"
)

// node is the cluster's only one.
func (s *story) node() string {
	s.Helper()
	return s.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
}

// drainable asks the API server whether it would evict the pods of each component.
func (s *story) drainable() {
	s.Helper()
	for _, name := range replicated {
		s.kubectl("drain", s.node(), "--dry-run=server", "--ignore-daemonsets", "--pod-selector=app="+name)
	}
}

// drained drains the node of three replicas of each component, as if there were others: the node
// takes pods again as soon as the drain has closed it. The budgets let one replica of each go at a
// time.
func (s *story) drained() {
	s.Helper()
	selector := "app in (" + strings.Join(replicated, ",") + ")"
	pods := func() []string {
		return strings.Fields(s.kubectl("-n", cluster.System, "get", "pods", "-l", selector, "-o", "jsonpath={.items[*].metadata.uid}"))
	}
	node, before := s.node(), pods()
	ctx, cancel := context.WithCancel(s.ctx)
	least, looks := map[string]string{}, 0
	var watch sync.WaitGroup
	watch.Go(func() {
		for ctx.Err() == nil {
			_ = exec.CommandContext(ctx, "kubectl", "uncordon", node).Run()
			args := append([]string{"-n", cluster.System, "get", "deployments", "-o",
				`jsonpath={range .items[*]}{.metadata.name} {.status.readyReplicas}{"\n"}{end}`}, replicated...)
			out, err := exec.CommandContext(ctx, "kubectl", args...).Output()
			if err != nil {
				continue
			}
			looks++
			for line := range strings.Lines(string(out)) {
				name, ready, _ := strings.Cut(strings.TrimSpace(line), " ")
				if seen, ok := least[name]; !ok || ready < seen {
					least[name] = ready
				}
			}
			time.Sleep(200 * time.Millisecond)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		watch.Wait()
		if out, err := exec.CommandContext(context.WithoutCancel(ctx), "kubectl", "uncordon", node).CombinedOutput(); err != nil {
			s.Errorf("%v: %s", err, out)
		}
	})
	defer stop()
	s.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m", "--pod-selector="+selector)
	stop()
	s.Logf("%d pods drained; least ready replicas in %d looks: %v", len(before), looks, least)
	for _, name := range replicated {
		if least[name] < "2" {
			s.Errorf("%s had %q ready replicas during a drain, want two", name, least[name])
		}
	}
	for _, pod := range pods() {
		if slices.Contains(before, pod) {
			s.Errorf("pod %s is still there after a drain", pod)
		}
	}
	s.ready()
}
