// Package probe sends requests and counts every response that is not a 2xx.
//
// Owns: its goroutines and the counts. Reads: responses. Writes: nothing. Never: retries; a failed
// request is a failure. The Transport of net/http does retry a GET if a reused connection breaks
// before a response. It cannot retry the requests of StartOnce.
package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Reply is the outcome of one request.
type Reply struct {
	Sent   time.Time
	Took   time.Duration
	Status int // 0: no response, see Err
	Header http.Header
	Body   string // at most 64 KiB of it
	Err    error
}

// OK reports whether the response is a 2xx and complete.
func (r Reply) OK() bool { return r.Err == nil && r.Status/100 == 2 }

func (r Reply) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%s after %s: status %d, %v", r.Sent.Format("15:04:05.000"), r.Took.Round(time.Millisecond), r.Status, r.Err)
	}
	body := strings.TrimSpace(r.Body)
	if len(body) > 200 {
		body = body[:200] + "..."
	}
	return fmt.Sprintf("%s after %s: status %d %q", r.Sent.Format("15:04:05.000"), r.Took.Round(time.Millisecond), r.Status, body)
}

// Get sends one request and reads the whole response.
func Get(ctx context.Context, client *http.Client, url string) Reply {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Reply{Sent: time.Now(), Err: err}
	}
	return Do(client, request)
}

// Post sends one request with a body.
func Post(ctx context.Context, client *http.Client, url, body string) Reply {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return Reply{Sent: time.Now(), Err: err}
	}
	return Do(client, request)
}

// Do is Get with a request from the caller.
func Do(client *http.Client, request *http.Request) Reply {
	reply := Reply{Sent: time.Now()}
	response, err := client.Do(request)
	if err != nil {
		reply.Err, reply.Took = err, time.Since(reply.Sent)
		return reply
	}
	defer response.Body.Close()
	reply.Status, reply.Header = response.StatusCode, response.Header
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	if err == nil {
		_, err = io.Copy(io.Discard, response.Body)
	}
	reply.Body, reply.Err = string(body), err
	reply.Took = time.Since(reply.Sent)
	return reply
}

// Burst sends n requests at once and returns all replies.
func Burst(ctx context.Context, client *http.Client, url string, n int) []Reply {
	replies := make([]Reply, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { replies[i] = Get(ctx, client, url) })
	}
	all.Wait()
	return replies
}

// Failed returns the replies that are not a 2xx.
func Failed(replies []Reply) []Reply {
	var failed []Reply
	for _, reply := range replies {
		if !reply.OK() {
			failed = append(failed, reply)
		}
	}
	return failed
}

// A Prober keeps maxKept failures in full, keptEachMinute of each status in a minute. It counts all
// of them.
const (
	maxKept        = 1000
	keptEachMinute = 10
	maxLost        = 100_000
)

// Span is a time from one moment to another.
type Span struct{ From, To time.Time }

// Meets reports whether both have a moment in common.
func (s Span) Meets(other Span) bool { return !s.To.Before(other.From) && !other.To.Before(s.From) }

// Report is the result of a Prober.
type Report struct {
	Sent, Failed int
	Resets       int            // failed requests whose connection broke
	Stray        int            // failed requests that got an answer, or a part of one, that is not their own
	Failures     []Reply        // the first failures
	Lost         []Span         // from when to when failed requests were under way, at most maxLost
	Skipped      int            // due but not sent, because too many were in flight
	Slowest      Reply          // a successful reply, without its body
	Statuses     map[int]int    // count of each status of the failures; 0: no response
	Bodies       map[string]int // count of each response body, at most 100 different ones
	took         [400]int       // count of responses that took up to bucketEnd(i)
}

// bucketEnd returns the upper bound of a bucket. Each is five percent wider than the previous one,
// from 100 microseconds to seven hours.
func bucketEnd(i int) time.Duration {
	return time.Duration(float64(100*time.Microsecond) * math.Pow(1.05, float64(i)))
}

