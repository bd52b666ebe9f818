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
	ctx, cancel := context.WithTimeout(ctx, timeout)
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

// idleQueue is how long a queue is empty before it is removed.
const idleQueue = 10 * time.Minute

// Depths lists the queues.
func (s *Store) Depths(ctx context.Context) ([]Depth, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	var out []Depth
	list := s.calls.ListConsumers(ctx)
	for info := range list.Info() {
		namespace, name, ok := strings.Cut(info.Name, "_")
		if !ok {
			continue
		}
		since := info.Created
		if last := info.Delivered.Last; last != nil && last.After(since) {
			since = *last
		}
		n := int(info.NumPending) + info.NumAckPending
		out = append(out, Depth{Service: call.Service{Namespace: namespace, Name: name}, Calls: n, Idle: n == 0 && time.Since(since) > idleQueue})
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the queues: %w", err)
	}
	return out, nil
}

// Remove deletes a queue that is empty.
func (s *Store) Remove(ctx context.Context, of call.Service) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.calls.DeleteConsumer(ctx, consumerName(of)); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("remove the queue of %s: %w", of, err)
	}
	return nil
}

// Orphans lists the services that have calls and no queue. There are some if a queue was removed
// while another courier added a call.
func (s *Store) Orphans(ctx context.Context, known []Depth) (out []call.Service, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
	defer cancel()
	info, err := s.calls.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the calls: %w", err)
	}
	have := map[call.Service]bool{}
	for _, d := range known {
		have[d.Service] = true
		info.State.Msgs -= min(info.State.Msgs, uint64(d.Calls))
	}
	if info.State.Msgs == 0 {
		return nil, nil
	}
	info, err = s.calls.Info(ctx, jetstream.WithSubjectFilter(subjects[calls]+".>"))
	if err != nil {
		return nil, fmt.Errorf("list the calls: %w", err)
	}
	for one := range info.State.Subjects {
		if parts := strings.Split(one, "."); len(parts) == 5 {
			of := call.Service{Namespace: parts[2], Name: parts[3]}
			if !have[of] {
				have[of] = true
				out = append(out, of)
			}
		}
	}
	return out, nil
}

// CallOf reads the call of a message.
func CallOf(m Message) (*call.Call, error) { return call.Decode(m.Headers().Get(headerOf)) }

// Remember keeps a small value, such as when a schedule was due last; Recall returns it.
func (s *Store) Remember(ctx context.Context, key string, value []byte) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if _, err := s.js.Publish(ctx, subjects[state]+"."+key, value); err != nil {
		return fmt.Errorf("store %s: %w", key, err)
	}
	return nil
}

// Remembered lists the keys that begin with a prefix, which ends in a dot.
func (s *Store) Remembered(ctx context.Context, prefix string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*timeout)
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
	ctx, cancel := context.WithTimeout(ctx, timeout)
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
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	m, err := s.last(ctx, state, subjects[state]+"."+key)
	if err != nil {
		return nil, err
	}
	return m.Data, nil
}
