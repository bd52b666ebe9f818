package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// launch starts a process and waits until it, and no other process, listens on all the addresses.
func launch(ctx context.Context, name, path string, args, env []string, waitFor ...string) (*target, error) {
	t := &target{name: name, process: exec.CommandContext(ctx, path, args...), output: &bytes.Buffer{}, ended: make(chan struct{})}
	t.process.Env = append(os.Environ(), env...)
	t.process.Stdout, t.process.Stderr = t.output, t.output
	began := time.Now()
	if err := t.process.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(t.ended)
		t.process.Wait()
	}()
	deadline := began.Add(15 * time.Second)
	for i, addr := range waitFor {
		err := t.waitListening(ctx, addr, deadline)
		if err == nil && i == 0 {
			t.listened = time.Since(began)
		}
		if err == nil && !listensOn(t.process.Process.Pid, addr) {
			err = errors.New("another process listens there")
		}
		if err != nil {
			t.stop()
			return nil, fmt.Errorf("%s does not listen on %s: %w\n%s", name, addr, err, t.output)
		}
	}
	return t, nil
}

func (t *target) waitListening(ctx context.Context, addr string, deadline time.Time) error {
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return c.Close()
		}
		select {
		case <-t.ended:
			return fmt.Errorf("it has ended (%s)", t.process.ProcessState)
		case <-ctx.Done():
			return err
		default:
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// listensOn reports whether the process has a socket that listens on the address's port.
func listensOn(pid int, addr string) bool {
	_, text, _ := net.SplitHostPort(addr)
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return false
	}
	var sockets []string
	for _, table := range []string{"tcp", "tcp6"} {
		data, _ := os.ReadFile(filepath.Join("/proc/net", table))
		for line := range strings.Lines(string(data)) {
			const local, state, inode, listening = 1, 3, 9, "0A"
			f := strings.Fields(line)
			if len(f) > inode && f[state] == listening && strings.HasSuffix(f[local], fmt.Sprintf(":%04X", port)) {
				sockets = append(sockets, "socket:["+f[inode]+"]")
			}
		}
	}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(files, func(file string) bool {
		to, err := os.Readlink(file)
		return err == nil && slices.Contains(sockets, to)
	})
}

// fate describes the processes that have ended, for an error that they may have caused.
func (t *target) fate() string {
	var b strings.Builder
	for _, p := range append([]*target{t}, t.behind...) {
		if p.process == nil {
			continue
		}
		select {
		case <-p.ended:
			fmt.Fprintf(&b, "\n%s has ended (%s):\n%s", p.name, p.process.ProcessState, p.output)
		default:
		}
	}
	return b.String()
}

func (t *target) stop() {
	t.process.Process.Kill()
	<-t.ended
}

func stopAll(targets []*target) {
	for _, t := range targets {
		if t.process != nil {
			t.stop()
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
