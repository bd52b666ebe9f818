package telemetry

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"

	"ebb.dev/ebb/wire"
)

// Ports are where a component tells of itself.
type Ports struct {
	ip                         string
	Metrics, Profiling, Health int
}

// ReadPorts reads METRICS_PORT (9090), PROFILING_PORT (8008) and HEALTH_PORT (8080), which differ
// only where components share a process, and LISTEN_IP, which keeps the ports to one address.
func ReadPorts(env func(string) string) (Ports, error) {
	p := Ports{ip: env("LISTEN_IP")}
	var err error
	port := func(name string, usual int) int {
		n, e := strconv.ParseUint(cmp.Or(env(name), strconv.Itoa(usual)), 10, 16)
		if e != nil || n == 0 {
			err = errors.Join(err, fmt.Errorf("environment %s is %q, want a port", name, env(name)))
		}
		return int(n)
	}
	p.Metrics, p.Profiling = port("METRICS_PORT", wire.PortMetrics), port("PROFILING_PORT", wire.PortProfiling)
	p.Health = port("HEALTH_PORT", wire.PortComponentLive)
	return p, err
}

// Address is the address of a port.
func (p Ports) Address(port int) string { return net.JoinHostPort(p.ip, strconv.Itoa(port)) }
