package hold

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Bounds limits what requests use. A zero field takes its default.
type Bounds struct {
	// PerRevision is how many requests of one revision may wait. PerRevisionBytes is how much
	// memory its requests may take, waiting and in flight together.
	PerRevision      int64
	PerRevisionBytes int64
	// Total and TotalBytes are the same for all revisions together.
	Total      int64
	TotalBytes int64
}

// Defaults: the count for one revision is the contract's. An ordinary request costs about 24 KiB
// (its goroutines, its connections' buffers, its head), so the count is reached first. Larger
// requests reach the bytes, which stay well below the container's memory.
const (
	DefaultPerRevision      = 10_000
	DefaultPerRevisionBytes = 256 << 20
	DefaultTotal            = 20_000
	DefaultTotalBytes       = 512 << 20
)

// lentPart is the part of TotalBytes that is lent for large buffers. A request that gets none is
// slower, so that this part can be full without a request being rejected.
const lentPart = 8

func (b Bounds) withDefaults() Bounds {
	setDefault(&b.PerRevision, DefaultPerRevision)
	setDefault(&b.PerRevisionBytes, DefaultPerRevisionBytes)
	setDefault(&b.Total, DefaultTotal)
	setDefault(&b.TotalBytes, DefaultTotalBytes)
	return b
}

func setDefault(field *int64, value int64) {
	if *field <= 0 {
		*field = value
	}
}

// Budget is what all queues of one activator share.
type Budget struct {
	bounds          Bounds
	held            pool // requests that wait
	memory, buffers pool // bytes of requests, and of buffers that are lent
	refusals        atomic.Int64

	mutex   sync.Mutex
	tenants map[string]*tenant
}

// pool is an amount that namespaces share: each may use as much as is still free for everybody. One
// that floods gets half of it, two get a third each, and there is always room for the next.
type pool struct {
	size int64
	used atomic.Int64
}

// stake is what one namespace uses of a pool.
type stake struct {
	pool *pool
	used atomic.Int64
}

// take uses n more. If there is no room, it returns false and how much is free for everybody. Two
// goroutines may pass at once, so the size can be exceeded by one request per core.
func (s *stake) take(n int64) (free int64, ok bool) {
	free = s.pool.size - s.pool.used.Load()
	if s.used.Load()+n > free {
		return max(free, 0), false
	}
	s.add(n)
	return free, true
}

func (s *stake) add(n int64) {
	s.used.Add(n)
	s.pool.used.Add(n)
}

// tenant is one namespace.
type tenant struct {
	held, memory, buffers stake
	shares                int // guarded by Budget.mutex
}

// NewBudget returns a budget with the given bounds.
func NewBudget(bounds Bounds) *Budget {
	b := &Budget{bounds: bounds.withDefaults(), tenants: map[string]*tenant{}}
	lent := b.bounds.TotalBytes / lentPart
	b.held.size, b.memory.size, b.buffers.size = b.bounds.Total, b.bounds.TotalBytes-lent, lent
	return b
}

// Held is how many requests wait in all queues. HeldBytes is the memory of all requests, waiting
// and in flight, and of the buffers that are lent to them. Refusals counts rejected requests.
func (b *Budget) Held() int64      { return b.held.used.Load() }
func (b *Budget) HeldBytes() int64 { return b.memory.used.Load() + b.buffers.used.Load() }
func (b *Budget) Refusals() int64  { return b.refusals.Load() }

// Share returns the part of a new revision in a namespace.
func (b *Budget) Share(namespace string) *Share {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	t := b.tenants[namespace]
	if t == nil {
		t = &tenant{held: stake{pool: &b.held}, memory: stake{pool: &b.memory}, buffers: stake{pool: &b.buffers}}
		b.tenants[namespace] = t
	}
	t.shares++
	return &Share{budget: b, tenant: t, namespace: namespace}
}

// Share is what the requests of one revision use of a Budget. It is a forward.Account.
type Share struct {
	budget    *Budget
	tenant    *tenant
	namespace string
	held      atomic.Int64
	memory    atomic.Int64
}

// close is called when the revision is deleted. Its last requests may still use the Share.
func (s *Share) close() {
	b := s.budget
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if s.tenant.shares--; s.tenant.shares == 0 {
		delete(b.tenants, s.namespace)
	}
}

// Bytes is how much memory the revision's requests use, without buffers that are lent.
func (s *Share) Bytes() int64 { return s.memory.Load() }

// hold admits one more waiting request, or returns which bound it reached.
func (s *Share) hold() error {
	if held := s.held.Load(); held >= s.budget.bounds.PerRevision {
		return s.full("%d requests of this revision wait already, the most allowed", held)
	}
	if free, ok := s.tenant.held.take(1); !ok {
		return s.full("%d requests of this namespace wait already, and the activator has room for %d more in total", s.tenant.held.used.Load(), free)
	}
	s.held.Add(1)
	return nil
}

// holdAgain admits a request that has waited before and comes back: it is not rejected.
func (s *Share) holdAgain() {
	s.held.Add(1)
	s.tenant.held.add(1)
}

// release is called when a request no longer waits.
func (s *Share) release() {
	s.held.Add(-1)
	s.tenant.held.add(-1)
}

// Take uses n more bytes of memory, or returns which bound is reached, as a *FullError.
func (s *Share) Take(n int64) error {
	if used := s.memory.Load(); used+n > s.budget.bounds.PerRevisionBytes {
		return s.full("the requests of this revision use %d bytes already, the most allowed are %d", used, s.budget.bounds.PerRevisionBytes)
	}
	if free, ok := s.tenant.memory.take(n); !ok {
		return s.full("the requests of this namespace use %d bytes already, and the activator has room for %d more in total", s.tenant.memory.used.Load(), free)
	}
	s.memory.Add(n)
	return nil
}

// Give returns n bytes.
func (s *Share) Give(n int64) {
	s.memory.Add(-n)
	s.tenant.memory.add(-n)
}

// Borrow reports whether a request gets n bytes for a larger buffer. Return gives them back.
func (s *Share) Borrow(n int64) bool {
	_, ok := s.tenant.buffers.take(n)
	return ok
}

// Return gives back what Borrow lent.
func (s *Share) Return(n int64) { s.tenant.buffers.add(-n) }

func (s *Share) full(format string, values ...any) error {
	s.budget.refusals.Add(1)
	return &FullError{What: fmt.Sprintf(format, values...)}
}

// FullError says which bound a request met.
type FullError struct {
	What string
	// Own says that the revision set the bound itself.
	Own bool
}

func (e *FullError) Error() string { return "pending request queue full: " + e.What }

// CannotStartError says why the revision has no pod and will not have one soon.
type CannotStartError struct{ Reason string }

func (e *CannotStartError) Error() string { return "the revision cannot start: " + e.Reason }
