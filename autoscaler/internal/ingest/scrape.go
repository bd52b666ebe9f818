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
	"ebb.dev/ebb/autoscaler/revision"
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

// Scraper asks pods for their stats over connections that it keeps. A connection costs one socket
// and a few hundred bytes, not the two goroutines and buffers of an http.Transport: there is one
// for every pod.
type Scraper struct {
	Ready func(loop.Key) []pods.Pod
	// Dial opens a connection to a pod's port for stats.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// Port is the port for stats; 0 stands for wire.PortMetrics.
	Port int
	// Mesh, if set, says whether pods are named in a way that a service mesh knows: by their
	// private Service.
	Mesh func() bool
	// Observe, if set, is told how long a scrape of a revision took and whether it counted.
	Observe func(time.Duration, bool)
	// Foreign, if set, is told of an answer that came from another pod than the one asked.
	Foreign func(loop.Key)

	slots chan struct{}
	round round
	mutex sync.Mutex
	// idle holds the connection to a pod by its IP, nil while it is in use; kept counts those that
	// are not nil.
	idle map[string]*connection
	kept int
	// keep bounds kept, by the files that this process may have open.
	keep  int
	swept time.Time
	// spaces are what answers are read into.
	spaces sync.Pool
	// inquiries are those that ended.
	inquiries sync.Pool
}

// NewScraper returns a Scraper of the given pods.
func NewScraper(ready func(loop.Key) []pods.Pod) *Scraper {
	dialer := &net.Dialer{Timeout: scrapeTimeout}
	keep := 8192
	var files syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) == nil {
		keep = int(min(files.Cur, 1<<20) * 3 / 4)
	}
	return &Scraper{Ready: ready, keep: keep, spaces: sync.Pool{New: func() any { return new([longestAnswer]byte) }}, inquiries: sync.Pool{New: func() any { return new(inquiry) }}, slots: make(chan struct{}, maxScrapes), idle: map[string]*connection{},
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}}
}

// Scrape asks a sample of the revision's ready pods and calls done with their mean times the number
// of ready pods. Pods younger than the window are asked only to fill the sample. A pod that fails
// is replaced by the next; when fewer than the sample answer, the scrape failed.
func (s *Scraper) Scrape(key loop.Key, young time.Duration, done func(revision.Scrape)) {
	select {
	case s.slots <- struct{}{}:
	default:
		done(revision.Scrape{Failed: true})
		return
	}
	i := s.inquiries.Get().(*inquiry)
	i.key, i.young, i.done = key, young, done
	s.round.add(i, s.gather)
}

