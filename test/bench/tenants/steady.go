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

// The steady tenant's load: 200 requests per second on connections that stay, as a gateway sends
// them.
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
		"p50_ms": result.Quantile(o.ms, 0.5), "p99_ms": result.Quantile(o.ms, 0.99), "max_ms": result.Quantile(o.ms, 1)}
	if o.last != nil {
		fields["last_error"] = o.last.Error()
	}
	return fields
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
