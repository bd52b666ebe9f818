// Package deliver sends calls to their services, as many at once as the pods of a service take,
// again after those that failed, and keeps what was answered.
//
// Owns: the calls under way, and the goroutine of each queue that is not empty. Reads: the queues.
// Writes: results, dead letters and callbacks to the store; requests to the local gateway. Never:
// takes a call off its queue before its result is kept; sends a call anywhere but to the host that
// its Route named.
package deliver

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/courier/internal/store"
)

// Rules are what applies to the calls of one service.
type Rules struct {
	Concurrency int     // calls under way at once
	Rate        float64 // calls per second that begin; 0 is no limit
	Attempts    int
	Backoff     call.Backoff
	Timeout     time.Duration // of one attempt
	Queue       time.Duration // from when it was accepted until the last attempt may begin
	MaxResult   int64
	UID         string // of the Route
}

// Routes knows the Routes.
type Routes interface {
	// Rules returns the rules of a service; ok is false if there is no such Route.
	Rules(call.Service) (rules Rules, ok bool)
}

// Counts are what happened to attempts.
type Counts struct {
	Delivered, Retried, Dead, Repeated, Oversized, Failed atomic.Int64
	// Callbacks that were called, and those that were given up.
	Called, Uncalled atomic.Int64
}

// Manager delivers the calls of all services.
type Manager struct {
	Store  *store.Store
	Routes Routes
	Client *http.Client
	Log    *slog.Logger
	Counts Counts
	// Gone is how long a Route is away before its calls are dead: it may be made again from what
	// somebody keeps of it.
	Gone time.Duration

	mu      sync.Mutex
	queues  map[call.Service]*queue
	depths  map[call.Service]int // when listed last, and those added since
	running map[string]running
	budget  *budget
	ready   map[call.Service]bool // services whose queue is known to exist
	ctx     context.Context
	attempt context.Context // of the calls under way, which outlive ctx for a while
	group   sync.WaitGroup
}

type running struct {
	message store.Message
	number  int
	since   time.Time
	of      call.Service
}

const (
	// listed is how often all queues are listed.
	listed = 2 * time.Second
	// beat is how often JetStream is told that calls are still under way.
	beat = 4 * time.Second
	// grace is how long calls under way may go on when the courier is to stop.
	grace = 20 * time.Second
	// gone is Manager.Gone by default.
	gone = 5 * time.Minute
)

// New makes a Manager of its exported fields.
func New(m *Manager) *Manager {
	m.queues, m.depths, m.running, m.ready = map[call.Service]*queue{}, map[call.Service]int{}, map[string]running{}, map[call.Service]bool{}
	m.budget = newBudget()
	m.Store.Stored = m.poke
	if m.Gone == 0 {
		m.Gone = gone
	}
	return m
}

// Run delivers until ctx is done, and then waits for the calls under way.
func (m *Manager) Run(ctx context.Context) error {
	attempt, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	m.mu.Lock()
	m.ctx, m.attempt = ctx, attempt
	m.mu.Unlock()
	list, beats := time.NewTicker(listed), time.NewTicker(beat)
	defer list.Stop()
	defer beats.Stop()
	go m.budget.quicken(ctx)
	m.list(ctx)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-list.C:
			m.list(ctx)
		case <-beats.C:
			m.beat()
		}
	}
	m.mu.Lock()
	m.ctx = nil // who found it alive has begun its work
	m.mu.Unlock()
	ended, late := make(chan struct{}), time.After(grace)
	go func() { m.group.Wait(); close(ended) }()
	for {
		select {
		case <-ended:
			return nil
		case <-late:
			cut()
			<-ended
			return nil
		case <-beats.C:
			m.beat()
		}
	}
}

// list reads how long the queues are, wakes those that are not empty, and removes those that were
// empty for long.
func (m *Manager) list(ctx context.Context) {
	depths, err := m.Store.Depths(ctx)
	if err != nil {
		m.Log.Warn("the queues were not listed", "error", err)
		return
	}
	if err := m.Store.Settle(ctx, depths, time.Now()); err != nil {
		m.Log.Warn("cannot store how much each namespace has waiting", "error", err)
	}
	for _, of := range m.found(depths) {
		if err := m.Store.Remove(ctx, of); err != nil {
			m.Log.Warn("an empty queue was not removed", "error", err)
		}
	}
}

// found takes over how long the queues are, and returns those that are to be removed.
func (m *Manager) found(depths []store.Depth) (empty []call.Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.depths)
	for _, d := range depths {
		if d.Calls > 0 {
			m.depths[d.Service] = d.Calls
			m.wake(d.Service)
		} else if d.Idle && m.queues[d.Service] == nil {
			delete(m.ready, d.Service)
			empty = append(empty, d.Service)
		}
	}
	return empty
}

func (m *Manager) beat() {
	m.mu.Lock()
	messages := make([]store.Message, 0, len(m.running))
	for _, r := range m.running {
		messages = append(messages, r.message)
	}
	m.mu.Unlock()
	for _, one := range messages {
		_ = one.InProgress() // if JetStream is away, the attempt will find out
	}
}

// Admit makes sure that a service has a queue.
func (m *Manager) Admit(ctx context.Context, of call.Service) (depth int, err error) {
	m.mu.Lock()
	depth, known := m.depths[of], m.ready[of]
	m.mu.Unlock()
	if !known {
		if _, err := m.Store.Queue(ctx, of); err != nil {
			return 0, err
		}
		m.mu.Lock()
		m.ready[of] = true
		m.mu.Unlock()
	}
	return depth, nil
}

// Added tells that a call was added to the queue of a service.
func (m *Manager) Added(of call.Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.depths[of]++
	m.wake(of)
}

// poke tells a queue that a call was stored, which may not be on the disk yet.
func (m *Manager) poke(of call.Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queues[of]; q != nil {
		q.poke()
	}
}

// wake lets the queue of a service be worked on. The lock is held.
func (m *Manager) wake(of call.Service) {
	if m.ctx == nil || m.ctx.Err() != nil || m.queues[of] != nil {
		return
	}
	q := &queue{of: of, manager: m, freed: make(chan struct{}, 1), added: make(chan struct{}, 1)}
	m.queues[of] = q
	ctx := m.ctx
	m.group.Go(func() { q.run(ctx) })
}

// Running returns the attempt of a call that is under way, 0 if none is.
func (m *Manager) Running(id string) (attempt int, since time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.running[id]
	return r.number, r.since
}

// Load is the calls of one service that wait, and those under way.
type Load struct {
	Service          call.Service
	Waiting, Running int
}

// Loads lists the services that have calls.
func (m *Manager) Loads() (out []Load) {
	m.mu.Lock()
	defer m.mu.Unlock()
	under := map[call.Service]int{}
	for _, r := range m.running {
		under[r.of]++
	}
	for of, n := range m.depths {
		out = append(out, Load{Service: of, Waiting: max(n-under[of], 0), Running: under[of]})
	}
	return out
}

// begin notes that a call is under way; it is false if it already is.
func (m *Manager) begin(id string, r running) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, twice := m.running[id]; twice {
		return false
	}
	m.running[id] = r
	return true
}

// end notes that a call is no longer under way, and whether it is off its queue.
func (m *Manager) end(id string, of call.Service, off bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.running, id)
	if off && m.depths[of] > 0 {
		m.depths[of]--
	}
}