func bucket(took time.Duration) int {
	if took <= 100*time.Microsecond {
		return 0
	}
	return min(int(math.Ceil(math.Log(float64(took)/float64(100*time.Microsecond))/math.Log(1.05))), len(Report{}.took)-1)
}

// Quantile returns the q-quantile of the successful responses' times, at most five percent too
// high.
func (r Report) Quantile(q float64) time.Duration {
	rank := int(math.Ceil(q * float64(r.Sent-r.Failed)))
	for i, n := range r.took {
		if rank -= n; rank <= 0 {
			return bucketEnd(i)
		}
	}
	return bucketEnd(len(r.took) - 1)
}

// Err returns nil if at least least requests were sent and every one got a 2xx.
func (r Report) Err(least int) error {
	if r.Sent < least {
		return fmt.Errorf("only %d requests were sent, want at least %d for the result to mean anything", r.Sent, least)
	}
	if r.Skipped > 0 {
		return fmt.Errorf("%d requests of %d could not be sent, because too many were in flight", r.Skipped, r.Skipped+r.Sent)
	}
	if r.Failed == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("%d of %d requests failed:", r.Failed, r.Sent)}
	for _, failure := range r.Failures {
		lines = append(lines, "  "+failure.String())
	}
	return errors.New(strings.Join(lines, "\n"))
}

// Prober sends requests at a constant rate until it is stopped.
type Prober struct {
	stop chan struct{}
	done chan struct{}
	mu   sync.Mutex
	seen Report
	last time.Time     // when the last request succeeded
	gap  time.Duration // longest time without success since LongestGap was called

	minute time.Time   // the one that kept counts
	kept   map[int]int // failures kept in it, by status
}

// Start sends a GET of url every interval. Slow responses do not reduce the rate, up to 500
// requests in flight.
func Start(client *http.Client, url string, interval time.Duration) *Prober {
	return StartAtMost(client, url, interval, 500)
}

// StartAtMost is Start with another limit of requests in flight. Requests above the limit are
// skipped.
func StartAtMost(client *http.Client, url string, interval time.Duration, most int) *Prober {
	return start(interval, most, func(int) Reply { return Get(context.Background(), client, url) }) // bounded by the client's timeout
}

// StartOnce is StartAtMost with requests that the Transport cannot retry, so a broken connection is
// a failure. It alternates between a GET and a POST with size bytes.
func StartOnce(client *http.Client, url string, interval time.Duration, most, size int) *Prober {
	return start(interval, most, func(n int) Reply { return once(client, url, n%2*size) })
}

// StartTagged is StartOnce for a program that answers as the test image does with the query tag:
// the tag in a line, and the request's body. An answer that has anything else is stray, and failed.
func StartTagged(client *http.Client, url string, interval time.Duration, most, size int) *Prober {
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return start(interval, most, func(n int) Reply {
		tag := fmt.Sprintf("tag-%x", rand.Uint64())
		body := strings.Repeat(tag+" ", size/len(tag)+1)[:n%2*size]
		return own(send(client, url+separator+"tag="+tag, strings.NewReader(body), len(body)), tag, body)
	})
}

// StrayError says that an answer is not the request's own.
type StrayError struct{ Tag, Body string }

func (e *StrayError) Error() string {
	return fmt.Sprintf("the answer is not its own: it begins with %.200q, want %q", e.Body, e.Tag)
}

// own makes an error of a reply that is not to the request with the tag and the body.
func own(r Reply, tag, body string) Reply {
	whole := tag + "\n" + body
	switch {
	case r.Err == nil && r.Status/100 == 2 && r.Body != whole: // also what is not from the program
	case r.Status/100 == 2 && !strings.HasPrefix(whole, r.Body): // it was cut
	case r.Status/100 != 2 && strings.Contains(r.Body, "tag-"):
	default:
		return r
	}
	r.Err = &StrayError{tag, r.Body}
	return r
}

// once sends a GET, or with a size a POST of size bytes.
func once(client *http.Client, url string, size int) Reply {
	return send(client, url, io.LimitReader(zeros{}, int64(size)), size)
}

