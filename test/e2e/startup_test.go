//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"ebb.dev/ebb/test/internal/cluster"
	"ebb.dev/ebb/test/internal/probe"
)

// startsWith is a service with a CPU limit of 250m, and more while it starts.
func startsWith(name, cpu string) string {
	return service{name: name, annotations: map[string]string{"autoscaling.ebb.dev/startup-cpu": cpu}}.manifest() + `
        resources: {requests: {cpu: 50m}, limits: {cpu: 250m}}
`
}

// limitOf is the CPU limit that the user container of the only pod has, in its spec and on its
// node.
func (s *story) limitOf(name string) (spec, node string, pod corev1.Pod, err error) {
	pods, err := s.Pods(s.ctx, s.namespace, name, false)
	if err != nil || len(pods) != 1 {
		return "", "", pod, err
	}
	pod = pods[0]
	for _, c := range pod.Spec.Containers {
		if c.Name != "queue-proxy" {
			spec = c.Resources.Limits.Cpu().String()
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.Name != "queue-proxy" && c.Resources != nil {
			node = c.Resources.Limits.Cpu().String()
		}
	}
	return spec, node, pod, nil
}

func (s *story) awaitLimit(name, limit string) (pod corev1.Pod) {
	s.Helper()
	s.until(name+" has the CPU limit "+limit, func() (bool, string, error) {
		spec, node, found, err := s.limitOf(name)
		pod = found
		return err == nil && spec == limit && node == limit, fmt.Sprintf("%s in the spec, %s on the node: %v", spec, node, err), nil
	})
	return pod
}

func TestAPodThatStartsHasMoreCPU(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.apply(startsWith("quick", "1"))
	s.awaitLimit("quick", "1")
	url, err := s.AwaitReady(s.ctx, s.namespace, "quick")
	if err != nil {
		t.Fatal(err)
	}
	pod := s.awaitLimit("quick", "250m")
	for _, c := range pod.Status.ContainerStatuses {
		if c.RestartCount != 0 {
			t.Errorf("container %s was restarted", c.Name)
		}
	}
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Error(reply)
	}
	revision, err := s.Get(s.ctx, cluster.Revisions, s.namespace, "quick-00001")
	if err != nil {
		t.Fatal(err)
	}
	if limited, there := cluster.Conditions(revision)["StartupCPULimited"]; there {
		t.Errorf("it says %s", limited)
	}
}

func TestAPodStartsWithItsOwnLimitWhereMoreIsRefusedAndSaysWhy(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.apply(`{apiVersion: v1, kind: LimitRange, metadata: {name: small}, spec: {limits: [{type: Container, max: {cpu: 500m}}]}}`)
	url := s.ready("bounded", startsWith("bounded", "1"))
	if spec, _, _, err := s.limitOf("bounded"); err != nil || spec != "250m" {
		t.Errorf("it starts with %s: %v", spec, err)
	}
	s.until("the Revision says why", func() (bool, string, error) {
		revision, err := s.Get(s.ctx, cluster.Revisions, s.namespace, "bounded-00001")
		if err != nil {
			return false, err.Error(), nil
		}
		limited := cluster.Conditions(revision)["StartupCPULimited"]
		return limited.Reason == "ResizeRefused" && strings.Contains(limited.Message, "500m") && limited.Severity == "Info", fmt.Sprint(limited), nil
	})
	if reply := probe.Get(s.ctx, s.client(), url); !reply.OK() {
		t.Error(reply)
	}
}
