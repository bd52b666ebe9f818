package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"ebb.dev/ebb/internal/testing/process"
)

// launch starts a process and waits until it, and no other process, listens on all the addresses.
func launch(ctx context.Context, name, path string, args, env []string, waitFor ...string) (*target, error) {
	began := time.Now()
	p, err := process.Start(exec.CommandContext(ctx, path, args...), env...)
	if err != nil {
		return nil, err
	}
	t := &target{name: name, process: p}
	for i, addr := range waitFor {
		if err := p.AwaitListening(ctx, addr); err != nil {
			p.Stop()
			return nil, fmt.Errorf("start %s: %w", name, err)
		}
		if i == 0 {
			t.listened = time.Since(began)
		}
	}
	return t, nil
}

// fate describes the processes that have ended, for an error that they may have caused.
func (t *target) fate() string {
	var b strings.Builder
	for _, p := range append([]*target{t}, t.behind...) {
		if p.process != nil && !p.process.Alive() {
			fmt.Fprintf(&b, "\n%s has ended (%s):\n%s", p.name, p.process.ProcessState, p.process.Output())
		}
	}
	return b.String()
}

func stopAll(targets []*target) {
	for _, t := range targets {
		if t.process != nil {
			t.process.Stop()
		}
	}
}

// ports allocates ports on loopback.
var ports struct {
	sync.Mutex
	low, size, next, given int
}

// freePort returns a port that is free and was not returned before. It is outside the range from
// which the system chooses ephemeral ports, because another process could be given such a port
// before it is used here. It returns 0 when there is none.
func freePort() int {
	p := &ports
	p.Lock()
	defer p.Unlock()
	if p.size == 0 {
		data, _ := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
		p.low, p.size = outside(string(data))
		p.next = rand.IntN(p.size) // two of these programs rarely choose the same port
	}
	for ; p.given < p.size; p.given++ {
		port := p.low + p.next
		p.next = (p.next + 1) % p.size
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			l.Close()
			p.given++
			return port
		}
	}
	return 0
}

// outside returns the larger range of ports outside the system's ephemeral range ("32768 60999"),
// above the well-known ports and not in the range of NodePorts (from 30000).
func outside(chosen string) (low, size int) {
	const first, nodes, last = 10000, 30000, 65535
	from, to := 32768, 60999
	fmt.Sscan(chosen, &from, &to)
	below, above := min(from, nodes)-first, last-to
	if below >= above {
		return first, max(below, 1)
	}
	return to + 1, above
}
