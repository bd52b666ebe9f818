package store

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
)

// ofCallbacks begins the names of the queues of callbacks, one for each namespace.
const ofCallbacks = "callbacks_"

// AddCallback lets the callback of a call that ended be called.
func (s *Store) AddCallback(ctx context.Context, c *call.Call) error {
	if _, known := s.calling.Load(c.Namespace); !known {
		if _, err := s.Callbacks(ctx, c.Namespace); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	// What is called has the result; of the call only this is needed.
	kept := &call.Call{Service: c.Service, ID: c.ID, Host: c.Host, Method: c.Method, Path: "/", Accepted: c.Accepted, Callback: c.Callback, Hops: c.Hops}
	m := &nats.Msg{Subject: subject(callbacks, c.Service, c.ID), Header: nats.Header{headerOf: {call.Encode(kept)}}}
	takes := cost(m.Header, 0)
	if !s.callbacks.Take(c.Namespace, takes) {
		return fmt.Errorf("store the callback of call %s of %s: %w", c.ID, c.Service, ErrShare)
	}
	if _, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(0)); err != nil {
		s.callbacks.Give(c.Namespace, takes)
		if !exists(err) {
			return fmt.Errorf("store the callback of call %s of %s: %w", c.ID, c.Service, err)
		}
	}
	if s.Called != nil {
		s.Called(c.Namespace)
	}
	return nil
}

// Callbacks returns the queue of a namespace's callbacks.
func (s *Store) Callbacks(ctx context.Context, namespace string) (*Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	consumer, err := s.js.CreateOrUpdateConsumer(ctx, callbacks, jetstream.ConsumerConfig{Durable: ofCallbacks + namespace, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: 4 * ackWait, MaxAckPending: -1, FilterSubject: subjects[callbacks] + "." + namespace + ".>"})
	if err != nil {
		return nil, fmt.Errorf("make the queue of callbacks of namespace %s: %w", namespace, err)
	}
	s.calling.Store(namespace, true)
	return &Queue{consumer}, nil
}

// Calling lists the namespaces that have callbacks, and removes the queues of those that had none
// for long.
func (s *Store) Calling(ctx context.Context) (namespaces []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	stream, err := s.js.Stream(ctx, callbacks)
	if err != nil {
		return nil, fmt.Errorf("list the callbacks: %w", err)
	}
	var gone []string
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		namespace, ok := strings.CutPrefix(info.Name, ofCallbacks)
		if n, idle := s.pending(info); ok && n > 0 {
			namespaces = append(namespaces, namespace)
		} else if ok && idle {
			gone = append(gone, namespace)
		}
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list the callbacks: %w", err)
	}
	for _, namespace := range gone {
		s.calling.Delete(namespace)
		left, err := removeConsumer(ctx, stream, ofCallbacks+namespace, subjects[callbacks]+"."+namespace+".>")
		if err == nil && left {
			_, err = s.Callbacks(ctx, namespace)
		}
		if err != nil {
			return namespaces, fmt.Errorf("remove the queue of callbacks of namespace %s: %w", namespace, err)
		}
	}
	return namespaces, nil
}

// countCallbacks reads what namespaces have of them. An older courier had one queue for all, which
// would overlap; its namespaces get theirs.
func (s *Store) countCallbacks(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, callbacks)
	if err != nil {
		return err
	}
	if err := stream.DeleteConsumer(ctx, "callbacks"); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return err
	}
	without := int(info.State.Msgs)
	list := stream.ListConsumers(ctx)
	for one := range list.Info() {
		if namespace, ok := strings.CutPrefix(one.Name, ofCallbacks); ok {
			n, _ := s.pending(one)
			s.callbacks.Add(namespace, int64(n)*leastCost)
			s.calling.Store(namespace, true)
			without -= n
		}
	}
	if err := list.Err(); err != nil || without <= 0 {
		return err
	}
	return s.adoptCallbacks(ctx, stream)
}

// adoptCallbacks gives namespaces a queue that have callbacks and none.
func (s *Store) adoptCallbacks(ctx context.Context, stream jetstream.Stream) error {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects[callbacks]+".>"))
	if err != nil {
		return err
	}
	adopted := map[string]bool{}
	for one := range info.State.Subjects {
		namespace := namespaceOf(one)
		if _, known := s.calling.Load(namespace); known && !adopted[namespace] {
			continue
		}
		s.callbacks.Add(namespace, leastCost)
		if adopted[namespace] {
			continue
		}
		adopted[namespace] = true
		if _, err := s.Callbacks(ctx, namespace); err != nil {
			return err
		}
	}
	return nil
}

// DoneCallback takes a callback off its queue.
func (s *Store) DoneCallback(m Message) error {
	if err := m.Ack(); err != nil {
		return fmt.Errorf("take %s off its queue: %w", m.Subject(), err)
	}
	s.callbacks.Give(namespaceOf(m.Subject()), cost(m.Headers(), 0))
	return nil
}
