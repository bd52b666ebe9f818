package load

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

// Sockets is a load that uses sockets directly, because an HTTP client would cost more than what is
// measured: on each of several connections, a GET after another.
type Sockets struct {
	Address, Host, Path string
	Header              string // more header lines
	Connections         int
	Lasts               time.Duration
	// Rate is how many requests are sent in a second, on all connections together. With 0, each
	// request is sent when the previous one is answered.
	Rate int
}

// Measured is the outcome of Sockets.
type Measured struct {
	RPS      float64 // successful requests a second
	P50, P99 float64 // microseconds
	Requests int     // successful ones
	Failed   int
	CPU, Own float64 // microseconds of CPU per request, of the whole machine and of this process alone
}

// Run runs the load. A connection that breaks is an error.
func (s Sockets) Run(ctx context.Context) (Measured, error) {
	request := []byte(fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", s.Path, s.Host, s.Header))
	var mutex sync.Mutex
	var all []float64
	var failed int
	var problem error
	machine, own, err := spent()
	if err != nil {
		return Measured{}, err
	}
	var group sync.WaitGroup
	began := time.Now()
	end := began.Add(s.Lasts)
	var gap time.Duration // between two connections' requests
	if s.Rate > 0 {
		gap = time.Second / time.Duration(s.Rate)
	}
	for i := range s.Connections {
		group.Go(func() {
			// The first ones are due when all are connected.
			p := pace{first: began.Add(time.Duration(s.Connections+i) * gap), every: time.Duration(s.Connections) * gap}
			took, bad, err := oneConnection(ctx, s.Address, request, p, end)
			mutex.Lock()
			defer mutex.Unlock()
			all, failed = append(all, took...), failed+bad
			problem = errors.Join(problem, err)
		})
	}
	group.Wait()
	if problem != nil {
		return Measured{}, problem
	}
	seconds := time.Since(began).Seconds()
	machineAfter, ownAfter, err := spent()
	if err != nil {
		return Measured{}, err
	}
	requests := float64(len(all))
	return Measured{RPS: requests / seconds, Requests: len(all), Failed: failed,
		P50: result.Quantile(all, 0.5), P99: result.Quantile(all, 0.99),
		CPU: (machineAfter - machine).Seconds() * 1e6 / requests, Own: (ownAfter - own).Seconds() * 1e6 / requests}, nil
}

// pace is when a connection's requests are due.
type pace struct {
	first time.Time
	every time.Duration // 0: when the previous one is answered
}

// next waits until request n is due and returns from when its time counts. If the previous answer
// came after that, the wait for it counts too. That this process woke late does not.
func (p pace) next(n int) time.Time {
	due := p.first.Add(time.Duration(n) * p.every)
	wait := time.Until(due)
	if p.every > 0 && wait <= 0 {
		return due
	}
	time.Sleep(wait)
	return time.Now()
}

func oneConnection(ctx context.Context, address string, request []byte, p pace, end time.Time) (microseconds []float64, failed int, err error) {
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
	for n := 0; ctx.Err() == nil; n++ {
		began := p.next(n)
		if !began.Before(end) {
			break
		}
		if _, err := conn.Write(request); err != nil {
			return microseconds, failed, fmt.Errorf("send: %w", err)
		}
		ok, err := readResponse(reader)
		if err != nil {
			return microseconds, failed, fmt.Errorf("receive: %w", err)
		}
		if ok {
			microseconds = append(microseconds, float64(time.Since(began).Nanoseconds())/1000)
		} else {
			failed++
		}
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
