package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/internal/shares"
)

// count reads what namespaces have in the store, after a start.
func (s *Store) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for _, l := range []*ledger{s.results, s.dead} {
		if err := l.read(ctx); err != nil {
			return fmt.Errorf("read what namespaces have: %w", err)
		}
	}
	if err := s.countCallbacks(ctx); err != nil {
		return fmt.Errorf("read what namespaces have of callbacks: %w", err)
	}
	if err := s.adopt(ctx); err != nil {
		return fmt.Errorf("look for calls without a queue: %w", err)
	}
	if err := s.restore(ctx); err != nil {
		return fmt.Errorf("read what namespaces have waiting: %w", err)
	}
	list, err := s.bodies.List(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		return fmt.Errorf("list the bodies: %w", err)
	}
	for _, one := range list {
		if namespace, _, ok := strings.Cut(one.Name, "."); ok {
			s.large.Add(namespace, int64(one.Size))
		}
	}
	return nil
}

// add stores a message where the oldest makes room for it.
func (s *Store) add(ctx context.Context, l *ledger, namespace string, m *nats.Msg, e entry) error {
	if err := l.room(ctx, e.cost); err != nil {
		return err
	}
	stored, err := s.js.PublishMsg(ctx, m)
	if err != nil {
		return err
	}
	e.sequence, e.at = stored.Sequence, time.Now()
	l.add(namespace, e)
	return nil
}

// piece is what a body takes at once of its namespace's share.
const piece = 128 << 10

// metered takes of a namespace's share what is read.
type metered struct {
	io.Reader
	take        func(n int64) bool
	taken, left int64
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	if m.left -= int64(n); m.left < 0 {
		more := (-m.left + piece - 1) / piece * piece
		if !m.take(more) {
			return n, ErrShare
		}
		m.taken, m.left = m.taken+more, m.left+more
	}
	return n, err
}

// PutBody keeps a large body of a namespace while it is read. Its name begins with that.
func (s *Store) PutBody(ctx context.Context, namespace, name string, from io.Reader) (int64, error) {
	m := &metered{Reader: from, take: func(n int64) bool { return s.large.Take(namespace, n) }}
	info, err := s.bodies.Put(ctx, jetstream.ObjectMeta{Name: name}, m)
	if err != nil {
		s.large.Give(namespace, m.taken)
		return 0, fmt.Errorf("store body %s: %w", name, err)
	}
	s.large.Give(namespace, m.left)
	return int64(info.Size), nil
}

// MakeRoom removes the oldest result of a namespace that has a large body; it is false if there is
// none.
func (s *Store) MakeRoom(ctx context.Context, namespace string) bool {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	for {
		before := s.large.Held(namespace)
		removed, err := s.results.oldest(ctx, namespace)
		if !removed || err != nil {
			return false
		}
		if s.large.Held(namespace) < before {
			return true
		}
	}
}

// Crowded reports whether a namespace has no share left for a large body of so many bytes.
func (s *Store) Crowded(namespace string, n int64) bool { return !fits(s.large, namespace, n) }

// HasRoom reports whether a namespace has a share left for a call with a body of so many bytes, -1
// if that is not known. What is stored is counted anyway.
func (s *Store) HasRoom(namespace string, n int64) bool {
	if n > Inline {
		return fits(s.large, namespace, n) && fits(s.held.pool, namespace, leastCost)
	}
	return fits(s.held.pool, namespace, max(n, leastCost))
}

func fits(pool *shares.Pool, namespace string, n int64) bool {
	if !pool.Take(namespace, n) {
		return false
	}
	pool.Give(namespace, n)
	return true
}

// Body reads a large body.
func (s *Store) Body(ctx context.Context, name string) (io.ReadCloser, error) {
	body, err := s.bodies.Get(ctx, name)
	if errors.Is(err, jetstream.ErrObjectNotFound) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read body %s: %w", name, err)
	}
	return body, nil
}

// DropBody removes a large body. If that fails, it goes when it is old.
func (s *Store) DropBody(ctx context.Context, namespace, name string, size int64) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	_ = s.bodies.Delete(ctx, name)
	s.large.Give(namespace, size)
}

// forgetBody is DropBody for a result that went.
func (s *Store) forgetBody(namespace, name string, size int64) {
	s.DropBody(context.Background(), namespace, name, size)
}

// Done takes a call off its queue, and what it took off its namespace's count.
func (s *Store) Done(m Message) error {
	if err := m.Ack(); err != nil {
		return fmt.Errorf("take %s off its queue: %w", m.Subject(), err)
	}
	s.held.give(namespaceOf(m.Subject()), cost(m.Headers(), len(m.Data())))
	return nil
}

// Trim keeps the newest results of each namespace that has more than most.
func (s *Store) Trim(ctx context.Context, most int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return s.results.trim(ctx, most)
}
