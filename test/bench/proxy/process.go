package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/internal/testing/reserve"
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

// freePort returns a port that nobody else is given until this program ends, 0 if there is none.
func freePort() int {
	address, _, err := reserve.Take()
	if err != nil {
		return 0
	}
	return int(address.Port())
}
