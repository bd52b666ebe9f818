package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"ebb.dev/ebb/internal/shares"
)

// held is what each namespace has of the stream of calls. JetStream counts no bytes of a namespace,
// so it is remembered.
type held struct {
	pool *shares.Pool

	mu      sync.Mutex
	touched map[string]time.Time
	changed bool
}

const (
	heldKey = "held"
	// settled is how long a namespace without calls is left alone before its count begins anew.
	settled = 10 * time.Second
)

func (h *held) take(namespace string, n int64) bool {
	h.touch(namespace)
	return h.pool.Take(namespace, n)
}

func (h *held) give(namespace string, n int64) {
	h.touch(namespace)
	h.pool.Give(namespace, n)
}

func (h *held) touch(namespace string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.touched[namespace], h.changed = time.Now(), true
}

// restore takes over what was remembered.
func (s *Store) restore(ctx context.Context) error {
	info, err := s.calls.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	data, err := s.Recall(ctx, heldKey)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	var before map[string]int64
	if err := json.Unmarshal(data, &before); err != nil {
		return nil // it is written anew
	}
	for namespace, n := range before {
		s.held.pool.Add(namespace, n)
		s.held.touch(namespace)
	}
	return nil
}

// Settle compares what namespaces hold with the queues, and remembers it.
func (s *Store) Settle(ctx context.Context, depths []Depth, now time.Time) error {
	busy, all := map[string]bool{}, map[string]int64{}
	for _, d := range depths {
		busy[d.Service.Namespace] = busy[d.Service.Namespace] || d.Calls > 0
	}
	h := s.held
	h.mu.Lock()
	changed := h.changed
	h.changed = false
	touched := maps.Clone(h.touched)
	h.mu.Unlock()
	for namespace, last := range touched {
		n := h.pool.Held(namespace)
		if !busy[namespace] && now.Sub(last) > settled {
			h.pool.Give(namespace, n) // what was counted twice, or never given back
			h.mu.Lock()
			delete(h.touched, namespace)
			h.changed = true
			h.mu.Unlock()
		} else if n > 0 {
			all[namespace] = n
		}
	}
	if !changed {
		return nil
	}
	data, err := json.Marshal(all)
	if err != nil {
		return fmt.Errorf("encode what namespaces hold: %w", err)
	}
	return s.Remember(ctx, heldKey, data)
}
