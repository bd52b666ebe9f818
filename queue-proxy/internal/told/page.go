package told

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"ebb.dev/ebb/internal/run"
)

const (
	period = time.Second
	// patience is for one page. A server that is busy with requests answers late.
	patience = 3 * time.Second
	// maxPage and maxLine bound what is read and what is held of it. A longer line is
	// skipped.
	maxPage = 1 << 20
	maxLine = 4 << 10
)

// page is where some of the metrics are.
type page struct {
	url    string
	names  []string
	places []int
	failed bool // the last time
}

func (b *Board) pages() (all []*page) {
	byURL := map[string]*page{}
	for place, m := range b.metrics {
		if m.Port == 0 {
			continue
		}
		url := "http://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(m.Port)) + m.Path
		p := byURL[url]
		if p == nil {
			p = &page{url: url}
			byURL[url] = p
			all = append(all, p)
		}
		p.names, p.places = append(p.names, m.Name), append(p.places, place)
	}
	return all
}

// Run reads the pages until ctx ends. While asleep says so, the container is not asked.
func (b *Board) Run(ctx context.Context, asleep func() bool, logf func(format string, args ...any)) {
	transport := &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, DisableCompression: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	var running sync.WaitGroup
	for _, p := range b.pages() {
		running.Go(func() {
			_ = run.Every(ctx, period, func(time.Time) error {
				if !asleep() {
					b.look(ctx, client, p, logf)
				}
				return nil
			})
		})
	}
	running.Wait()
}

// look reads a page. It logs the first failure after a success, and the first success after a
// failure.
func (b *Board) look(ctx context.Context, client *http.Client, p *page, logf func(format string, args ...any)) {
	err := b.read(ctx, client, p)
	switch {
	case ctx.Err() != nil || (err != nil) == p.failed:
	case err != nil:
		logf("read metrics of the container at %s: %v; while they are not known the scale is held", p.url, err)
	default:
		logf("the metrics of the container at %s can be read again", p.url)
	}
	p.failed = err != nil
}

// read takes what it can of a page. The error names what is missing.
func (b *Board) read(ctx context.Context, client *http.Client, p *page) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered %s", resp.Status)
	}
	sums, err := parse(resp.Body, p.names)
	if err != nil {
		return err
	}
	now := time.Now()
	var missing error
	for i, place := range p.places {
		switch sum := sums[i]; {
		case !sum.found:
			missing = fmt.Errorf("there is no metric %s", p.names[i])
		case !valid(sum.value):
			missing = fmt.Errorf("metric %s is %v", p.names[i], sum.value)
		default:
			b.set(place, sum.value, now)
		}
	}
	return missing
}

type sum struct {
	value float64
	found bool
}

// parse reads Prometheus' text format and returns for each name the sum over its label sets, NaN if
// one of them cannot be read.
func parse(from io.Reader, names []string) ([]sum, error) {
	sums := make([]sum, len(names))
	limited := &io.LimitedReader{R: from, N: maxPage + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	for skipping := false; ; {
		line, err := lines.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if !skipping {
			if err := add(sums, names, line, long); err != nil {
				return nil, err
			}
		}
		skipping = long
		switch {
		case limited.N <= 0:
			return nil, fmt.Errorf("the page is longer than %d bytes", maxPage)
		case err == nil || long:
		case errors.Is(err, io.EOF):
			return sums, nil
		default:
			return nil, err
		}
	}
}

// add adds a line's value to the metric that it is of. long says that the line's end is missing.
func add(sums []sum, names []string, line []byte, long bool) error {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] == '#' {
		return nil
	}
	end := bytes.IndexAny(line, "{ \t")
	if end < 0 {
		end = len(line)
	}
	for i, name := range names {
		if string(line[:end]) != name {
			continue
		}
		if long {
			return fmt.Errorf("a line of metric %s is longer than %d bytes", name, maxLine)
		}
		sums[i].found = true
		sums[i].value += sample(line[end:])
	}
	return nil
}

// sample reads what follows a name: labels, a value, and perhaps a time.
func sample(rest []byte) float64 {
	if len(rest) > 0 && rest[0] == '{' {
		rest = afterLabels(rest)
	}
	words := bytes.Fields(rest)
	if len(words) == 0 {
		return math.NaN()
	}
	return number(string(words[0]))
}

// afterLabels returns what follows the closing brace that does not stand in quotes.
func afterLabels(rest []byte) []byte {
	quoted := false
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return rest[i+1:]
		}
	}
	return nil
}
