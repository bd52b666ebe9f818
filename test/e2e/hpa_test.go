//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

func TestAServiceOfTheHPAClassGrowsWithTheCPUItUses(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("burn", service{name: "burn", cpu: "20m", annotations: map[string]string{
		"autoscaling.knative.dev/class":     "hpa.autoscaling.knative.dev",
		"autoscaling.knative.dev/metric":    "cpu",
		"autoscaling.knative.dev/target":    "50",
		"autoscaling.knative.dev/max-scale": "2",
	}}.manifest())
	client := s.client()
	if reply := probe.Get(s.ctx, client, url); !reply.OK() {
		t.Fatalf("the first request after Ready: %v", reply)
	}
	// This uses far more than half of the few millicores of CPU that the pod requests.
	prober := probe.Start(client, url+"?prime=3000000", 100*time.Millisecond)
	s.until("CPU beyond the target brings up a second pod", func() (bool, string, error) {
		pods, err := s.Pods(s.ctx, s.namespace, "burn", false)
		return len(pods) == 2, fmt.Sprintf("%d pods", len(pods)), err
	})
	if err := prober.StopAfter(s.ctx, 5).Err(5); err != nil {
		t.Errorf("while a pod was added: %v", err)
	}
}
