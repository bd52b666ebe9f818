package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"ebb.dev/ebb/api/names"
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

// Scraper asks pods for their stats over connections that it keeps. A connection costs one socket and a few hundred
// bytes, not the two goroutines and buffers of an http.Transport: there is one for every pod.
type Scraper struct {
	Ready func(loop.Key) []pods.Pod
	// Dial opens a connection to a pod's port for stats.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Port is the port for stats; 0 stands for wire.PortMetrics.
	Port int
	// Mesh, if set, says whether pods are named in a way that a service mesh knows: by their private Service.
	Mesh func() bool
	// Observe, if set, is told how long a scrape of a revision took and whether it counted.
	Observe func(time.Duration, bool)
	// Foreign, if set, is told of an answer that came from another pod than the one asked.
	Foreign func(loop.Key)

	slots chan struct{}
	mutex sync.Mutex
	// idle holds the connection to a pod by its IP, nil while it is in use; kept counts those that are not nil.
	idle map[string]*connection
	kept int
	// keep bounds kept, by the files that this process may have open.
	keep  int
	swept time.Time
	// spaces are what answers are read into.
	spaces sync.Pool
}

// NewScraper returns a Scraper of the given pods.
func NewScraper(ready func(loop.Key) []pods.Pod) *Scraper {
	dialer := &net.Dialer{Timeout: scrapeTimeout}
	keep := 8192
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		keep = int(min(files.Cur, 1<<20) * 3 / 4)
	}
	return &Scraper{Ready: ready, keep: keep, spaces: sync.Pool{New: func() any { return new([longestAnswer]byte) }}, slots: make(chan struct{}, maxScrapes), idle: map[string]*connection{},
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
	if size < len(ready) {
		ready = slices.Clone(ready)
		order(ready, time.Now().Add(-young))
	}
	stats := s.ask(key, ready, size)
	if len(stats) < size {
		return loop.Scrape{Failed: true}
	}
	var sum loop.Scrape
	for _, one := range stats {
		sum.Report.Concurrency += math.Max(0, one.AverageConcurrent-one.AverageProxiedConcurrent)
		sum.Report.RequestsPerSecond += math.Max(0, one.Requests-one.ProxiedRequests)
		sum.Report.ProxiedConcurrency += math.Min(one.AverageConcurrent, one.AverageProxiedConcurrent)
		sum.Report.ProxiedRequests += math.Min(one.Requests, one.ProxiedRequests)
		sum.Report.Queued += one.Queued
		sum.Completed += one.Completed
		sum.BusySeconds += one.BusySeconds
	}
	factor := float64(len(ready)) / float64(len(stats))
	sum.Report = decide.Report{Concurrency: sum.Report.Concurrency * factor, RequestsPerSecond: sum.Report.RequestsPerSecond * factor,
		ProxiedConcurrency: sum.Report.ProxiedConcurrency * factor, ProxiedRequests: sum.Report.ProxiedRequests * factor, Queued: sum.Report.Queued * factor}
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

// ask returns the stats of the first wanted pods that answer. All are asked before the first answer is waited for, by
// this one goroutine; those that fail are replaced by as many others, and so on.
func (s *Scraper) ask(key loop.Key, from []pods.Pod, wanted int) []wire.Stat {
	stats := make([]wire.Stat, 0, wanted)
	questions := make([]question, 0, wanted)
	for next := 0; len(stats) < wanted && next < len(from); {
		questions = questions[:0]
		for len(stats)+len(questions) < wanted && next < len(from) {
			questions = append(questions, question{pod: &from[next]})
			next++
		}
		var dialing sync.WaitGroup
		for i := range questions {
			q := &questions[i]
			if q.c = s.take(q.pod.IP); q.c == nil || q.c.mesh != s.mesh() {
				// Connections are opened side by side: one dead node must not cost the time of its pods' sum.
				dialing.Go(func() { q.err = s.open(context.Background(), key, q) })
				continue
			}
			q.reused = true
			q.err = q.c.send(time.Now().Add(scrapeTimeout))
		}
		dialing.Wait()
		again := questions[:0]
		for i := range questions {
			q := questions[i]
			if stat, err := s.answer(key, &q); err == nil {
				stats = append(stats, stat)
			} else if q.again {
				again = append(again, q)
			}
		}
		for i := range again {
			dialing.Go(func() { again[i].err = s.open(context.Background(), key, &again[i]) })
		}
		dialing.Wait()
		for i := range again {
			if stat, err := s.answer(key, &again[i]); err == nil {
				stats = append(stats, stat)
			}
		}
	}
	return stats
}

func (s *Scraper) mesh() bool { return s.Mesh != nil && s.Mesh() }

// question is one pod being asked.
type question struct {
	pod    *pods.Pod
	c      *connection
	reused bool
	// again says that the pod may have closed the connection while it was idle; a new one tells.
	again bool
	err   error
}

// open connects to the pod and sends the request. ctx may end before scrapeTimeout, for the answer as well.
func (s *Scraper) open(ctx context.Context, key loop.Key, q *question) error {
	if q.c != nil {
		q.c.Close()
		q.c = nil
	}
	port := s.Port
	if port == 0 {
		port = wire.PortMetrics
	}
	address := net.JoinHostPort(q.pod.IP, strconv.Itoa(port))
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline() // the earlier of both
	raw, err := s.Dial(ctx, address)
	if err != nil {
		return err
	}
	host := address
	if s.mesh() {
		host = names.PrivateService(key.Name) + "." + key.Namespace + "\r\n" + wire.HeaderDirectLB + ": true"
	}
	q.c, q.reused = newConnection(raw, q.pod.IP, host), false
	q.c.mesh = host != address
	return q.c.send(deadline)
}

// answer waits for what the pod says to a request that was sent. A pod that let the time pass is not worth another try.
func (s *Scraper) answer(key loop.Key, q *question) (wire.Stat, error) {
	var stat wire.Stat
	space := s.spaces.Get().(*[longestAnswer]byte)
	defer s.spaces.Put(space)
	err := q.err
	if err == nil {
		stat, err = q.c.receive(space)
	}
	q.again = err != nil && q.reused && !errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case err != nil:
		err = fmt.Errorf("scrape pod %s/%s: %w", key.Namespace, q.pod.Name, err)
	case stat.PodName != q.pod.Name || !sane(stat):
		// The address belongs to somebody else by now, or to somebody who makes figures up.
		if s.Foreign != nil {
			s.Foreign(key)
		}
		err = fmt.Errorf("scrape pod %s/%s: %w: %q", key.Namespace, q.pod.Name, errForeign, stat.PodName)
	default:
		s.give(q.c)
		return stat, nil
	}
	if q.c != nil {
		q.c.Close()
	}
	return stat, err
}