// sum makes one report of what the pods of a sample said.
func (i *inquiry) sum() revision.Scrape {
	var sum revision.Scrape
	for n := range i.stats {
		one := &i.stats[n]
		sum.Report.Concurrency += math.Max(0, one.AverageConcurrent-one.AverageProxiedConcurrent)
		sum.Report.RequestsPerSecond += math.Max(0, one.Requests-one.ProxiedRequests)
		sum.Report.ProxiedConcurrency += math.Min(one.AverageConcurrent, one.AverageProxiedConcurrent)
		sum.Report.ProxiedRequests += math.Min(one.Requests, one.ProxiedRequests)
		sum.Report.Queued += one.Queued
		sum.Completed += one.Completed
		sum.BusySeconds += one.BusySeconds
	}
	factor := float64(len(i.ready)) / float64(len(i.stats))
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

// inquiry is one scrape of a revision.
type inquiry struct {
	key   loop.Key
	young time.Duration
	done  func(revision.Scrape)
	began time.Time
	// ready are the pods in the order in which they are asked, from next on those that have not
	// been; size of them are to answer.
	ready      []pods.Pod
	size, next int
	// looks is how often it was looked for the answers, left in how many rounds it is looked again.
	looks, left int
	questions   []question
	stats       []wire.Stat
}

// progress is how far a question has come.
type progress uint8

const (
	unsent progress = iota
	sent
	settled
)

// question is one pod being asked.
type question struct {
	pod      *pods.Pod
	c        *connection
	progress progress
	reused   bool
	// again says that the pod may have closed the connection while it was idle; a new one tells.
	again bool
	err   error
	// part is what came of the answer before it was waited for.
	part []byte
}

// begin chooses whom to ask. It reports false if there is nobody.
func (s *Scraper) begin(i *inquiry, now time.Time) bool {
	i.began = now
	i.ready = s.Ready(i.key)
	if i.size = SampleSize(len(i.ready)); i.size == 0 {
		return false
	}
	if i.size < len(i.ready) {
		i.ready = slices.Clone(i.ready)
		order(i.ready, now.Add(-i.young))
	}
	i.stats, i.questions = slices.Grow(i.stats, i.size), slices.Grow(i.questions, i.size)
	s.ask(i)
	return true
}

// ask puts as many questions as answers are missing, each with the connection that is kept to its
// pod.
func (s *Scraper) ask(i *inquiry) {
	i.questions = i.questions[:0]
	for mesh := s.mesh(); len(i.stats)+len(i.questions) < i.size && i.next < len(i.ready); i.next++ {
		q := question{pod: &i.ready[i.next]}
		if q.c = s.take(q.pod.IP); q.c != nil && q.c.mesh != mesh {
			q.c.Close()
			q.c = nil
		}
		q.reused = q.c != nil
		i.questions = append(i.questions, q)
	}
}

// finish waits for the answers, asks again and asks others until the sample is full or everybody
// was asked.
func (s *Scraper) finish(i *inquiry) {
	for {
		deadline := time.Now().Add(scrapeTimeout)
		// Connections are opened side by side: one dead node must not cost the time of its pods'
		// sum.
		var dialing sync.WaitGroup
		for n := range i.questions {
			switch q := &i.questions[n]; {
			case q.progress == unsent && q.c == nil:
				dialing.Go(func() { q.err = s.open(context.Background(), i.key, q) })
			case q.progress == unsent:
				q.err = q.c.send(deadline)
			case q.progress == sent:
				q.err = q.c.wait(i.began.Add(scrapeTimeout))
			}
		}
		dialing.Wait()
		var again []*question
		for n := range i.questions {
			q := &i.questions[n]
			if q.progress == settled {
				continue
			}
			if stat, err := s.answer(i.key, q); err == nil {
				i.stats = append(i.stats, stat)
			} else if q.again {
				again = append(again, q)
			}
		}
		for _, q := range again {
			dialing.Go(func() { q.err = s.open(context.Background(), i.key, q) })
		}
		dialing.Wait()
		for _, q := range again {
			if stat, err := s.answer(i.key, q); err == nil {
				i.stats = append(i.stats, stat)
			}
		}
		if len(i.stats) == i.size || i.next == len(i.ready) {
			s.end(i)
			return
		}
		s.ask(i)
	}
}

// end tells the outcome of a scrape.
func (s *Scraper) end(i *inquiry) {
	var result revision.Scrape // without pods: that nobody is there is known, not missing
	if result.Failed = len(i.stats) < i.size; !result.Failed && i.size > 0 {
		result = i.sum()
	}
	if s.Observe != nil {
		s.Observe(time.Since(i.began), !result.Failed)
	}
	done := i.done
	clear(i.questions[:cap(i.questions)])
	*i = inquiry{questions: i.questions[:0], stats: i.stats[:0]}
	s.inquiries.Put(i)
	done(result)
	<-s.slots
}

func (s *Scraper) mesh() bool { return s.Mesh != nil && s.Mesh() }

// open connects to the pod and sends the request. ctx may end before scrapeTimeout, for the answer
// as well.
func (s *Scraper) open(ctx context.Context, key loop.Key, q *question) error {
	port := s.Port
	if port == 0 {
		port = wire.PortMetrics
	}
	address := net.JoinHostPort(q.pod.IP, strconv.Itoa(port))
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline() // the earlier of both
	q.c, q.reused, q.part = nil, false, nil
	raw, err := s.Dial(ctx, address)
	if err != nil {
		return err
	}
	host := address
	if s.mesh() {
		host = names.PrivateService(key.Name) + "." + key.Namespace + "\r\n" + wire.HeaderDirectLB + ": true"
	}
	q.c = newConnection(raw, q.pod.IP, host)
	q.c.mesh = host != address
	return q.c.send(deadline)
}

// answer waits for what the pod says to a request that was sent.
func (s *Scraper) answer(key loop.Key, q *question) (wire.Stat, error) {
	if q.err != nil {
		return s.judge(key, q, wire.Stat{}, q.err)
	}
	space := s.spaces.Get().(*[longestAnswer]byte)
	defer s.spaces.Put(space)
	stat, err := q.c.receive(space, copy(space[:], q.part), q.pod.Name)
	return s.judge(key, q, stat, err)
}

// judge says whether an answer counts, and keeps the connection of a pod that answered. One that
// let the time pass is not worth another try.
func (s *Scraper) judge(key loop.Key, q *question, stat wire.Stat, err error) (wire.Stat, error) {
	q.progress = settled
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
		q.c = nil
	}
	return stat, err
}

// InFlight asks every given pod how many requests it has, and leaves out those that do not answer
// before ctx ends by its deadline, at the latest after scrapeTimeout.
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

// one asks a single pod; ctx has a deadline, and a second try has what the first one left of the
// time.
func (s *Scraper) one(ctx context.Context, key loop.Key, pod pods.Pod) (wire.Stat, error) {
	i := inquiry{ready: []pods.Pod{pod}, size: 1}
	s.ask(&i)
	q := i.questions[0]
	if q.c == nil {
		q.err = s.open(ctx, key, &q)
	} else {
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
