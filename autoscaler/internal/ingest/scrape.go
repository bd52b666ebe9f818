package ingest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/autoscaler/decide"
	"ebb.dev/ebb/autoscaler/internal/loop"
	"ebb.dev/ebb/autoscaler/internal/pods"
	"ebb.dev/ebb/wire"
)

const (
	// scrapeTimeout is for one pod, connection included.
	scrapeTimeout = 3 * time.Second
	// maxScrapes bounds the scrapes of revisions under way; one more is a failed one.
	maxScrapes = 2048
	// idleConnection is how long a connection to a pod is kept without use.
	idleConnection = 15 * time.Second
)

// SampleSize is how many of n pods stand for all of them: 95 % confidence over a population of n.
func SampleSize(n int) int {
	if n <= 3 {
		return n
	}
	const x = 1.96 * 1.96 * 100 / 25
	return int(math.Ceil(float64(n) * x / (float64(n) + x - 1)))
}

// Scraper asks pods for their stats over connections that it keeps. A connection costs one socket and
// half a kilobyte, not the two goroutines and buffers of an http.Transport: there is one for every pod.
type Scraper struct {
	Ready func(loop.Key) []pods.Pod
	// Dial opens a connection to a pod's port for stats.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Port is the port for stats; 0 stands for wire.PortMetrics.
	Port int
	// Observe, if set, is told how long a scrape of a revision took and whether it counted.
	Observe func(time.Duration, bool)
	// Foreign, if set, is told of an answer that came from another pod than the one asked.
	Foreign func(loop.Key)

	slots chan struct{}
	mutex sync.Mutex
	idle  map[string]*connection
	// keep bounds idle, by the files that this process may have open.
	keep  int
	swept time.Time
}

// NewScraper returns a Scraper of the given pods.
func NewScraper(ready func(loop.Key) []pods.Pod) *Scraper {
	dialer := &net.Dialer{Timeout: scrapeTimeout}
	keep := 8192
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		keep = int(min(files.Cur, 1<<20) * 3 / 4)
	}
	return &Scraper{Ready: ready, keep: keep, slots: make(chan struct{}, maxScrapes), idle: map[string]*connection{},
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}}
}

// Scrape asks a sample of the revision's ready pods and calls done with their mean times the number of
// ready pods. Pods younger than the window are asked only to fill the sample. A pod that fails is
// replaced by the next; when fewer than the sample answer, the scrape failed.
func (s *Scraper) Scrape(key loop.Key, young time.Duration, done func(loop.Scrape)) {
	select {
	case s.slots <- struct{}{}:
	default:
		done(loop.Scrape{Failed: true})
		return
	}
	go func() {
		defer func() { <-s.slots }()
		began := time.Now()
		result := s.scrape(key, young)
		if s.Observe != nil {
			s.Observe(time.Since(began), !result.Failed)
		}
		done(result)
	}()
}

func (s *Scraper) scrape(key loop.Key, young time.Duration) loop.Scrape {
	ready := s.Ready(key)
	if len(ready) == 0 {
		// Between the order and now the last pod went; that nobody is there is known, not missing.
		return loop.Scrape{}
	}
	size := SampleSize(len(ready))
	order(ready, time.Now().Add(-young))
	stats := s.ask(key, ready, size)
	if len(stats) < size {
		return loop.Scrape{Failed: true}
	}
	var sum loop.Scrape
	for _, one := range stats {
		sum.Report.Concurrency += math.Max(0, one.AverageConcurrent-one.AverageProxiedConcurrent)
		sum.Report.RequestsPerSecond += math.Max(0, one.Requests-one.ProxiedRequests)
		sum.Report.Queued += one.Queued
		sum.Completed += one.Completed
		sum.BusySeconds += one.BusySeconds
	}
	factor := float64(len(ready)) / float64(len(stats))
	sum.Report = decide.Report{Concurrency: sum.Report.Concurrency * factor, RequestsPerSecond: sum.Report.RequestsPerSecond * factor,
		Queued: sum.Report.Queued * factor}
	sum.Completed *= factor
	sum.BusySeconds *= factor
	return sum
}

// order shuffles pods and puts those older than since first.
func order(all []pods.Pod, since time.Time) {
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	old := 0
	for i := range all {
		if all[i].Started.Before(since) {
			all[old], all[i] = all[i], all[old]
			old++
		}
	}
}

