package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"ebb.dev/ebb/test/internal/result"
)

// measured is the outcome of one load.
type measured struct {
	rate     float64 // successful requests a second
	p50, p99 float64 // microseconds
	failed   int
	cpu, own float64 // microseconds of CPU per request, of the whole machine and of this process alone
}

// load sends one request after another on each of several connections. It uses sockets directly,
// because an HTTP client would cost more than what is measured.
func load(ctx context.Context, t target, path string, connections int, lasts time.Duration) (measured, error) {
	request := []byte(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", path, t.host, t.header))
	var mutex sync.Mutex
	var all []float64
	var failed int
	var problem error
	machine, own, err := spent()
	if err != nil {
		return measured{}, err
	}
	end := time.Now().Add(lasts)
	var group sync.WaitGroup
	began := time.Now()
	for range connections {
		group.Go(func() {
			took, bad, err := oneConnection(ctx, t.address, request, end)
			mutex.Lock()
			defer mutex.Unlock()
			all, failed = append(all, took...), failed+bad
			problem = errors.Join(problem, err)
		})
	}
	group.Wait()
	if problem != nil {
		return measured{}, problem
	}
	seconds := time.Since(began).Seconds()
	machineAfter, ownAfter, err := spent()
	if err != nil {
		return measured{}, err
	}
	requests := float64(len(all))
	return measured{rate: requests / seconds, failed: failed,
		p50: result.Quantile(all, 0.5), p99: result.Quantile(all, 0.99),
		cpu: (machineAfter - machine).Seconds() * 1e6 / requests, own: (ownAfter - own).Seconds() * 1e6 / requests}, nil
}

func oneConnection(ctx context.Context, address string, request []byte, end time.Time) (microseconds []float64, failed int, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, 0, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(end.Add(30 * time.Second)); err != nil {
		return nil, 0, fmt.Errorf("set a deadline: %w", err)
	}
	reader := bufio.NewReaderSize(conn, 16<<10)
	for began := time.Now(); began.Before(end) && ctx.Err() == nil; {
		if _, err := conn.Write(request); err != nil {
			return microseconds, failed, fmt.Errorf("send: %w", err)
		}
		ok, err := readResponse(reader)
		if err != nil {
			return microseconds, failed, fmt.Errorf("receive: %w", err)
		}
		now := time.Now()
		if ok {
			microseconds = append(microseconds, float64(now.Sub(began).Nanoseconds())/1000)
		} else {
			failed++
		}
		began = now
	}
	return microseconds, failed, nil
}

// readResponse reads one response and reports whether its status was 2xx. It supports the two
// framings that the benchmark's service uses.
func readResponse(r *bufio.Reader) (ok bool, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return false, err
	}
	if len(line) < 12 {
		return false, fmt.Errorf("%q is not a status line", line)
	}
	ok = line[9] == '2'
	length, chunked := int64(-1), false
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if length, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return false, fmt.Errorf("length of the body: %w", err)
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			chunked = true
		}
	}
	switch {
	case chunked:
		return ok, discardChunks(r)
	case length < 0:
		return false, errors.New("a response without a length")
	}
	_, err = r.Discard(int(length))
	return ok, err
}

func discardChunks(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return fmt.Errorf("size of a chunk: %w", err)
		}
		if _, err := io.CopyN(io.Discard, r, size+2); err != nil {
			return err
		}
		if size == 0 {
			return nil
		}
	}
}
