package reconcile

import "sync"

// lanes is the order of a controller's queue. Keys that are reconciled only because all are, after
// a start, a Lease, a changed setting or a replaced activator, go behind those of which something
// changed: with 20 000 services the former take minutes, and a new service need not wait for them.
// So that they end, too, one of them is taken after each lateShare others.
//
// The workqueue calls Touch, Push, Len and Pop, one at a time.
type lanes struct {
	mu     sync.Mutex
	marked map[Key]bool // whether a key goes into the late lane when it is pushed
	early  fifo
	late   fifo
	// waits has the keys that wait in the late lane. One that is not here any more, but there, was
	// moved into the other lane.
	waits map[Key]bool
	taken map[Key]bool // from the late lane, and not asked for yet
	since int          // keys from the other lane since one of the late lane
}

const lateShare = 2

func newLanes() *lanes {
	return &lanes{marked: map[Key]bool{}, waits: map[Key]bool{}, taken: map[Key]bool{}}
}

// mark makes the next push of a key one into the late lane, unless something changes before, or has
// changed since the last: while a key is reconciled, it is not pushed.
func (l *lanes) mark(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, changed := l.marked[key]; !changed {
		l.marked[key] = true
	}
}

func (l *lanes) unmark(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked[key] = false
}

// tookLate reports whether a key that was popped came from the late lane. It says so once.
func (l *lanes) tookLate(key Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer delete(l.taken, key)
	return l.taken[key]
}

// waiting is how many keys wait of which something changed.
func (l *lanes) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.early.len()
}

// Touch is called for a key that waits and is added again.
func (l *lanes) Touch(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.marked[key]
	delete(l.marked, key)
	if !late && l.waits[key] {
		delete(l.waits, key)
		l.early.push(key)
	}
}

// Push is called for a key that does not wait.
func (l *lanes) Push(key Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late := l.marked[key]
	delete(l.marked, key)
	if late {
		l.waits[key] = true
		l.late.push(key)
	} else {
		l.early.push(key)
	}
}

// Len returns how many keys wait.
func (l *lanes) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.early.len() + len(l.waits)
}

// Pop is called while a key waits.
func (l *lanes) Pop() Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waits) == 0 || l.early.len() > 0 && l.since < lateShare {
		l.since++
		return l.early.pop()
	}
	l.since = 0
	key := l.late.pop()
	for !l.waits[key] {
		key = l.late.pop()
	}
	if delete(l.waits, key); len(l.waits) == 0 {
		l.late = fifo{}
	}
	l.taken[key] = true
	return key
}

// fifo is a queue. Its memory follows what waits, also while it is never empty.
type fifo struct{ keys []Key }

func (f *fifo) len() int     { return len(f.keys) }
func (f *fifo) push(key Key) { f.keys = append(f.keys, key) }

func (f *fifo) pop() Key {
	key := f.keys[0]
	if f.keys = f.keys[1:]; len(f.keys) == 0 {
		f.keys = nil
	}
	return key
}