// ask returns the stats of the first wanted pods that answer.
func (s *Scraper) ask(key loop.Key, from []pods.Pod, wanted int) []wire.Stat {
	if wanted == 1 && len(from) == 1 {
		if stat, err := s.one(key, from[0]); err == nil {
			return []wire.Stat{stat}
		}
		return nil
	}
	type answer struct {
		stat wire.Stat
		err  error
	}
	answers := make(chan answer, len(from))
	next, open := 0, 0
	start := func() {
		pod := from[next]
		next++
		open++
		go func() {
			stat, err := s.one(key, pod)
			answers <- answer{stat, err}
		}()
	}
	for next < wanted {
		start()
	}
	stats := make([]wire.Stat, 0, wanted)
	for open > 0 {
		a := <-answers
		open--
		switch {
		case a.err == nil:
			stats = append(stats, a.stat)
		case next < len(from):
			start()
		}
	}
	return stats
}

// InFlight asks every given pod how many requests it has, and leaves out those that do not answer in time.
func (s *Scraper) InFlight(key loop.Key, all []pods.Pod) map[string]float64 {
	var mutex sync.Mutex
	found := make(map[string]float64, len(all))
	var group sync.WaitGroup
	for _, pod := range all {
		group.Go(func() {
			if stat, err := s.one(key, pod); err == nil {
				mutex.Lock()
				found[pod.Name] = stat.AverageConcurrent
				mutex.Unlock()
			}
		})
	}
	group.Wait()
	return found
}

var errForeign = errors.New("another pod answered")

func (s *Scraper) one(key loop.Key, pod pods.Pod) (wire.Stat, error) {
	port := s.Port
	if port == 0 {
		port = wire.PortMetrics
	}
	address := net.JoinHostPort(pod.IP, strconv.Itoa(port))
	deadline := time.Now().Add(scrapeTimeout)
	c, reused := s.take(address)
	var stat wire.Stat
	var err error
	for {
		if c == nil {
			ctx, cancel := context.WithDeadline(context.Background(), deadline)
			raw, dialError := s.Dial(ctx, address)
			cancel()
			if dialError != nil {
				return stat, fmt.Errorf("scrape pod %s/%s: %w", key.Namespace, pod.Name, dialError)
			}
			c = newConnection(raw, address)
		}
		if stat, err = c.get(deadline); err == nil || !reused {
			break
		}
		// The pod may have closed a connection that was idle; a new one tells.
		c.Close()
		c, reused = nil, false
	}
	if err != nil {
		c.Close()
		return stat, fmt.Errorf("scrape pod %s/%s: %w", key.Namespace, pod.Name, err)
	}
	if stat.PodName != pod.Name || !sane(stat) {
		// The address belongs to somebody else by now, or to somebody who makes figures up.
		c.Close()
		if s.Foreign != nil {
			s.Foreign(key)
		}
		return stat, fmt.Errorf("scrape pod %s/%s: %w: %q", key.Namespace, pod.Name, errForeign, stat.PodName)
	}
	s.give(c)
	return stat, nil
}

func (s *Scraper) take(address string) (*connection, bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	c, ok := s.idle[address]
	delete(s.idle, address)
	return c, ok
}

func (s *Scraper) give(c *connection) {
	c.used = time.Now()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if other, ok := s.idle[c.address]; ok {
		other.Close()
	} else if len(s.idle) >= s.keep {
		c.Close()
		return
	}
	s.idle[c.address] = c
	if c.used.Sub(s.swept) > idleConnection {
		s.swept = c.used
		for address, other := range s.idle {
			if c.used.Sub(other.used) > idleConnection {
				other.Close()
				delete(s.idle, address)
			}
		}
	}
}

// Close closes the kept connections.
func (s *Scraper) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for address, c := range s.idle {
		c.Close()
		delete(s.idle, address)
	}
}

// connection is a connection to a pod's port for stats with no request under way.
type connection struct {
	net.Conn
	reader  *bufio.Reader
	request []byte
	address string
	used    time.Time
}

func newConnection(raw net.Conn, address string) *connection {
	return &connection{Conn: raw, reader: bufio.NewReaderSize(raw, 512), address: address,
		request: []byte("GET " + wire.PathMetrics + " HTTP/1.1\r\nHost: " + address +
			"\r\nAccept: application/protobuf\r\nUser-Agent: Ebb-Autoscaler\r\n\r\n")}
}

func (c *connection) get(deadline time.Time) (wire.Stat, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return wire.Stat{}, err
	}
	if _, err := c.Write(c.request); err != nil {
		return wire.Stat{}, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return wire.Stat{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return wire.Stat{}, fmt.Errorf("answered %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, wire.MaxStatBytes+1))
	switch {
	case err != nil:
		return wire.Stat{}, err
	case len(body) > wire.MaxStatBytes:
		return wire.Stat{}, fmt.Errorf("answer is longer than %d bytes", wire.MaxStatBytes)
	}
	return wire.DecodeStat(body)
}
