package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"ebb.dev/ebb/wire"
)

// settle is how long the load runs before it is measured: a stable window, so that the averages are what they stay.
const settle = 20 * time.Second

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// ready waits until the autoscaler knows everything and owns its bucket.
func (b *bench) ready(ctx context.Context) error {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s%s/%s", wire.PortStats, wire.PathDecisions, "bench", revision(b.revisions-1)))
		if err != nil {
			continue
		}
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("the autoscaler does not decide for %s after two minutes", revision(b.revisions-1))
}

func revision(i int) string { return fmt.Sprintf("hello-%05d", i) }

func podName(revision, pod int) string {
	return fmt.Sprintf("hello-%05d-deployment-%04x", revision, pod)
}

// address is the pod's own on the loopback, from 127.1.0.0 on.
func address(n int) string { return fmt.Sprintf("127.%d.%d.%d", 1+n>>16, n>>8&255, n&255) }

func number(address string) int {
	var a, b, c int
	if _, err := fmt.Sscanf(strings.TrimPrefix(address, "127."), "%d.%d.%d", &a, &b, &c); err != nil {
		return -1
	}
	return (a-1)<<16 | b<<8 | c
}
