package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ebb.dev/ebb/courier/internal/call"
	"ebb.dev/ebb/internal/shares"
)

// Names of the streams. Each subject ends in <namespace>.<service>.<id>.
const (
	calls     = "EBB_CALLS"
	results   = "EBB_RESULTS"
	dead      = "EBB_DEAD"
	callbacks = "EBB_CALLBACKS"
	state     = "EBB_STATE"
	bodies    = "EBB_BODIES"
)

// subjects begin the subjects of each stream.
var subjects = map[string]string{calls: "ebb.calls", results: "ebb.results", dead: "ebb.dead", callbacks: "ebb.callbacks", state: "ebb.state"}

// parts are those of Options.Bytes, in percent.
var parts = map[string]int64{calls: 35, bodies: 38, results: 20, dead: 5, callbacks: 1, state: 1}

func (s *Store) streams(ctx context.Context, o Options) (err error) {
	limit := func(name string) int64 { return o.Bytes / 100 * parts[name] }
	// What is counted stays below what JetStream refuses.
	pool := func(name string) *shares.Pool { return shares.New(limit(name) / 20 * 19) }
	s.held = &held{pool: pool(calls), touched: map[string]time.Time{}}
	s.large, s.callbacks = pool(bodies), pool(callbacks)
	s.results = &ledger{keep: o.Results, pool: pool(results), drop: s.forgetBody, of: map[string][]entry{}}
	s.dead = &ledger{keep: o.Dead, pool: pool(dead), drop: s.forgetBody, of: map[string][]entry{}}
	for name, subject := range subjects {
		config := jetstream.StreamConfig{Name: name, Subjects: []string{subject + ".>"}, Storage: jetstream.FileStorage, MaxBytes: limit(name),
			Discard: jetstream.DiscardNew, AllowDirect: true, Replicas: max(o.Replicas, 1), MaxMsgSize: 1 << 20}
		switch name {
		case calls, callbacks:
			config.Retention = jetstream.WorkQueuePolicy
		case results:
			config.MaxAge, config.Discard, config.MaxMsgsPerSubject = o.Results, jetstream.DiscardOld, 1
		case dead:
			config.MaxAge, config.Discard = o.Dead, jetstream.DiscardOld
		case state:
			config.MaxMsgsPerSubject = 1
		}
		stream, err := s.js.CreateOrUpdateStream(ctx, config)
		if err != nil {
			return fmt.Errorf("make the stream %s: %w", name, err)
		}
		switch name {
		case calls:
			s.calls = stream
		case results:
			s.found, s.results.stream = stream, stream
		case dead:
			s.dead.stream = stream
		}
	}
	// A body is no longer of use when neither its call nor its result can be there.
	s.bodies, err = s.js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: bodies, TTL: o.Queue + o.Results, MaxBytes: limit(bodies),
		Storage: jetstream.FileStorage, Replicas: max(o.Replicas, 1)})
	if err != nil {
		return fmt.Errorf("make the store of bodies: %w", err)
	}
	return nil
}

// exists reports whether a message was refused because its subject has one.
func exists(err error) bool {
	api := new(jetstream.APIError)
	return errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

func (s *Store) last(ctx context.Context, stream, subject string) (*jetstream.RawStreamMsg, error) {
	one, err := s.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	return lastOf(ctx, one, subject)
}

func lastOf(ctx context.Context, stream jetstream.Stream, subject string) (*jetstream.RawStreamMsg, error) {
	m, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", subject, err)
	}
	return m, nil
}

func subject(stream string, of call.Service, id string) string {
	return subjects[stream] + "." + of.Namespace + "." + of.Name + "." + id
}
