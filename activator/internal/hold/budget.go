package hold

import (
	"fmt"
	"sync/atomic"
)

// Bounds limits what is held. A zero field takes its default.
type Bounds struct {
	// PerRevision is how many requests of one revision may wait, PerRevisionBytes how much memory
	// they may take.
	PerRevision      int64
	PerRevisionBytes int64
	// Total and TotalBytes are the same for all revisions together.
	Total      int64
	TotalBytes int64
}

// Defaults: the count for one revision is the contract's; an ordinary waiting request costs about
// 24 KiB (its goroutines, its connection's buffers, its head), so the count is met first; larger
// ones meet the bytes, which stay well under the container's memory.
const (
	DefaultPerRevision      = 10_000
	DefaultPerRevisionBytes = 256 << 20
	DefaultTotal            = 20_000
	DefaultTotalBytes       = 512 << 20
)

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
	bounds   Bounds
	held     atomic.Int64
	bytes    atomic.Int64
	refusals atomic.Int64
}

// NewBudget returns a budget with the given bounds.
func NewBudget(bounds Bounds) *Budget { return &Budget{bounds: bounds.withDefaults()} }

// Held and HeldBytes are what waits now in all queues; Refusals counts requests turned away.
func (b *Budget) Held() int64      { return b.held.Load() }
func (b *Budget) HeldBytes() int64 { return b.bytes.Load() }
func (b *Budget) Refusals() int64  { return b.refusals.Load() }

// take admits one more waiting request of a revision that has held requests of heldBytes waiting,
// or says what is full.
//
// A revision may use as much as is still free for everybody, and no more: one that floods takes
// half of the total, two take a third each, and there is always room for the next.
func (b *Budget) take(held, heldBytes, bytes int64) error {
	free, freeBytes := b.bounds.Total-b.held.Load(), b.bounds.TotalBytes-b.bytes.Load()
	var what string
	switch {
	case held >= b.bounds.PerRevision:
		what = fmt.Sprintf("%d requests of this revision wait already, the most allowed", held)
	case heldBytes+bytes > b.bounds.PerRevisionBytes:
		what = fmt.Sprintf("the waiting requests of this revision hold %d bytes already, the most allowed are %d", heldBytes, b.bounds.PerRevisionBytes)
	case held >= free:
		what = fmt.Sprintf("%d requests of this revision wait already, and the activator has room for %d more in total", held, max(free, 0))
	case heldBytes+bytes > freeBytes:
		what = fmt.Sprintf("the waiting requests of this revision hold %d bytes already, and the activator has room for %d more in total", heldBytes, max(freeBytes, 0))
	default:
		// Two queues may pass this point at once: the total can be exceeded by one request per
		// core.
		b.force(bytes)
		return nil
	}
	b.refusals.Add(1)
	return &FullError{What: what}
}

// grow makes room for what a waiting request takes more, by the same rule.
func (b *Budget) grow(heldBytes, bytes int64) error {
	freeBytes := b.bounds.TotalBytes - b.bytes.Load()
	var what string
	switch {
	case heldBytes+bytes > b.bounds.PerRevisionBytes:
		what = fmt.Sprintf("the waiting requests of this revision hold %d bytes already, the most allowed are %d", heldBytes, b.bounds.PerRevisionBytes)
	case heldBytes+bytes > freeBytes:
		what = fmt.Sprintf("the waiting requests of this revision hold %d bytes already, and the activator has room for %d more in total", heldBytes, max(freeBytes, 0))
	default:
		b.bytes.Add(bytes)
		return nil
	}
	b.refusals.Add(1)
	return &FullError{What: what}
}

func (b *Budget) force(bytes int64) {
	b.held.Add(1)
	b.bytes.Add(bytes)
}

func (b *Budget) give(bytes int64) {
	b.held.Add(-1)
	b.bytes.Add(-bytes)
}

// FullError says which bound a request met.
type FullError struct{ What string }

func (e *FullError) Error() string { return "pending request queue full: " + e.What }

// CannotStartError says why the revision has no pod and will not have one soon.
type CannotStartError struct{ Reason string }

func (e *CannotStartError) Error() string { return "the revision cannot start: " + e.Reason }