// InFlight asks every given pod how many requests it has, and leaves out those that do not answer before ctx ends
// by its deadline, at the latest after scrapeTimeout.
func (s *Scraper) InFlight(ctx context.Context, key loop.Key, all []pods.Pod) map[string]float64 {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	var mutex sync.Mutex
	found := make(map[string]float64, len(all))
	var group sync.WaitGroup
	for _, pod := range all {
		group.Go(func() {
			if stat, err := s.one(ctx, key, pod); err == nil {
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

// one asks a single pod; ctx has a deadline, and a second try has what the first one left of the time.
func (s *Scraper) one(ctx context.Context, key loop.Key, pod pods.Pod) (wire.Stat, error) {
	q := question{pod: &pod}
	if q.c = s.take(pod.IP); q.c == nil || q.c.mesh != s.mesh() {
		q.err = s.open(ctx, key, &q)
	} else {
		q.reused = true
		deadline, _ := ctx.Deadline()
		q.err = q.c.send(deadline)
	}
	stat, err := s.answer(key, &q)
	if q.again {
		q.err = s.open(ctx, key, &q)
		stat, err = s.answer(key, &q)
	}
	return stat, err
}

// take returns the kept connection to a pod, nil if there is none.
func (s *Scraper) take(ip string) *connection {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	c := s.idle[ip]
	if c != nil {
		s.idle[ip] = nil // the place is kept, or the map would grow and shrink all the time
		s.kept--
	}
	return c
}

func (s *Scraper) give(c *connection) {
	c.used = time.Now()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if other := s.idle[c.ip]; other != nil {
		other.Close()
	} else if s.kept >= s.keep {
		c.Close()
		return
	} else {
		s.kept++
	}
	s.idle[c.ip] = c
	if c.used.Sub(s.swept) > idleConnection {
		s.swept = c.used
		for ip, other := range s.idle {
			switch {
			case other == nil:
				delete(s.idle, ip) // on its way; or its pod is gone
			case c.used.Sub(other.used) > idleConnection:
				other.Close()
				delete(s.idle, ip)
				s.kept--
			}
		}
	}
}

// Close closes the kept connections.
func (s *Scraper) Close() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for ip, c := range s.idle {
		if c != nil {
			c.Close()
		}
		delete(s.idle, ip)
	}
	s.kept = 0
}

// connection is a connection to a pod's port for stats with at most one request under way.
type connection struct {
	net.Conn
	ip      string
	request []byte
	used    time.Time
	mesh    bool // the request is for Scraper.Mesh
}

func newConnection(raw net.Conn, ip, host string) *connection {
	return &connection{Conn: raw, ip: ip, request: []byte("GET " + wire.PathMetrics + " HTTP/1.1\r\nHost: " + host +
		"\r\nAccept: application/protobuf\r\nUser-Agent: Ebb-Autoscaler\r\n\r\n")}
}

func (c *connection) send(deadline time.Time) error {
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	_, err := c.Write(c.request)
	return err
}

// longestAnswer bounds head and body of an answer.
const longestAnswer = 2048

// receive reads an answer into space.
func (c *connection) receive(space *[longestAnswer]byte) (wire.Stat, error) {
	n := 0
	for {
		k, err := c.Read(space[n:])
		n += k
		body, whole, bad := answerOf(space[:n])
		switch {
		case bad != nil:
			return wire.Stat{}, bad
		case whole:
			return wire.DecodeStat(body)
		case err != nil:
			return wire.Stat{}, err
		case n == len(space):
			return wire.Stat{}, fmt.Errorf("answer is longer than %d bytes", longestAnswer)
		}
	}
}