// send sends a GET, or with a size a POST with the body. The Transport cannot retry a request that
// has a body without Request.GetBody. It finds out that a body is empty only by reading it, so the
// GET on the wire has no body.
func send(client *http.Client, url string, body io.Reader, size int) Reply {
	method := http.MethodGet
	if size > 0 {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(context.Background(), method, url, io.NopCloser(body))
	if err != nil {
		return Reply{Sent: time.Now(), Err: err}
	}
	request.ContentLength = int64(size)
	return Do(client, request)
}

// zeros is an infinite body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// start sends a request every interval and passes its number to send.
func start(interval time.Duration, most int, send func(n int) Reply) *Prober {
	p := &Prober{stop: make(chan struct{}), done: make(chan struct{}), seen: Report{Bodies: map[string]int{}, Statuses: map[int]int{}}}
	go func() {
		defer close(p.done)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		slots := make(chan struct{}, most)
		var open sync.WaitGroup
		defer open.Wait()
		for n := 0; ; n++ {
			select {
			case <-p.stop:
				return
			case <-ticker.C:
			}
			select {
			case slots <- struct{}{}:
			default:
				p.skip()
				continue
			}
			open.Go(func() {
				defer func() { <-slots }()
				p.record(send(n))
			})
		}
	}()
	return p
}

// StopAfter stops after at least least requests have been answered, or when ctx is done. The event
// under test may be over before enough requests were sent.
func (p *Prober) StopAfter(ctx context.Context, least int) Report {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil && p.sent() < least {
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return p.Stop()
}

func (p *Prober) sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.Sent
}

func (p *Prober) skip() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Skipped++
}

func (p *Prober) record(reply Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Sent++
	if !reply.OK() {
		p.seen.Failed++
		p.seen.Statuses[reply.Status]++
		if _, stray := errors.AsType[*StrayError](reply.Err); stray {
			p.seen.Stray++
		}
		if len(p.seen.Lost) < maxLost {
			p.seen.Lost = append(p.seen.Lost, Span{reply.Sent, reply.Sent.Add(reply.Took)})
		}
		if errors.Is(reply.Err, syscall.ECONNRESET) || errors.Is(reply.Err, io.EOF) || errors.Is(reply.Err, io.ErrUnexpectedEOF) {
			p.seen.Resets++
		}
		if minute := time.Now().Truncate(time.Minute); minute != p.minute {
			p.minute, p.kept = minute, map[int]int{}
		}
		if p.kept[reply.Status] < keptEachMinute && len(p.seen.Failures) < maxKept {
			p.kept[reply.Status]++
			p.seen.Failures = append(p.seen.Failures, reply)
		}
		return
	}
	now := time.Now()
	if !p.last.IsZero() {
		p.gap = max(p.gap, now.Sub(p.last))
	}
	p.last = now
	p.seen.took[bucket(reply.Took)]++
	if reply.Took > p.seen.Slowest.Took {
		p.seen.Slowest = Reply{Sent: reply.Sent, Took: reply.Took, Status: reply.Status}
	}
	if _, known := p.seen.Bodies[reply.Body]; known || len(p.seen.Bodies) < 100 {
		p.seen.Bodies[reply.Body]++
	}
}

// Seen returns the count of successful responses by body so far.
func (p *Prober) Seen() Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	report := p.seen
	report.Failures = append([]Reply(nil), p.seen.Failures...)
	report.Lost = append([]Span(nil), p.seen.Lost...)
	report.Statuses = maps.Clone(p.seen.Statuses)
	report.Bodies = map[string]int{}
	for body, n := range p.seen.Bodies {
		report.Bodies[body] = n
	}
	return report
}

// LongestGap returns the longest time without a successful response since the previous call, the
// one that still lasts included.
func (p *Prober) LongestGap() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest := p.gap
	if !p.last.IsZero() {
		longest = max(longest, time.Since(p.last))
	}
	p.gap = 0
	return longest
}

// Stop stops sending, waits for the requests in flight and returns the report.
func (p *Prober) Stop() Report {
	close(p.stop)
	<-p.done
	return p.Seen()
}
