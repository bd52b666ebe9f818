package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/internal/testing/process"
	"ebb.dev/ebb/internal/testing/reserve"
	"ebb.dev/ebb/test/internal/result"
)

const (
	request = "Hello, world!\n"
	reply   = "HELLO, WORLD!\n"
)

// target is one way to call the program.
type target struct {
	name    string
	process *process.Process // nil for the program started directly
	call    func(context.Context) error
}

func (t *target) stop() {
	if t.process != nil {
		t.process.Finish(syscall.SIGTERM)
	}
}

func startAll(ctx context.Context, shim, words string) ([]*target, error) {
	var targets []*target
	for _, way := range []struct{ name, mode, path string }{
		{"direct", "", words}, {"http", "http", shim}, {"streaming", "streaming", shim}, {"serializing", "serializing", shim},
	} {
		var args []string
		switch way.mode {
		case "":
			args = []string{"-http"}
		case "http":
			args = []string{"--", words, "-http"}
		default:
			args = []string{"--", words}
		}
		t, err := start(ctx, way.name, way.path, args, "SHIM_MODE="+way.mode, "SHIM_LOG_LEVEL=error")
		if err != nil {
			return targets, err
		}
		targets = append(targets, t)
	}
	return append(targets, &target{name: "exec", call: func(ctx context.Context) error {
		command := exec.CommandContext(ctx, words)
		command.Stdin = strings.NewReader(request)
		out, err := command.Output()
		return check(out, err)
	}}), nil
}

func start(ctx context.Context, name, path string, args []string, env ...string) (*target, error) {
	address, _, err := reserve.Take() // until this program ends
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	p, err := process.Start(exec.Command(path, args...), append(env, fmt.Sprintf("PORT=%d", address.Port()))...)
	if err != nil {
		return nil, err
	}
	t := &target{name: name, process: p, call: func(ctx context.Context) error { return post(ctx, client, "http://"+address.String()) }}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		err := t.call(ctx)
		if err == nil {
			return t, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			t.stop()
			return nil, fmt.Errorf("%s does not answer: %w\n%s", name, err, p.Output())
		}
	}
}

func post(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(request))
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return check(body, err)
}

func check(out []byte, err error) error {
	if err == nil && string(out) != reply {
		err = fmt.Errorf("got %.100q", out)
	}
	return err
}

type measured struct {
	rps, p50, p99 float64
	cpu           time.Duration
	requests      int
}

// measure runs a closed loop on each connection.
func measure(ctx context.Context, t *target, connections int, span time.Duration) (measured, error) {
	if err := t.call(ctx); err != nil {
		return measured{}, err
	}
	var wg sync.WaitGroup
	var mutex sync.Mutex
	var latencies []float64
	var failure error
	before, began := t.cpu(), time.Now()
	for range connections {
		wg.Go(func() {
			var own []float64
			var err error
			for at := time.Now(); err == nil && at.Sub(began) < span; at = time.Now() {
				err = t.call(ctx)
				own = append(own, float64(time.Since(at))/1e3)
			}
			mutex.Lock()
			defer mutex.Unlock()
			latencies, failure = append(latencies, own...), errors.Join(failure, err)
		})
	}
	wg.Wait()
	took := time.Since(began)
	n := len(latencies)
	return measured{rps: float64(n) / took.Seconds(), cpu: t.cpu() - before, requests: n,
		p50: result.Quantile(latencies, 0.5), p99: result.Quantile(latencies, 0.99)}, failure
}

// cpu is the time of the process, of its children that run, and of those that have ended. Of the
// program that is started directly it is the time of this process's children.
func (t *target) cpu() time.Duration {
	if t.process == nil {
		var usage syscall.Rusage
		if syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage) != nil {
			return 0
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
	pid := t.process.Process.Pid
	total := cpuOf(pid)
	children, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range children {
		fields := statOf(file)
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			total += cpuOf(child)
		}
	}
	return total
}

// statOf returns the fields of a stat file from the third on, the state.
func statOf(file string) []string {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

const tick = 10 * time.Millisecond // of /proc/<pid>/stat: USER_HZ is 100 on Linux

func cpuOf(pid int) (total time.Duration) {
	fields := statOf(fmt.Sprintf("/proc/%d/stat", pid))
	if len(fields) < 15 {
		return 0
	}
	for _, field := range fields[11:15] { // utime, stime, and those of children that were waited for
		n, _ := strconv.Atoi(field)
		total += time.Duration(n) * tick
	}
	return total
}
