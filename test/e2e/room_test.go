//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"ebb.dev/ebb/test/internal/probe"
)

// The node has one slot. Tests beside this one need none, so that they have room.
const slot = "ebb.test/slot"

func TestANodeWithoutRoomKeepsWhatRunsAndSaysWhatItLacks(t *testing.T) {
	s := begin(t, 4*time.Minute)
	s.slots(1)
	needsSlot := fmt.Sprintf("        resources:\n          limits:\n            %s: 1\n", slot)
	url := s.ready("inside", service{name: "inside", concurrency: 1,
		annotations: map[string]string{"autoscaling.knative.dev/min-scale": "1"}}.manifest()+needsSlot)
	answered := make(chan []probe.Reply, 1)
	go func() { answered <- probe.Burst(s.ctx, s.client(), url+"?sleep=2000", 8) }()
	s.awaitScale("more pods are wanted than have room", "inside-00001-deployment", 2)
	for _, failed := range probe.Failed(<-answered) {
		t.Error("with one pod instead of many: ", failed)
	}
	if object, err := s.Get(s.ctx, services, s.namespace, "inside"); err != nil || !isReady(object) {
		t.Errorf("the Service with a pod that serves is not Ready: %s, %v", describe(object), err)
	}

	s.apply(service{name: "outside"}.manifest() + needsSlot)
	s.until("the Service without a pod says what it lacks", func() (bool, string, error) {
		object, err := s.Get(s.ctx, services, s.namespace, "outside")
		if err != nil {
			return false, "", err
		}
		seen := describe(object)
		return strings.Contains(seen, "False") && strings.Contains(seen, "Insufficient "+slot), seen, nil
	})
	if out, _ := s.plugin()("explain", "outside"); !strings.Contains(out, "Insufficient "+slot) {
		t.Errorf("explain does not say what the node lacks:\n%s", out)
	}
}

// slots gives one node an extended resource for the time of the test. Others have none of it.
func (s *story) slots(n int) {
	s.Helper()
	nodes, err := s.Kube.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) == 0 {
		s.Fatalf("list the nodes: %d, want one at least: %v", len(nodes.Items), err)
	}
	s.slotsOn(nodes.Items[0].Name, n)
}

func (s *story) slotsOn(node string, n int) {
	s.Helper()
	set := func(ctx context.Context, value string) error {
		patch := fmt.Appendf(nil, `{"status":{"capacity":{%q:%s},"allocatable":{%q:%s}}}`, slot, value, slot, value)
		_, err := s.Kube.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	}
	if err := set(s.ctx, fmt.Sprintf("%q", fmt.Sprint(n))); err != nil {
		s.Fatalf("give node %s %d of %s: %v", node, n, slot, err)
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := set(ctx, "null"); err != nil {
			s.Errorf("take %s from node %s: %v", slot, node, err)
		}
	})
}
