package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ebb.dev/ebb/test/internal/result"
)

type measured struct {
	rps, cpu, p50, p99, rss float64
}

// warmUp is not counted.
const warmUp = 100 * time.Millisecond

// measure sends requests over the given number of keep-alive connections for about span.
func measure(ctx context.Context, t *target, s shape, span time.Duration) (measured, error) {
	return load(ctx, t, s.connections, span, func(context.Context) (func() error, func(), error) {
		c, err := net.Dial("tcp", t.http)
		if err != nil {
			return nil, nil, err
		}
		request := []byte(fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: bench.example\r\nUser-Agent: bench\r\nAccept: */*\r\n%s\r\n", s.bytes, t.headers))
		buf := make([]byte, 128<<10)
		return func() error { return exchange(c, request, buf, s.bytes) }, func() { c.Close() }, nil
	})
}

// exchange sends one request. The response must be 200 with the requested number of body bytes.
func exchange(c net.Conn, request, buf []byte, size int) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	got, body := 0, -1
	for body < 0 || got < body {
		n, err := c.Read(buf[got:])
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		got += n
		if body < 0 {
			if end := bytes.Index(buf[:got], []byte("\r\n\r\n")); end >= 0 {
				body = end + 4 + size
			}
		}
	}
	if !bytes.HasPrefix(buf[:got], []byte("HTTP/1.1 200")) || got != body {
		return fmt.Errorf("got %.400q", buf[:got])
	}
	return nil
}

// measureCalls makes unary calls over the given number of HTTP/2 connections, one at a time on
// each.
func measureCalls(ctx context.Context, t *target, s shape, span time.Duration) (measured, error) {
	return load(ctx, t, s.connections, span, func(ctx context.Context) (func() error, func(), error) {
		cc, err := grpc.NewClient("passthrough:///"+t.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, nil, err
		}
		in, out := []byte("Hello, world!"), []byte(nil)
		return func() error {
			if err := call(ctx, cc, &in, &out); err != nil {
				return err
			}
			if !bytes.Equal(in, out) {
				return fmt.Errorf("the echo is %q", out)
			}
			return nil
		}, func() { cc.Close() }, nil
	})
}

// load runs a closed loop on every connection and measures the proxy's CPU time.
func load(ctx context.Context, t *target, connections int, span time.Duration, open func(context.Context) (func() error, func(), error)) (measured, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var latencies []float64
	var failures []error
	count := 0
	start := make(chan struct{})
	var began, end time.Time
	var ready sync.WaitGroup
	for range connections {
		do, done, err := open(ctx)
		if err != nil {
			return measured{}, fmt.Errorf("connect to %s: %w", t.name, err)
		}
		wg.Add(1)
		ready.Add(1)
		go func() {
			defer wg.Done()
			defer done()
			warm := time.Now().Add(warmUp)
			var err error
			for err == nil && time.Now().Before(warm) && ctx.Err() == nil {
				err = do()
			}
			ready.Done()
			<-start
			var own []float64
			n := 0
			for at := time.Now(); err == nil && at.Before(end) && ctx.Err() == nil; n++ {
				err = do()
				now := time.Now()
				if len(own) < 200000 {
					own = append(own, float64(now.Sub(at))/1e3)
				}
				at = now
			}
			mu.Lock()
			defer mu.Unlock()
			count += n
			latencies = append(latencies, own...)
			if err != nil {
				failures = append(failures, err)
			}
		}()
	}
	ready.Wait()
	cpu := t.cpu()
	began = time.Now()
	end = began.Add(span)
	close(start)
	wg.Wait()
	took := time.Since(began)
	used := t.cpu() - cpu
	if err := errors.Join(failures...); err != nil {
		return measured{}, fmt.Errorf("%s with %d connections: %w", t.name, connections, err)
	}
	if err := ctx.Err(); err != nil {
		return measured{}, err
	}
	return measured{
		rps: float64(count) / took.Seconds(),
		cpu: float64(used.Microseconds()) / float64(count),
		p50: result.Quantile(latencies, 0.5),
		p99: result.Quantile(latencies, 0.99),
		rss: t.rss(),
	}, nil
}
