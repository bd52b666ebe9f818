package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
)

// Queue is the calls of one service that are not completed.
type Queue struct {
	consumer jetstream.Consumer
}

// Message is a call in the hands of one attempt.
type Message = jetstream.Msg

func consumerName(of call.Service) string { return of.Namespace + "_" + of.Name }

// Queue returns the queue of a service, and makes it if there is none. It is made before the first
// call is added, so that after a restart the queues are known by their names.
func (s *Store) Queue(ctx context.Context, of call.Service) (*Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	consumer, err := s.calls.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{Durable: consumerName(of), AckPolicy: jetstream.AckExplicitPolicy,
		// What waits for its next attempt is pending, too, and must not keep others out.
		AckWait: ackWait, MaxAckPending: -1, FilterSubject: subject(calls, of, "*")})
	if err != nil {
		return nil, fmt.Errorf("make the queue of %s: %w", of, err)
	}
	return &Queue{consumer}, nil
}

// Fetch hands out up to n calls that are due now.
func (q *Queue) Fetch(n int) (jetstream.MessageBatch, error) { return q.consumer.FetchNoWait(n) }

// Wait hands out the next message within the time.
func (q *Queue) Wait(within time.Duration) (jetstream.MessageBatch, error) {
	return q.consumer.Fetch(1, jetstream.FetchMaxWait(within))
}

// Depth is how many calls of a service are not completed, those under way included.
type Depth struct {
	Service call.Service
	Calls   int
	Idle    bool // no call was handed out or added for long
}

// idleQueue is Options.Idle by default.
const idleQueue = 10 * time.Minute

// pending returns how many messages a queue has, and whether it had none for long.
func (s *Store) pending(info *jetstream.ConsumerInfo) (n int, idle bool) {
	since := info.Created
	if last := info.Delivered.Last; last != nil && last.After(since) {
		since = *last
	}
	n = int(info.NumPending) + info.NumAckPending
	return n, n == 0 && time.Since(since) > s.idle
}

// Depths lists the queues.
func (s *Store) Depths(ctx context.Context) ([]Depth, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	var out []Depth
	list := s.calls.ListConsumers(ctx)
	for info := range list.Info() {
		namespace, name, ok := strings.Cut(info.Name, "_")
		if !ok {
			continue
		}
		n, idle := s.pending(info)
		out = append(out, Depth{Service: call.Service{Namespace: namespace, Name: name}, Calls: n, Idle: idle})
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	return out, nil
}

// Remove deletes a queue that is empty. It makes it anew if a call came meanwhile.
func (s *Store) Remove(ctx context.Context, of call.Service) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	left, err := removeConsumer(ctx, s.calls, consumerName(of), subject(calls, of, "*"))
	if err == nil && left {
		_, err = s.Queue(ctx, of)
	}
	if err != nil {
		return fmt.Errorf("remove the queue of %s: %w", of, err)
	}
	return nil
}

// removeConsumer deletes a consumer and reports whether there are messages that it would have had.
func removeConsumer(ctx context.Context, stream jetstream.Stream, name, filter string) (left bool, err error) {
	if err := stream.DeleteConsumer(ctx, name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return false, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return false, err
	}
	return len(info.State.Subjects) > 0, nil
}

// adopt makes the queues of services that have calls and none: those of a courier that ended while
// it added a call to a queue that was removed. It reads the subjects of all calls, which take
// memory with the backlog, only if there are some.
func (s *Store) adopt(ctx context.Context) error {
	info, err := s.calls.Info(ctx)
	if err != nil || info.State.Msgs == 0 {
		return err
	}
	depths, err := s.Depths(ctx)
	if err != nil {
		return err
	}
	have, without := map[call.Service]bool{}, int(info.State.Msgs)
	for _, d := range depths {
		have[d.Service] = true
		without -= d.Calls
	}
	if without <= 0 {
		return nil
	}
	if info, err = s.calls.Info(ctx, jetstream.WithSubjectFilter(subjects[calls]+".>")); err != nil {
		return err
	}
	for one := range info.State.Subjects {
		parts := strings.Split(one, ".")
		if len(parts) != 5 {
			continue
		}
		of := call.Service{Namespace: parts[2], Name: parts[3]}
		if have[of] {
			continue
		}
		have[of] = true
		if _, err := s.Queue(ctx, of); err != nil {
			return err
		}
	}
	return nil
}

// CallOf reads the call of a message.
func CallOf(m Message) (*call.Call, error) { return call.Decode(m.Headers().Get(headerOf)) }

// Remember keeps a small value, such as when a schedule was due last; Recall returns it.
func (s *Store) Remember(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if _, err := s.js.Publish(ctx, subjects[state]+"."+key, value); err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	return nil
}

// Remembered lists the keys that begin with a prefix, which ends in a dot.
func (s *Store) Remembered(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, state)
	if err != nil {
		return nil, fmt.Errorf("list what is kept: %w", err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects[state]+"."+prefix+">"))
	if err != nil {
		return nil, fmt.Errorf("list what is kept: %w", err)
	}
	var keys []string
	for one := range info.State.Subjects {
		keys = append(keys, strings.TrimPrefix(one, subjects[state]+"."))
	}
	return keys, nil
}

// Forget removes what was kept under a key.
func (s *Store) Forget(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, state)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(subjects[state]+"."+key))
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", key, err)
	}
	return nil
}

// Recall returns what was kept under a key, or ErrNone.
func (s *Store) Recall(ctx context.Context, key string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	m, err := s.last(ctx, state, subjects[state]+"."+key)
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}
