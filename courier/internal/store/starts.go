package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// maxStarts bounds how many starts are remembered.
const maxStarts = 1000

// started remembers that a courier has started, for as long as calls are kept that were there then.
func (s *Store) started(ctx context.Context, now time.Time, keep time.Duration) error {
	const key = "starts"
	before, err := s.Recall(ctx, key)
	if err != nil && !errors.Is(err, ErrNone) {
		return err
	}
	var starts []time.Time
	if err == nil {
		if err := json.Unmarshal(before, &starts); err != nil {
			starts = nil // it is written anew
		}
	}
	for len(starts) > 0 && (now.Sub(starts[0]) > keep || len(starts) >= maxStarts) {
		starts = starts[1:]
	}
	s.starts = append(starts, now)
	data, err := json.Marshal(s.starts)
	if err != nil {
		return fmt.Errorf("encode the starts: %w", err)
	}
	return s.Remember(ctx, key, data)
}

// Cut returns how many attempts of a call the ends of couriers may have cut off: each at most one.
func (s *Store) Cut(accepted time.Time) (n int) {
	for _, start := range s.starts {
		if start.After(accepted) {
			n++
		}
	}
	return n
}
