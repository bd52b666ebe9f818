package sidecar

import (
	"testing"
	"time"

	"ebb.dev/ebb/forward/forwardtest"
	"ebb.dev/ebb/wire"
)

// A forwarded request costs no allocation in the whole of queue-proxy, whatever of its defaults is
// on.
func TestAForwardedRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	upstream := forwardtest.Hello(t)
	requests := map[string]string{
		"from a gateway": "GET /x HTTP/1.1\r\nHost: rev.ns\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: http\r\n" +
			"Knative-Serving-Revision: rev-00001\r\nKnative-Serving-Namespace: ns\r\nK-Network-Hash: abc\r\n\r\n",
		"of a client with a port": "GET /x HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 9.9.9.9, 10.0.0.1:4711\r\n\r\n",
		"of a client with IPv6":   "GET /x HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 9.9.9.9\r\nX-Forwarded-For: 2001:db8:1:2::1\r\n\r\n",
		"from an activator":       "GET /x HTTP/1.1\r\nHost: 10.0.0.9:8012\r\nK-Original-Host: hello.example.com\r\nK-Proxy-Request: activator\r\n\r\n",
		"with a body":             "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
	}
	for name, limit := range map[string]int{"no limit": 0, "limit 100": 100} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, hello, func(c *wire.Sidecar) {
				c.UserPort = int(upstream.Port())
				c.Probes = nil
				c.Concurrency = limit
				c.ResponseStartTimeout, c.IdleTimeout = time.Minute, time.Minute
				c.Observability.RequestMetrics.Protocol = "prometheus"
				c.Told = []wire.ToldMetric{{Name: "waiting"}}
			})
			r.gate.Judged() // from now on senders are looked for
			for name, request := range requests {
				allocs := forwardtest.Allocations(t, r.url[len("http://"):], request)
				if allocs > 0 {
					t.Errorf("a request %s: %v allocations", name, allocs)
				}
			}
		})
	}
}
