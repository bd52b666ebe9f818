package main

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ebb.dev/ebb/internal/telemetry"
	"ebb.dev/ebb/internal/testing/promtool"
	"ebb.dev/ebb/standby"
)

func TestTheAgentShowsItsPodsItsWorkAndItsGuard(t *testing.T) {
	registry, guarded := telemetry.NewRegistry(), true
	c := observe(registry, func() int { return 7 }, func() bool { return guarded })
	c.Worked(standby.FreezeAll, time.Millisecond, errors.New("no such file"))
	c.Refused("uid")
	shows := func(want string) {
		t.Helper()
		answer := httptest.NewRecorder()
		telemetry.Metrics(registry).ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		if !strings.Contains(answer.Body.String(), "\n"+want+"\n") {
			t.Errorf("lacks %s", want)
		}
	}
	shows("ebb_node_agent_pods 7")
	shows(`ebb_node_agent_failures_total{work="freeze"} 1`)
	shows("ebb_node_agent_guarded 1")
	guarded = false
	shows("ebb_node_agent_guarded 0")
	promtool.CheckMetrics(t, telemetry.Metrics(registry))
}
