// Command tenants measures what one tenant's flood costs another tenant: steady requests through a
// real activator and queue-proxy, first alone, then beside a flood of requests for a revision of
// another namespace, as JSON lines. Everything runs on loopback; the activator's cluster is an API
// server in memory.
//
// Owns: the processes it starts and a temporary directory. Reads: /proc. Writes: JSON lines. Never:
// asserts a figure; the summary line has the figures that have goals.
//
// The flood is slow readers, HTTP/2 clients with a window of zero, request heads that never end,
// uploads that the pod does not read, and connections without a request. It replaces each
// connection that the activator closes. The flood's pods are a plain server, because a tenant may
// run what it likes.
//
// An attacker and his pods have CPUs of their own. Here they share the machine's with the
// activator, so they run at the lowest priority (nice 19), and the kernel memory of their sockets
// is bounded. What the flood still takes from everybody is measured: requests that go to the steady
// tenant's queue-proxy without the activator, at the same time (p99_direct_ms).
//
// The second part is the same for a real autoscaler: a tenant floods it with stats, without a token
// and with his own, while another tenant's services are woken from zero.
package main

import (
	"flag"
	"fmt"
	"os"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/test/internal/trial"
)

// bench is what the flags say.
type bench struct {
	connections int
	kind        int
	only        string
	lasts       time.Duration
	role        string
	ip          string
	out         *result.Printer
}

// The roles of this program besides the benchmark itself, which starts them.
const (
	rolePod   = "pod"   // the server of one tenant
	roleFlood = "flood" // the hostile tenant's clients
	roleStats = "stats" // the same, of the autoscaler
)

func main() {
	b := &bench{out: &result.Printer{Bench: "tenants", Out: os.Stdout}}
	flag.IntVar(&b.connections, "connections", 25_000, "connections of the flood; fewer if the process may not open so many files")
	flag.IntVar(&b.kind, "kind", -1, "only this kind of flood (the case in flood.go), with its share of the connections; -1: all")
	flag.StringVar(&b.only, "only", "", "measure only the activator, or the autoscaler")
	flag.DurationVar(&b.lasts, "lasts", 20*time.Second, "how long requests are measured alone, and again beside the flood")
	flag.StringVar(&b.role, "role", "", "what the benchmark starts this program as: "+rolePod+", "+roleFlood+" or "+roleStats)
	flag.StringVar(&b.ip, "ip", "", "the address that is flooded")
	flag.Parse()
	run := b.run
	switch b.role {
	case rolePod:
		run = serve
	case roleFlood:
		run = b.flood
	case roleStats:
		run = b.statsFlood
	}
	trial.Main("tenants", run)
}

// files raises the limit of open files for this process and those it starts, and returns it. The
// activator needs two for each connection.
func files(connections int) (int, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	wanted := uint64(2*connections + 4096)
	for _, raised := range []syscall.Rlimit{{Cur: wanted, Max: max(wanted, limit.Max)}, {Cur: min(wanted, limit.Max), Max: limit.Max}} {
		if limit.Cur < wanted && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raised) == nil {
			limit = raised
		}
	}
	return int(limit.Cur), nil
}
