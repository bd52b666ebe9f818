// Package process builds and starts programs for tests and benchmarks.
//
// Owns: the processes that it started, until they are stopped. Reads: what they print, /proc.
// Writes: nothing that stays. Never: ends another process.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Build builds programs of Ebb as they are released into a folder.
func Build(ctx context.Context, folder string, programs ...string) error {
	args := []string{"build", "-trimpath", "-ldflags=-s -w", "-o", folder + "/"}
	for _, program := range programs {
		args = append(args, "ebb.dev/ebb/"+program)
	}
	build := exec.CommandContext(ctx, "go", args...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w\n%s", programs, err, out)
	}
	return nil
}

// Process is a running program.
type Process struct {
	*exec.Cmd
	output *os.File // without a name: it is gone when nobody has it open
	ended  chan struct{}
}

// Start starts a command with more variables in its environment. What the command prints goes where
// Output finds it.
func Start(command *exec.Cmd, env ...string) (*Process, error) {
	output, err := os.CreateTemp("", "output")
	if err != nil {
		return nil, err
	}
	os.Remove(output.Name())
	command.Env = append(command.Environ(), env...)
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		output.Close()
		return nil, fmt.Errorf("start %s: %w", command.Path, err)
	}
	p := &Process{command, output, make(chan struct{})}
	go func() {
		defer close(p.ended)
		command.Wait()
	}()
	return p, nil
}

// Ended is closed when the process has ended. ProcessState says how, from then on.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Alive reports whether the process has not ended.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Output returns what the process has printed.
func (p *Process) Output() string {
	text, _ := io.ReadAll(io.NewSectionReader(p.output, 0, math.MaxInt64))
	return string(text)
}

// Stop kills the process. It is no error if it has ended.
func (p *Process) Stop() {
	p.Process.Kill()
	<-p.ended
}

// Finish sends a signal, and kills the process if it has not ended after 20 s.
func (p *Process) Finish(signal os.Signal) {
	p.Process.Signal(signal)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.Stop()
	}
}

// AwaitListening waits until the process, and no other, listens on the address.
func (p *Process) AwaitListening(ctx context.Context, address string) error {
	err := p.awaitAccepting(ctx, address)
	if err == nil && !listensOn(p.Process.Pid, address) {
		err = errors.New("another process listens there")
	}
	if err != nil {
		return fmt.Errorf("%s does not listen on %s: %w\n%s", filepath.Base(p.Path), address, err, p.Output())
	}
	return nil
}

func (p *Process) awaitAccepting(ctx context.Context, address string) error {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Microsecond) {
		connection, err := net.Dial("tcp", address)
		switch {
		case err == nil:
			return connection.Close()
		case !p.Alive():
			return fmt.Errorf("it has ended (%s)", p.ProcessState)
		case ctx.Err() != nil || time.Now().After(deadline):
			return err
		}
	}
}

// listensOn reports whether the process has a socket that listens on the address's port.
func listensOn(pid int, address string) bool {
	_, text, _ := net.SplitHostPort(address)
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
