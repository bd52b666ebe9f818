package telemetry

import (
	"strings"
	"testing"
)

func TestPortsAreTheUsualOnesOrThoseOfTheEnvironment(t *testing.T) {
	env := map[string]string{}
	read := func() (Ports, error) { return ReadPorts(func(name string) string { return env[name] }) }
	if p, err := read(); err != nil || p.Address(p.Metrics) != ":9090" || p.Profiling != 8008 || p.Health != 8080 {
		t.Errorf("got %+v %v", p, err)
	}
	env["METRICS_PORT"], env["LISTEN_IP"] = "9093", "127.0.0.2"
	if p, err := read(); err != nil || p.Address(p.Metrics) != "127.0.0.2:9093" || p.Profiling != 8008 {
		t.Errorf("got %+v %v", p, err)
	}
	for _, wrong := range []string{"0", "65536", "-1", "http"} {
		env["HEALTH_PORT"] = wrong
		if _, err := read(); err == nil || !strings.Contains(err.Error(), "HEALTH_PORT") {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}
