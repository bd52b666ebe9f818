package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"ebb.dev/ebb/internal/testing/process"
)

// polite is the priority of the flood and its pods: they get the CPU time that nobody else wants.
var polite = []string{"nice", "-n", "19"}

// launch starts a program with its arguments.
func launch(command []string, files []*os.File, env ...string) (*process.Process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.ExtraFiles = files
	return process.Start(cmd, env...)
}

// logged returns the end of what the process logged.
func logged(p *process.Process) string {
	text := p.Output()
	return fmt.Sprintf("\n%s:\n%s", p.Path, text[max(0, len(text)-3000):])
}

// finish asks the process to end, and returns what it printed last.
func finish(p *process.Process) string {
	p.Finish(syscall.SIGTERM)
	lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
	return lines[len(lines)-1]
}

// memory returns a field of /proc/PID/status in MiB: VmRSS is now, VmHWM the peak.
func memory(p *process.Process, field string) float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	for text := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(text, field+":"); ok {
			kib, _ := strconv.Atoi(strings.Fields(value)[0])
			return float64(kib) / 1024
		}
	}
	return 0
}

// cpu returns the seconds of CPU time that the process has used.
func cpu(p *process.Process) float64 {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Process.Pid))
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return float64(user+system) / 100 // USER_HZ is 100 on Linux
}

// kernelMemory samples what the kernel uses for the TCP connections of the machine, and returns a
// function that ends it and returns the peak in MiB. Above the second number of
// /proc/sys/net/ipv4/tcp_mem the kernel delays everybody's connections.
func kernelMemory() (peak func() float64) {
	quit, answer := make(chan struct{}), make(chan float64)
	go func() {
		most := 0.0
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				answer <- most
				return
			case <-tick.C:
			}
			data, _ := os.ReadFile("/proc/net/sockstat")
			for line := range strings.Lines(string(data)) {
				if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "TCP:" {
					pages, _ := strconv.Atoi(fields[len(fields)-1])
					most = max(most, float64(pages)*float64(os.Getpagesize())/(1<<20))
				}
			}
		}
	}()
	return func() float64 {
		close(quit)
		return <-answer
	}
}
