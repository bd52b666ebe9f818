package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"ebb.dev/ebb/test/internal/result"
	"ebb.dev/ebb/wire"
)

// The steady tenant's load through the activator: 200 requests per second on connections that stay,
// as a gateway sends them. As many go to its pod directly.
const (
	steadyConnections = 20
	steadyEvery       = 100 * time.Millisecond
)

// outcome is what the steady tenant saw.
type outcome struct {
	ms     []float64
	failed int // other answers than 200, and none
	last   error
}

func (o *outcome) line(phase string) result.Fields {
	fields := result.Fields{"phase": phase, "requests": len(o.ms) + o.failed, "failed": o.failed,
		"p50_ms": result.Quantile(o.ms, 0.5), "p99_ms": o.p99(), "max_ms": result.Quantile(o.ms, 1)}
	if o.last != nil {
		fields["last_error"] = o.last.Error()
	}
	return fields
}

func (o *outcome) p99() float64 { return result.Quantile(o.ms, 0.99) }

// compared is what the steady tenant saw through the activator and without it, at the same time.
type compared struct{ through, direct *outcome }

func (c *compared) line(phase string) result.Fields {
	fields := c.through.line(phase)
	fields["p99_direct_ms"], fields["max_direct_ms"], fields["failed_direct"] = c.direct.p99(), result.Quantile(c.direct.ms, 1), c.direct.failed
	return fields
}

// compare sends requests to both addresses at the same time.
func compare(ctx context.Context, front, direct string, lasts time.Duration) *compared {
	c := &compared{}
	var both sync.WaitGroup
	both.Go(func() { c.through = steady(ctx, front, lasts) })
	both.Go(func() { c.direct = steady(ctx, direct, lasts) })
	both.Wait()
	return c
}

// steady sends the steady tenant's requests. A latency is counted from the time at which the
// request was due, so a late answer also counts for those that waited behind it.
func steady(ctx context.Context, front string, lasts time.Duration) *outcome {
	all := &outcome{}
	var mu sync.Mutex
	var group sync.WaitGroup
	began := time.Now()
	for i := range steadyConnections {
		group.Go(func() {
			var c net.Conn
			var reader *bufio.Reader
			for due := began.Add(time.Duration(i) * steadyEvery / steadyConnections); due.Sub(began) < lasts; due = due.Add(steadyEvery) {
				if !sleep(ctx, time.Until(due)) {
					break
				}
				var err error
				if c == nil {
					if c, err = net.DialTimeout("tcp", front, 10*time.Second); err == nil {
						reader = bufio.NewReader(c)
					}
				}
				if err == nil {
					err = once(c, reader)
				}
				mu.Lock()
				if err != nil {
					all.failed, all.last = all.failed+1, err
				} else {
					all.ms = append(all.ms, result.Milliseconds(time.Since(due)))
				}
				mu.Unlock()
				if err != nil && c != nil {
					c.Close()
					c = nil
				}
			}
			if c != nil {
				c.Close()
			}
		})
	}
	group.Wait()
	return all
}

func once(c net.Conn, reader *bufio.Reader) error {
	c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, head(http.MethodGet, "/", steadyNamespace, steadyRevision)+"\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", response.Status)
	}
	return nil
}

// head returns a request head without the empty line at its end.
func head(method, path, namespace, revision string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: bench.example\r\n%s: %s\r\n%s: %s\r\n", method, path, wire.HeaderNamespace, namespace, wire.HeaderRevision, revision)
}

// sleep reports whether the time passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
