// Package mailbox is a one-slot mailbox in which the latest value wins.
//
// It stands between a callback that must not block (an informer's, a listener's) and a loop that
// takes its time: the loop sees the newest value, never a backlog.
//
// Owns: one slot. Never: blocks a sender, keeps more than one value.
package mailbox

import "sync"

// Mailbox holds at most one value. Its zero value is not usable; call New.
type Mailbox[T any] struct {
	mutex sync.Mutex
	value T
	full  bool
	ready chan struct{} // holds one token while full
}

// New returns an empty mailbox.
func New[T any]() *Mailbox[T] {
	return &Mailbox[T]{ready: make(chan struct{}, 1)}
}

// Put replaces whatever the mailbox holds. It never blocks.
func (m *Mailbox[T]) Put(value T) {
	m.Update(func(T, bool) T { return value })
}

// Update replaces what the mailbox holds by change(held, full), under the mailbox's lock: change
// must be quick. It lets a sender merge its news with those that nobody has taken yet.
func (m *Mailbox[T]) Update(change func(held T, full bool) T) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.value = change(m.value, m.full)
	m.full = true
	select {
	case m.ready <- struct{}{}:
	default:
	}
}

// Ready returns a channel that delivers when there is something to Take.
func (m *Mailbox[T]) Ready() <-chan struct{} { return m.ready }

// Take empties the mailbox and returns what it held; ok is false when it held nothing, which a
// reader of Ready sees when another reader was faster.
func (m *Mailbox[T]) Take() (value T, ok bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	value, ok = m.value, m.full
	var zero T
	m.value, m.full = zero, false
	select {
	case <-m.ready:
	default:
	}
	return value, ok
}
