package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// The systems. The floor is measured in each visit of the other two.
const (
	ebb     = "ebb"
	knative = "knative"
	floor   = "floor"
)

type bench struct {
	options
	out       *result.Printer
	figures   figures
	installed string
}

// run visits the systems in turn. Ebb comes last, so that the cluster has it afterwards.
func (b *bench) run(ctx context.Context) (err error) {
	began := time.Now()
	defer func() {
		if b.installed == ebb {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		err = errors.Join(err, b.install(ctx, ebb))
	}()
	for round := range b.rounds {
		for _, system := range []string{knative, ebb} {
			if err := b.install(ctx, system); err != nil {
				return err
			}
			v := &visit{bench: b, system: system, round: round + 1}
			if err := v.run(ctx); err != nil {
				return fmt.Errorf("%s, round %d: %w", system, round+1, err)
			}
		}
	}
	for _, line := range b.figures.summaries() {
		if err := b.out.Summary(line); err != nil {
			return err
		}
	}
	return b.out.Summary(result.Fields{"rounds": b.rounds, "services": b.services, "cold": b.cold, "connections": b.connections, "rate": b.rate,
		"lasts_s": b.lasts.Seconds(), "cpus": runtime.NumCPU(), "minutes": time.Since(began).Minutes()})
}

// install runs the command that installs a system.
func (b *bench) install(ctx context.Context, system string) error {
	b.installed = ""
	began := time.Now()
	command := exec.CommandContext(ctx, "sh", "-c", b.commands[system])
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what the shell starts ends with it
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGTERM) }
	command.WaitDelay = time.Minute
	if err := command.Run(); err != nil {
		return fmt.Errorf("install %s by %q: %w", system, b.commands[system], err)
	}
	b.installed = system
	return b.out.Line(result.Fields{"installed": system, "seconds": time.Since(began).Seconds()})
}
