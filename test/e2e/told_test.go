//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// Six prompts are far fewer than the seventy that the target of concurrency is. But a pod works on
// one at a time, and tells that the others wait.
func TestAServiceScalesByWhatItTellsAndComesBack(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("prompts", service{name: "prompts", image: "dev.local/ebb/llm:dev", env: map[string]string{"BATCH": "1", "PACE": "2s"},
		annotations: map[string]string{
			"autoscaling.ebb.dev/metrics":       "concurrency=70, llm:requests_running@prometheus=1, llm:requests_waiting@prometheus=2",
			"autoscaling.knative.dev/window":    "10s",
			"autoscaling.knative.dev/max-scale": "3",
		}}.manifest())
	most := s.watchPods("prompts")
	answered := make(chan []probe.Reply, 1)
	go func() { answered <- probe.Burst(s.ctx, s.client(), url, 6) }()
	explain := s.plugin()
	s.until("a metric of the container decides", func() (bool, string, error) {
		out, _ := explain("explain", "prompts")
		return strings.Contains(out, "llm:requests_waiting / target 2"), out, nil
	})
	for _, failed := range probe.Failed(<-answered) {
		t.Error(failed)
	}
	if grown := most(); grown < 3 {
		t.Errorf("while five of six prompts waited at most %d pods ran, want 3", grown)
	}
	s.awaitZero("prompts")
}
