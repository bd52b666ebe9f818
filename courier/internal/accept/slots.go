package accept

import "sync"

// slots bounds how many requests are read or stored at once. A namespace gets a slot only while it
// holds fewer than are free. Alone it can hold half of them, beside another that does the same a
// third, so clients of one namespace that send slowly leave slots to the others.
type slots struct {
	mu   sync.Mutex
	free int
	held map[string]int // by namespace; none has 0
}

func newSlots(most int) *slots { return &slots{free: most, held: map[string]int{}} }

func (s *slots) take(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[namespace] >= s.free {
		return false
	}
	s.free--
	s.held[namespace]++
	return true
}

func (s *slots) give(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[namespace]--; s.held[namespace] == 0 {
		delete(s.held, namespace)
	}
}
