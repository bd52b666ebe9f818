package sidecar

import (
	"bufio"
	"net"
	"testing"
	"time"

	"ebb.dev/ebb/queue-proxy/internal/config"
)

// The whole of queue-proxy with its default features and metrics, tracing off.
func TestARequestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	container, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer container.Close()
	go func() {
		for {
			conn, err := container.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buffer := make([]byte, 4096)
				reply := []byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13\r\n\r\nHello, world!")
				for {
					if _, err := conn.Read(buffer); err != nil {
						return
					}
					if _, err := conn.Write(reply); err != nil {
						return
					}
				}
			}()
		}
	}()
	for _, concurrency := range []int{0, 100} {
		r := startRig(t, hello, func(c *config.Config) {
			c.UserPort, c.Concurrency = container.Addr().(*net.TCPAddr).Port, concurrency
			c.Timeout, c.ResponseStartTimeout, c.IdleTimeout = time.Minute, time.Minute, time.Minute
			c.Observability.RequestMetrics.Protocol = "prometheus"
		})
		conn, err := net.Dial("tcp", r.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		request := []byte("GET /x HTTP/1.1\r\nHost: h.example\r\nUser-Agent: bench\r\nK-Proxy-Request: activator\r\nKnative-Serving-Revision: r\r\n\r\n")
		answer := bufio.NewReaderSize(conn, 4096)
		allocs := testing.AllocsPerRun(2000, func() {
			if _, err := conn.Write(request); err != nil {
				t.Fatal(err)
			}
			if _, err := answer.Peek(1); err != nil {
				t.Fatal(err)
			}
			if _, err := answer.Discard(answer.Buffered()); err != nil {
				t.Fatal(err)
			}
		})
		// Once a second a period is closed, which is not this request's cost.
		if allocs > 0 {
			t.Errorf("concurrency %d: %v allocations a request", concurrency, allocs)
		}
	}
}
