package sidecar

import (
	"net"
	"testing"
	"time"

	"ebb.dev/ebb/queue-proxy/internal/config"
)

// A forwarded request costs no allocation in the whole of queue-proxy, whatever of its defaults is on.
func TestAForwardedRequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				reply := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, world!")
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					if _, err := c.Write(reply); err != nil {
						return
					}
				}
			}()
		}
	}()
	requests := map[string]string{
		"from a gateway": "GET /x HTTP/1.1\r\nHost: rev.ns\r\nUser-Agent: bench\r\nAccept: */*\r\nX-Forwarded-For: 10.0.0.1\r\nX-Forwarded-Proto: http\r\n" +
			"Knative-Serving-Revision: rev\r\nKnative-Serving-Namespace: ns\r\nK-Network-Hash: abc\r\n\r\n",
		"from an activator": "GET /x HTTP/1.1\r\nHost: 10.0.0.9:8012\r\nK-Original-Host: hello.example.com\r\nK-Proxy-Request: activator\r\n\r\n",
		"with a body":       "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
	}
	for name, limit := range map[string]int{"no limit": 0, "limit 100": 100} {
		t.Run(name, func(t *testing.T) {
			r := startRig(t, hello, func(c *config.Config) {
				c.UserPort = l.Addr().(*net.TCPAddr).Port
				c.Probes = nil
				c.Concurrency = limit
				c.ResponseStartTimeout, c.IdleTimeout = time.Minute, time.Minute
				c.Observability.RequestMetrics.Protocol = "prometheus"
			})
			for name, request := range requests {
				c, err := net.Dial("tcp", r.url[len("http://"):])
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				c.SetDeadline(time.Now().Add(time.Minute))
				raw, buf := []byte(request), make([]byte, 4096)
				allocs := testing.AllocsPerRun(2000, func() {
					if _, err := c.Write(raw); err != nil {
						t.Fatal(err)
					}
					if _, err := c.Read(buf); err != nil {
						t.Fatal(err)
					}
				})
				if allocs > 0 {
					t.Errorf("a request %s: %v allocations", name, allocs)
				}
			}
		})
	}
}
