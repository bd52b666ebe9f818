package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// outcome counts the requests of clients that did nothing wrong, and the program's faults.
type outcome struct{ requests, stray, failed, faults int }

func (o *outcome) add(more outcome) {
	o.requests, o.stray = o.requests+more.requests, o.stray+more.stray
	o.failed, o.faults = o.failed+more.failed, o.faults+more.faults
}

func (o *outcome) perMillion(n int) float64 { return float64(n) / float64(o.requests) * 1e6 }

const (
	clients = 8 // that do nothing wrong, each as fast as it can
	callers = 2 // whose answers have unasked bytes
)

// number makes all requests of the process different.
var number atomic.Int64

// load sends requests for a while.
func load(ctx context.Context, address string, span time.Duration) (total outcome) {
	ctx, cancel := context.WithTimeout(ctx, span)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	client := func(run func(c *http.Client) outcome) {
		all.Go(func() {
			transport := &http.Transport{DisableCompression: true}
			defer transport.CloseIdleConnections()
			var mine outcome
			for ctx.Err() == nil {
				mine.add(run(&http.Client{Transport: transport, Timeout: 10 * time.Second}))
			}
			mu.Lock()
			defer mu.Unlock()
			total.add(mine)
		})
	}
	for range clients {
		client(func(c *http.Client) outcome { return innocent(c, address) })
	}
	for i := range callers {
		n := i
		client(func(c *http.Client) outcome {
			n++
			return faulty(ctx, c, address, kinds[n%len(kinds)])
		})
	}
	all.Wait()
	return total
}

// innocent sends one request, and looks whose answer comes.
func innocent(c *http.Client, address string) outcome {
	want := fmt.Sprintf("answer %d", number.Add(1))
	response, err := c.Get("http://" + address + "/" + strings.TrimPrefix(want, "answer "))
	if err != nil {
		return outcome{requests: 1, failed: 1}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	switch {
	case response.StatusCode != 200 && !strings.Contains(string(body), "answer"):
		return outcome{requests: 1, failed: 1}
	case string(body) == want:
		return outcome{requests: 1}
	case err != nil && strings.HasPrefix(want, string(body)): // it was cut
		return outcome{requests: 1, failed: 1}
	}
	return outcome{requests: 1, stray: 1}
}

// faulty sends a request whose answer has unasked bytes, and pauses. What becomes of it does not
// matter.
func faulty(ctx context.Context, c *http.Client, address, kind string) outcome {
	method := http.MethodGet
	if kind == "head" {
		method = http.MethodHead
	}
	request, err := http.NewRequestWithContext(ctx, method, fmt.Sprintf("http://%s/%d/%s", address, number.Add(1), kind), nil)
	if err != nil {
		return outcome{}
	}
	if response, err := c.Do(request); err == nil {
		io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Millisecond):
	}
	return outcome{faults: 1}
}
