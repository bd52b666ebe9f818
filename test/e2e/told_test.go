//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/test/internal/probe"
)

// Six prompts are far fewer than the seventy that the target of concurrency is. But a pod works on
// one at a time, and tells on a page like vLLM's that the others wait.
func TestAServiceScalesByWhatItTellsAndComesBack(t *testing.T) {
	s := begin(t, 4*time.Minute)
	url := s.ready("prompts", service{name: "prompts", image: "dev.local/ebb-test/prompts:dev", env: map[string]string{"BATCH": "1", "PACE": "2s"},
		annotations: map[string]string{
			"autoscaling.ebb.dev/metrics":       "concurrency=70, vllm:num_requests_running@prometheus=1, vllm:num_requests_waiting@prometheus=2",
			"autoscaling.knative.dev/window":    "10s",
			"autoscaling.knative.dev/max-scale": "3",
		}}.manifest())
	most := s.watchPods("prompts")
	answered := make(chan []probe.Reply, 1)
	go func() { answered <- probe.Burst(s.ctx, s.client(), url, 6) }()
	explain := s.plugin()
	s.until("a metric of the container decides", func() (bool, string, error) {
		out, _ := explain("explain", "prompts")
		return strings.Contains(out, "vllm:num_requests_waiting / target 2"), out, nil
	})
	for _, reply := range <-answered {
		if want := "data: {\"token\":\"Ask\"}\n\ndata: {\"token\":\"me\"}\n\ndata: {\"token\":\"something\"}\n\ndata: [DONE]\n\n"; !reply.OK() || reply.Body != want {
			t.Errorf("got %v, want %q", reply, want)
		}
	}
	if grown := most(); grown < 3 {
		t.Errorf("while five of six prompts waited at most %d pods ran, want 3", grown)
	}
	s.awaitZero("prompts")
}
